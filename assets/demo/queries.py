"""Requests over small tables: one intent, rendered as English, SQL, JSON, Cypher and plain prose.

The adapters learn English -> {SQL, JSON, Cypher}; the base model learns English -> prose and, the other way
round, SQL / JSON / Cypher -> English, so that its (frozen) embeddings know the tokens the adapters write.
"""

import json
import random
import zlib
from dataclasses import dataclass, field

from names import CITIES, COLOURS, COUNTRIES, PEOPLE, invented

# column kinds: "num" (low, high), "year", "person", "city", "country", "colour", "word"
TABLES = {
    "users": ("user", {"name": "person", "age": (1, 99), "city": "city", "score": (1, 999), "country": "country"}),
    "employees": ("employee", {"name": "person", "age": (18, 70), "salary": (500, 9900), "city": "city"}),
    "customers": ("customer", {"name": "person", "age": (1, 99), "city": "city", "points": (1, 5000)}),
    "students": ("student", {"name": "person", "age": (5, 40), "grade": (1, 100), "school": "word"}),
    "products": ("product", {"name": "word", "price": (1, 2000), "weight": (1, 500), "colour": "colour"}),
    "orders": ("order", {"id": (1, 9999), "amount": (1, 5000), "customer": "person", "quantity": (1, 100)}),
    "books": ("book", {"title": "word", "author": "person", "price": (1, 200), "pages": (20, 1500), "year": "year"}),
    "movies": ("movie", {"title": "word", "director": "person", "rating": (1, 10), "year": "year"}),
    "songs": ("song", {"title": "word", "artist": "person", "length": (30, 900), "year": "year"}),
    "cities": ("city", {"name": "city", "population": (100, 99000), "country": "country"}),
    "cars": ("car", {"owner": "person", "colour": "colour", "price": (500, 90000), "year": "year"}),
    "pets": ("pet", {"name": "person", "age": (1, 30), "owner": "person", "weight": (1, 90)}),
    "teams": ("team", {"name": "word", "points": (1, 300), "city": "city", "wins": (1, 90)}),
    "houses": ("house", {"owner": "person", "rooms": (1, 20), "price": (900, 99000), "city": "city"}),
}
PLURAL = {"city": "cities", "country": "countries", "salary": "salaries", "quantity": "quantities", "points": "points",
          "pages": "pages", "wins": "wins", "rooms": "rooms"}
PEOPLE_TABLES = {"users", "employees", "customers", "students"}

# (column, operator) -> phrases that only this column has
SPECIAL = {
    ("age", ">"): ["older than {v}", "older than {v}", "over {v}"],
    ("age", "<"): ["younger than {v}", "younger than {v}", "under {v}"],
    ("age", ">="): ["at least {v} years old"], ("age", "="): ["aged {v}", "who are {v} years old"],
    ("price", ">"): ["that cost more than {v}", "more expensive than {v}"],
    ("price", "<"): ["that cost less than {v}", "cheaper than {v}"],
    ("weight", ">"): ["heavier than {v}"], ("weight", "<"): ["lighter than {v}"],
    ("length", ">"): ["longer than {v}"], ("length", "<"): ["shorter than {v}"],
    ("salary", ">"): ["who earn more than {v}"], ("salary", "<"): ["who earn less than {v}"],
    ("year", ">"): ["after {v}", "newer than {v}"], ("year", "<"): ["before {v}"], ("year", "="): ["from {v}"],
    ("name", "="): ["named {v}", "called {v}"], ("title", "="): ["called {v}"],
    ("city", "="): ["from {v}", "in {v}", "who live in {v}"], ("country", "="): ["from {v}"],
    ("author", "="): ["by {v}", "written by {v}"], ("artist", "="): ["by {v}"], ("director", "="): ["by {v}"],
    ("owner", "="): ["owned by {v}"], ("customer", "="): ["from {v}"], ("colour", "="): ["in {v}"],
}
GENERIC = {
    ">": ["with {c} over {v}", "with {c} above {v}", "with {c} greater than {v}", "whose {c} is more than {v}"],
    "<": ["with {c} under {v}", "with {c} below {v}", "with {c} less than {v}", "whose {c} is less than {v}"],
    ">=": ["with {c} of at least {v}", "whose {c} is at least {v}"],
    "<=": ["with {c} of at most {v}", "whose {c} is at most {v}"],
    "=": ["with {c} {v}", "whose {c} is {v}"],
    "<>": ["whose {c} is not {v}"],
}
MEANING = {">": "over {v}", "<": "under {v}", ">=": "at least {v}", "<=": "at most {v}", "=": "{v}", "<>": "not {v}"}
AGGREGATES = {"AVG": "average", "MAX": "highest", "MIN": "lowest", "SUM": "total"}


