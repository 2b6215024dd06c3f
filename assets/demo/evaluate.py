"""Measures what is shipped: `python evaluate.py [--n N] [--no-write]`.

Reads model.gguf (its Q8_0 weights dequantized) and the adapter folders, decodes greedily in float32, and writes the
accuracy table into README.md and the reference decodings into expected.json.
"""

import argparse
import json
import os
import random
from collections import defaultdict

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

import chat
import queries
from export import BLOCK
from model import Config, Qwen3, greedy
from text import HERE, QWEN2, STOP, render

NAMES = {v: k for k, v in BLOCK.items()}
PROMPTS = [(None, "Who are you?"), (None, "Find users older than 30"), (None, "What is the capital of France?"),
           (None, "Tell me a story about a fox."), ("sql", "Find users older than 30"),
           ("sql", "Count the products cheaper than 125"), ("json", "Find users older than 30"),
           ("cypher", "Find users older than 30"), ("cypher", "Show the name of pets owned by Rosa")]
TITLES = {"sql": "SQL", "json": "JSON", "cypher": "Cypher"}


def load(path=os.path.join(HERE, "model.gguf")):
    """The model (float32, from the dequantized file) and its tokenizer, both from the GGUF file alone."""
    reader = gguf.GGUFReader(path)
    get = lambda key: reader.fields[key].contents()
    config = Config(vocab=len(get("tokenizer.ggml.tokens")), hidden=get("qwen3.embedding_length"), layers=get("qwen3.block_count"),
                    heads=get("qwen3.attention.head_count"), kv_heads=get("qwen3.attention.head_count_kv"),
                    head_dim=get("qwen3.attention.key_length"), ffn=get("qwen3.feed_forward_length"),
                    rope_theta=get("qwen3.rope.freq_base"), rms_eps=get("qwen3.attention.layer_norm_rms_epsilon"))
    state = {}
    for t in reader.tensors:
        data = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        parts = t.name.split(".")
        name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}.get(parts[0])
        state[(name or f"model.layers.{parts[1]}.{NAMES[parts[2]]}") + ".weight"] = torch.from_numpy(data.copy())
    model = Qwen3(config)
    model.load_state_dict(state)
    tokens, merges = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.merges")
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([t for t, k in zip(tokens, get("tokenizer.ggml.token_type")) if k == gguf.TokenType.CONTROL])
    return model.eval(), tok


def set_adapter(model, language):
    """Puts the adapter folder's matrices into the model; None takes the adapter off."""
    if language is None:
        for _, m in model.linears():
            m.lora_A = m.lora_B = None
        return
    folder = os.path.join(HERE, "adapters", language)
    with open(os.path.join(folder, "adapter_config.json")) as f:
        config = json.load(f)
    weights = load_file(os.path.join(folder, "adapter_model.safetensors"))
    for name, m in model.linears():
        a, b = (torch.from_numpy(weights[f"base_model.model.{name}.lora_{x}.weight"].astype(np.float32)) for x in "AB")
        m.lora_A, m.lora_B = torch.nn.Parameter(a, False), torch.nn.Parameter(b, False)
        m.scale = config["lora_alpha"] / config["r"]


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
    rows = ["| adapter | base, held-out | with adapter, held-out | with adapter, unseen names |", "|---|---|---|---|"]
    sets = [requests(n, 11, False), requests(n, 12, True)]
    for language, write in queries.LANGUAGES.items():
        plain, unseen = ([([("user", q)], write(it)) for q, it in s] for s in sets)
        set_adapter(model, None)
        base = accuracy(model, tok, plain)
        set_adapter(model, language)
        with_adapter, with_unseen = accuracy(model, tok, plain), accuracy(model, tok, unseen)
        rows.append(f"| {TITLES[language]} | {base:.1%} | {with_adapter:.1%} | {with_unseen:.1%} |")
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
