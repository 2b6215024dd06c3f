"""Tokenizer training, the ChatML rendering, and packed batches."""

import os
import random
import sys

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import chat
import queries

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "build")
VOCAB = 2048
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END, START, STOP = range(3)
# the pre-tokenizer of Qwen2 (llama.cpp: LLAMA_VOCAB_PRE_TYPE_QWEN2)
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def train_tokenizer():
    r = random.Random(0)

    def lines():
        for _ in range(60000):
            for _, text in chat.conversation(r):
                yield text
        for _ in range(6000):
            it = queries.draw_training(r)
            yield from (f(it) for f in queries.LANGUAGES.values())
        yield from ["system\n", "user\n", "assistant\n"] * 2000

    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    os.makedirs(BUILD, exist_ok=True)
    tok.save(os.path.join(BUILD, "tokenizer.json"))
    return tok


def tokenizer():
    path = os.path.join(BUILD, "tokenizer.json")
    return Tokenizer.from_file(path) if os.path.exists(path) else train_tokenizer()


def render(messages, generate=False):
    """ChatML, as TEMPLATE renders it."""
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return text + ("<|im_start|>assistant\n" if generate else "")


def encode_conversations(tok, conversations, other_weight):
    """Token ids and loss weights: 1 on what the assistant says (with its <|im_end|>), `other_weight` elsewhere."""
    rendered = [render(c) for c in conversations]
    for ids in (e.ids for e in tok.encode_batch(rendered, add_special_tokens=False)):
        weights, speaking, assistant = [], False, tok.token_to_id("assistant")
        for i, t in enumerate(ids):
            weights.append(1.0 if speaking else other_weight)
            if t == STOP:
                speaking = False
            elif i >= 2 and ids[i - 2] == START and ids[i - 1] == assistant:
                speaking = True
        yield ids, weights


def batch(tok, make, seed, rows, length, other_weight):
    """Packs conversations from `make(rng)` into [rows, length + 1] ids, loss weights and document numbers."""
    r = random.Random(seed)
    ids, weights, docs, pending = [], [], [], []
    while len(ids) < rows:
        row, w, d, n = [], [], [], 0
        while len(row) < length + 1:
            if not pending:
                pending = list(encode_conversations(tok, [make(r) for _ in range(64)], other_weight))
            i, iw = pending.pop()
            row, w, d, n = row + i, w + iw, d + [n] * len(i), n + 1
        ids.append(row[:length + 1])
        weights.append(w[:length + 1])
        docs.append(d[:length + 1])
    ids, weights, docs = torch.tensor(ids), torch.tensor(weights), torch.tensor(docs)
    weights[:, 1:] *= docs[:, 1:] == docs[:, :-1]  # the first token of a document cannot be predicted
    return ids, weights, docs


def weighted_loss(model, ids, weights, docs):
    """Mean cross entropy of the next token under the loss weights, in bfloat16 activations."""
    h = model(ids[:, :-1], docs[:, :-1], None, torch.bfloat16)
    w = weights[:, 1:].reshape(-1)
    ce = torch.nn.functional.cross_entropy(model.logits(h).flatten(0, 1), ids[:, 1:].reshape(-1), reduction="none")
    return (ce * w).sum() / w.sum()


def compiled(f):
    """torch.compile where it exists (about 2x faster on a CPU); a plain function otherwise."""
    return torch.compile(f, dynamic=False) if hasattr(torch, "compile") and "--eager" not in sys.argv else f