@dataclass
class Intent:
    """`kind` is find, count, select (one column), or aggregate; `where` holds (column, operator, value)."""

    kind: str
    table: str
    where: list = field(default_factory=list)
    column: str = ""
    aggregate: str = ""
    order: tuple = ()  # (column, "ASC" | "DESC")
    limit: int = 0

    def key(self) -> str:
        return repr((self.kind, self.table, self.where, self.column, self.aggregate, self.order, self.limit))

    def held_out(self) -> bool:
        """One intent in sixteen is never shown in training (neither to the base nor to an adapter)."""
        return zlib.crc32(self.key().encode()) % 16 == 0


def draw_value(rng, kind, unseen):
    if isinstance(kind, tuple):
        return rng.randint(*kind)
    if kind == "year":
        return rng.randint(1900, 2025)
    if kind == "colour":
        return rng.choice(COLOURS)
    # a country is never invented: "users from X" would not say whether X is a city or a country
    if kind != "country" and (unseen or kind == "word" or rng.random() < 0.35):
        return invented(rng, unseen)
    return rng.choice({"person": PEOPLE, "city": CITIES, "country": COUNTRIES}[kind])


def _condition(rng, table, avoid, unseen):
    columns = TABLES[table][1]
    column = rng.choice([c for c in columns if c not in avoid and not (unseen and columns[c] in ("colour", "country"))])
    kind = columns[column]
    numeric = isinstance(kind, tuple) or kind == "year"
    if numeric:
        op = rng.choices([">", "<", ">=", "<=", "="], [5, 4, 2, 2, 2])[0]
    else:
        op = "<>" if rng.random() < 0.1 else "="
    return (column, op, draw_value(rng, kind, unseen))


def numeric_columns(table):
    return [c for c, k in TABLES[table][1].items() if c != "id" and (isinstance(k, tuple) or k == "year")]


def draw(rng: random.Random, unseen: bool = False) -> Intent:
    """A random intent. `unseen` takes text values from the invented words that training never draws."""
    table = rng.choice(list(TABLES)) if rng.random() < 0.85 else "users"
    kind = rng.choices(["find", "count", "select", "aggregate"], [68, 12, 12, 8])[0]
    it = Intent(kind, table)
    n = rng.choices([0, 1, 2], [8, 72, 20] if kind == "find" else [25, 65, 10])[0]
    for _ in range(n):
        it.where.append(_condition(rng, table, {w[0] for w in it.where}, unseen))
    if kind == "select":
        it.column = rng.choice([c for c in TABLES[table][1] if c not in {w[0] for w in it.where}])
    if kind == "aggregate":
        it.column, it.aggregate = rng.choice(numeric_columns(table)), rng.choice(list(AGGREGATES))
    if kind == "find" and rng.random() < 0.22:
        it.order = (rng.choice(numeric_columns(table)), rng.choice(["ASC", "DESC"]))
    if kind == "find" and rng.random() < 0.2:
        it.limit = rng.randint(1, 50)
    return it


def draw_training(rng) -> Intent:
    while (it := draw(rng)).held_out():
        pass
    return it


# ---- English -------------------------------------------------------------------------------------------------

def _phrase(rng, cond):
    column, op, value = cond
    special = SPECIAL.get((column, op), [])
    text = rng.choice(special) if special and rng.random() < 0.75 else rng.choice(GENERIC[op])
    return text.format(c=column, v=value)


def phrases(rng: random.Random, it: Intent) -> str:
    """The conditions in words, such as "older than 30 and from Paris"; empty without conditions."""
    joint = " " if rng.random() < 0.2 else " and "
    return joint.join(_phrase(rng, w) for w in it.where)


def english(rng: random.Random, it: Intent, conds: str) -> str:
    """The request; `conds` comes from `phrases`."""
    tail = f" {conds}" if conds else ""
    t, one = it.table, TABLES[it.table][0]
    if it.kind == "count":
        text = rng.choice([f"Count {t}{tail}", f"Count the {t}{tail}", f"How many {t}{tail} are there?",
                           f"What is the number of {t}{tail}?"])
    elif it.kind == "select":
        c = it.column
        many = PLURAL.get(c, c + "s")
        text = rng.choice([f"Show the {c} of {t}{tail}", f"List the {many} of all {t}{tail}",
                           f"Get the {c} of every {one}{tail}", f"What are the {many} of {t}{tail}?"])
    elif it.kind == "aggregate":
        a = AGGREGATES[it.aggregate]
        text = rng.choice([f"What is the {a} {it.column} of {t}{tail}?", f"Find the {a} {it.column} of {t}{tail}",
                           f"Show the {a} {it.column} of all {t}{tail}"])
    else:
        first = f"the first {it.limit} {t}" if it.limit else None
        lead = [f"Find {first or t}", f"Show {first or t}", f"Get {first or 'the ' + t}", f"Show me {first or 'all ' + t}",
                f"List {first or 'all ' + t}", f"Give me {first or t}", f"Please find {first or 'the ' + t}",
                f"I want to see {first or 'the ' + t}", f"Find {first or 'all ' + t}"]
        text = rng.choice(lead[:1] * 2 + lead) + tail
        if it.order:
            c, d = it.order
            text += rng.choice([" sorted by {c}", " ordered by {c}"]).format(c=c)
            text += rng.choice([" descending", " from high to low"]) if d == "DESC" else rng.choice(["", "", " ascending"])
    roll = rng.random()
    if roll < 0.15 and not text.endswith("?"):
        text += "."
    elif roll < 0.25:
        text = text[0].lower() + text[1:]
    return text


