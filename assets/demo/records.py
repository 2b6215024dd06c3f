"""Small tasks that only one of the languages has: records in words as JSON objects, who knows whom in Cypher, and
counts per group in SQL; and requests that name their language. Each maker gives a request and its answer; `unseen` takes
names as in `queries.draw`.
"""

import json
import random

from names import CITIES, PEOPLE, invented
from queries import LANGUAGES, TABLES, draw, draw_training, draw_value, english, phrases

STREETS = """Elm Oak Maple Cedar Pine Birch Willow Main High Park Lake Hill River Church Station School Market Mill Bridge
Garden Green King Queen North South East West Spring Forest Rose""".split()
ROADS = "Street Street Street Road Lane Avenue".split()

# how people are asked for by whom they know -> the arrow between them
KNOWS = {
    "-[:KNOWS]->": ["{p} who know {n}", "{p} that know {n}", "every person who knows {n}", "everyone who knows {n}"],
    "<-[:KNOWS]-": ["{p} who are known by {n}", "{p} known by {n}", "{p} {n} knows", "everyone {n} knows"],
    "-[:KNOWS]-": ["friends of {n}", "the friends of {n}", "all friends of {n}", "everyone who is a friend of {n}"],
}


def _varied(rng, text):
    """Now and then a full stop at the end or a first word in small letters."""
    roll = rng.random()
    if roll < 0.15 and not text.endswith("?"):
        return text + "."
    first, rest = text.split(" ", 1)
    return f"{first.lower()} {rest}" if roll < 0.25 else text


def _listed(rng, parts):
    """Commas between the parts, and often an "and" before the last one."""
    if len(parts) == 1 or rng.random() < 0.4:
        return ", ".join(parts)
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def address(rng, unseen):
    street = STREETS if rng.random() < 0.7 and not unseen else [invented(rng, unseen)]
    city = CITIES if rng.random() < 0.65 and not unseen else [invented(rng, unseen)]
    record = {"street": f"{rng.randint(1, 199)} {rng.choice(street)} {rng.choice(ROADS)}", "city": rng.choice(city)}
    return "address", ", ".join(record.values()), record


def fields(rng, unseen):
    one, columns = rng.choice(list(TABLES.values()))
    names = rng.sample(list(columns), min(len(columns), rng.choices([1, 2, 3, 4], [2, 4, 3, 1])[0]))
    record = {c: draw_value(rng, columns[c], unseen) for c in names}
    between = ": " if rng.random() < 0.15 else " "
    return one, _listed(rng, [f"{c}{between}{v}" for c, v in record.items()]), record


def json_record(rng: random.Random, unseen=False):
    kind, words, record = rng.choices([fields, address], [3, 1])[0](rng, unseen)
    named = f"the address {words}" if kind == "address" else f"the {kind} with {words}"
    ask = rng.choice(["Turn {x} into JSON", "Turn {x} into a JSON object", "Convert {x} to JSON", "Convert {x} into JSON",
                      "Write {x} as JSON", "Write {x} as a JSON object", "Format {x} as JSON", "Put {x} into JSON",
                      "Give me {x} as JSON", "Give me {x} as a JSON object", "Give me a JSON object with {w}",
                      "Make a JSON object with {w}", "Write a JSON object with {w}", "Turn this into JSON: {w}",
                      "Give me this {k} as a JSON object: {w}", "Give me this {k} as JSON: {w}", "Write this {k} as JSON: {w}",
                      "Convert this {k} to JSON: {w}", "Turn this {k} into a JSON object: {w}"])
    text = ask.format(x=rng.choice([words, words, named]), w=words, k=kind)
    return _varied(rng, text), json.dumps(record, separators=(",", ":"))


def cypher_relation(rng: random.Random, unseen=False):
    n = invented(rng, unseen) if unseen or rng.random() < 0.35 else rng.choice(PEOPLE)
    arrow, forms = rng.choice(list(KNOWS.items()))
    who = rng.choice(forms).format(p=rng.choice(["people", "all people", "the people"]), n=n)
    ask = rng.choice(["MATCH", "MATCH", "Match", "Find", "Show", "Show me", "List", "Get", "RETURN"])
    return _varied(rng, f"{ask} {who}"), f"MATCH (p:Person){arrow}(:Person {{name: '{n}'}}) RETURN p;"


def sql_groups(rng: random.Random, unseen=False):
    """`unseen` makes no difference: nothing here is a name."""
    table = rng.choice(list(TABLES))
    column = rng.choice([c for c, kind in TABLES[table][1].items() if isinstance(kind, str)])
    group = rng.choice([f"per {column}", f"per {column}", f"for each {column}", f"for every {column}", f"by {column}"])
    ask = rng.choice([f"Count {table} {group}", f"Count the {table} {group}", f"Count all {table} {group}",
                      f"How many {table} are there {group}?", f"How many {table} {group}?",
                      f"What is the number of {table} {group}?", f"Show the number of {table} {group}",
                      f"Give me the number of {table} {group}", f"Count {table} grouped by {column}"])
    return _varied(rng, ask), f"SELECT {column}, COUNT(*) FROM {table} GROUP BY {column};"


TASKS = {"sql": sql_groups, "json": json_record, "cypher": cypher_relation}
NAMED = {"sql": [" in SQL", " in SQL", " as SQL", " as an SQL query"],
         "json": [" as JSON", " as JSON", " in JSON", " as a JSON object"],
         "cypher": [" in Cypher", " in Cypher", " as Cypher", " as a Cypher query"]}


def named_request(rng: random.Random, language, unseen):
    """A request for rows that names the language: "as JSON" alone does not make it a record."""
    it = draw(rng, unseen) if unseen else draw_training(rng)
    text = english(rng, it, phrases(rng, it)).rstrip(".?")
    return text + rng.choice(NAMED[language]), LANGUAGES[language](it)


def example(rng: random.Random, language, unseen=False):
    """The language's task, or in a fifth of the cases a request that names the language."""
    return named_request(rng, language, unseen) if rng.random() < 0.2 else TASKS[language](rng, unseen)
