"""Measures what is shipped: `python evaluate.py [--n N] [--no-write]`.

Decodes greedily in float32, and writes the accuracy table into README.md and the reference decodings into expected.json.
"""

import argparse
import json
import os
import random
from collections import defaultdict

import torch

import chat
import queries
import records
from model import greedy
from shipped import load, set_adapter
from text import HERE, STOP, render

PROMPTS = [(None, "Who are you?"), (None, "Find users older than 30"), (None, "What is the capital of France?"),
           (None, "Tell me a story about a fox."), ("sql", "Find users older than 30"),
           ("sql", "Count the products cheaper than 125"), ("sql", "Count orders per customer"),
           ("json", "Find users older than 30"), ("json", "Turn name Bob, age 41 into JSON"),
           ("json", "Give me this address as a JSON object: 5 Elm Street, Bern"), ("cypher", "Find users older than 30"),
           ("cypher", "Show the name of pets owned by Rosa"), ("cypher", "MATCH all people who know Alice")]
TITLES = {"sql": "SQL", "json": "JSON", "cypher": "Cypher"}


def answers(model, tok, conversations, n=96, rows=64):
    """Greedy answers, in the order given; prompts of equal length are decoded together."""
    groups, out = defaultdict(list), [None] * len(conversations)
    for i, c in enumerate(conversations):
        ids = tok.encode(render(c, generate=True), add_special_tokens=False).ids
        groups[len(ids)].append((i, ids))
    for items in groups.values():
        for at in range(0, len(items), rows):
            part = items[at:at + rows]
            for (i, _), ids in zip(part, greedy(model, [p for _, p in part], n, STOP)):
                out[i] = tok.decode(ids)
    return out


def requests(n, seed, unseen):
    """`n` (English, intent) pairs whose intents were never trained on, or whose names are invented and never trained on."""
    r, out = random.Random(seed), []
    while len(out) < n:
        it = queries.draw(r, unseen)
        text_values = any(isinstance(v, str) and c != "country" and v.lower() != v for c, _, v in it.where)
        if text_values if unseen else it.held_out():
            out.append((queries.english(r, it, queries.phrases(r, it)), it))
    return out


def own_task(language, n, seed):
    """`n` (conversation, answer) pairs of records.py, with names that were never trained on."""
    r = random.Random(seed)
    return [([("user", q)], a) for q, a in (records.example(r, language, True) for _ in range(n))]


def accuracy(model, tok, pairs):
    """Share of exact matches over (conversation, expected answer)."""
    got = answers(model, tok, [c for c, _ in pairs])
    wrong = [(c[-1][1], g, e) for g, (c, e) in zip(got, pairs) if g != e]
    for w in wrong[:3]:
        print("   ", w)
    return 1 - len(wrong) / len(pairs)


def chat_sets(n):
    """Held-out conversations per skill whose answers have one right form; `reading` and `introduce` are copied in context."""
    r = random.Random(99)
    skills = {"facts": [chat.capital, chat.animal, chat.cast, chat.job, chat.colour, chat.town], "definitions": [chat.definition],
              "how-to": [chat.howto], "arithmetic": [chat.arithmetic], "calendar and opposites": [chat.calendar, chat.opposite],
              "reading (answer is in the message)": [chat.reading], "repeating": [chat.repeat], "small talk": [chat.small]}
    for name, makers in skills.items():
        pairs = [r.choice(makers)(r) for _ in range(n)]
        yield name, [([("user", q)], a) for q, a in pairs]
    pairs = [c for c in (chat.introduce(r) for _ in range(4 * n)) if len(c) >= 4 and c[0][1] != c[-2][1]][:n]
    yield "remembering over turns", [(c[:-1], c[-1][1]) for c in pairs]


def table(model, tok, n):
    rows = ["| adapter | base, held-out | with adapter, held-out | with adapter, unseen names | with adapter, own task |",
            "|---|---|---|---|---|"]
    sets = [requests(n, 11, False), requests(n, 12, True)]
    for language, write in queries.LANGUAGES.items():
        plain, unseen = ([([("user", q)], write(it)) for q, it in s] for s in sets)
        set_adapter(model, None)
        base = accuracy(model, tok, plain)
        set_adapter(model, language)
        shares = " | ".join(f"{accuracy(model, tok, s):.1%}" for s in (plain, unseen, own_task(language, n, 13)))
        rows.append(f"| {TITLES[language]} | {base:.1%} | {shares} |")
        print(rows[-1], flush=True)
    set_adapter(model, None)
    rows += ["", "| base model, chat | exact match |", "|---|---|"]
    for name, pairs in chat_sets(n // 2):
        rows.append(f"| {name} | {accuracy(model, tok, pairs):.1%} |")
        print(rows[-1], flush=True)
    return "\n".join(rows)


def expected(model, tok, n=48):
    out = []
    for adapter, prompt in PROMPTS:
        set_adapter(model, adapter)
        ids = tok.encode(render([("user", prompt)], generate=True), add_special_tokens=False).ids
        generated = greedy(model, [ids], n, STOP)[0]
        logits = model.logits(model(torch.tensor([ids + generated])))[0, len(ids) - 1:len(ids) - 1 + min(n, len(generated) + 1)]
        best = logits.topk(2, dim=-1).values
        out.append({"adapter": adapter, "prompt": prompt, "max_tokens": n, "prompt_ids": ids, "generated_ids": generated,
                    "stopped": len(generated) < n, "least_margin": round((best[:, 0] - best[:, 1]).min().item(), 3), "text": tok.decode(generated)})
        print(adapter, "|", prompt, "|", out[-1]["text"])
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--n", type=int, default=1000)
    ap.add_argument("--no-write", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(2)
    with torch.no_grad():
        model, tok = load()
        cases = expected(model, tok)
        measured = table(model, tok, args.n)
    if args.no_write:
        return
    with open(os.path.join(HERE, "expected.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    path = os.path.join(HERE, "README.md")
    with open(path) as f:
        readme = f.read()
    begin, end = "<!-- measured by evaluate.py -->\n", "<!-- end -->"
    head, rest = readme.split(begin)
    with open(path, "w") as f:
        f.write(head + begin + measured + "\n" + end + rest.split(end, 1)[1])


if __name__ == "__main__":
    main()