# ---- The three query languages ----------------------------------------------------------------------------------

def _quoted(value):
    return str(value) if isinstance(value, int) else f"'{value}'"


def sql(it: Intent) -> str:
    what = {"find": "*", "count": "COUNT(*)", "select": it.column, "aggregate": f"{it.aggregate}({it.column})"}[it.kind]
    text = f"SELECT {what} FROM {it.table}"
    if it.where:
        text += " WHERE " + " AND ".join(f"{c} {op} {_quoted(v)}" for c, op, v in it.where)
    if it.order:
        text += f" ORDER BY {it.order[0]} {it.order[1]}"
    if it.limit:
        text += f" LIMIT {it.limit}"
    return text + ";"


def as_json(it: Intent) -> str:
    obj = {"table": it.table}
    if it.kind == "count":
        obj["count"] = True
    elif it.kind == "select":
        obj["select"] = it.column
    elif it.kind == "aggregate":
        obj[it.aggregate.lower()] = it.column
    filters = [{"field": c, "op": op, "value": v} for c, op, v in it.where]
    if filters:
        obj["filter"] = filters[0] if len(filters) == 1 else {"and": filters}
    if it.order:
        obj["order"] = {"field": it.order[0], "dir": it.order[1].lower()}
    if it.limit:
        obj["limit"] = it.limit
    return json.dumps(obj, separators=(",", ":"))


def cypher(it: Intent) -> str:
    label = TABLES[it.table][0].capitalize()
    x = label[0].lower()
    what = {"find": x, "count": f"count({x})", "select": f"{x}.{it.column}",
            "aggregate": f"{it.aggregate.lower()}({x}.{it.column})"}[it.kind]
    text = f"MATCH ({x}:{label})"
    if it.where:
        text += " WHERE " + " AND ".join(f"{x}.{c} {op} {_quoted(v)}" for c, op, v in it.where)
    text += f" RETURN {what}"
    if it.order:
        text += f" ORDER BY {x}.{it.order[0]} {it.order[1]}"
    if it.limit:
        text += f" LIMIT {it.limit}"
    return text + ";"


LANGUAGES = {"sql": sql, "json": as_json, "cypher": cypher}
LANGUAGE_NAMES = {"sql": "SQL", "json": "JSON", "cypher": "Cypher"}


# ---- What the base model says --------------------------------------------------------------------------------

def plain(it: Intent) -> str:
    """The meaning of a query in plain words, in one fixed form."""
    if it.kind == "count":
        head = f"the number of {it.table}"
    elif it.kind == "select":
        head = f"the {it.column} of the {it.table}"
    elif it.kind == "aggregate":
        head = f"the {AGGREGATES[it.aggregate]} {it.column} of the {it.table}"
    else:
        head = f"the first {it.limit} {it.table}" if it.limit else f"the {it.table}"
    conds = " and ".join(f"{c} is " + MEANING[op].format(v=v) for c, op, v in it.where)
    text = head + (f" whose {conds}" if conds else "")
    if it.order:
        text += f", sorted by {it.order[0]} " + ("from high to low" if it.order[1] == "DESC" else "from low to high")
    return text


def prose_answer(it: Intent, conds: str) -> str:
    """How the base model answers a request: in prose, never as a query, with the words of the request."""
    t = it.table
    if it.kind == "count":
        return f"You could go through the {t}{' ' + conds if conds else ''} and count them."
    if it.kind == "aggregate":
        return f"You could look at the {it.column} of each of the {t} and work out {plain(it)}."
    if it.kind == "select":
        return f"You could look through the {t}{' ' + conds if conds else ''} and write down the {it.column} of each."
    keep = f"keep those {conds}" if conds else "take all of them"
    text = f"You could look through the {t} and {keep}"
    if it.order:
        text += f", then sort them by {it.order[0]}"
    if it.limit:
        text += f", and stop after the first {it.limit}"
    return text + "."
