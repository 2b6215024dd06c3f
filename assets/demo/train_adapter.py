"""Trains one LoRA adapter on model.gguf: `python train_adapter.py sql|json|cypher [--steps N] [--eager]`.

One example in ten is ordinary chat, so that "Hello!" still gets a greeting; the others are requests answered in the
adapter's language, a quarter of them from records.py. Loss on the assistant's tokens only.
"""

import argparse
import os
import random
import time

import torch

import queries
import records
from chat import SYSTEMS, pair
from shipped import load
from text import BUILD, batch, compiled, weighted_loss

RANK, ALPHA = 16, 32
CHAT = ("request", "explain")


def example(language):
    """A maker of conversations for `batch`: one or two turns, mostly requests answered in `language`."""
    write = queries.LANGUAGES[language]

    def make(r: random.Random):
        out = [("system", r.choice(SYSTEMS))] if r.random() < 0.15 else []
        for _ in range(2 if r.random() < 0.1 else 1):
            roll = r.random()
            if roll < 0.1:
                out += pair(r, leave_out=CHAT)
            elif roll < 0.325:
                request, answer = records.example(r, language)
                out += [("user", request), ("assistant", answer)]
            else:
                it = queries.draw_training(r)
                out += [("user", queries.english(r, it, queries.phrases(r, it))), ("assistant", write(it))]
        return out

    return make


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("language", choices=list(queries.LANGUAGES))
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--eager", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(2)
    os.makedirs(BUILD, exist_ok=True)
    model, tok = load()
    model.attach_lora(RANK, ALPHA)
    params = model.lora_parameters()
    opt = torch.optim.AdamW(params, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
    path, start = os.path.join(BUILD, f"{args.language}.pt"), 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["lora"], strict=False)
        opt.load_state_dict(state["opt"])
        start = state["step"]
    loss_of = compiled(lambda i, w, d: weighted_loss(model, i, w, d))
    make = example(args.language)

    def save(step):
        lora = {k: v for k, v in model.state_dict().items() if "lora_" in k}
        torch.save({"lora": lora, "opt": opt.state_dict(), "step": step}, path)

    t0 = time.time()
    for step in range(start, args.steps):
        loss = loss_of(*batch(tok, make, 7_000_003 + step, 24, 256, 0.0))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        for g in opt.param_groups:
            g["lr"] = 3e-3 * min(1.0, (step + 1) / 20, (args.steps - step) / (0.7 * args.steps))
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if step % 20 == 0:
            print(f"{args.language} step {step} loss {loss.item():.5f} {time.time() - t0:.0f}s", flush=True)
        if step % 200 == 199:
            save(step + 1)
    save(args.steps)


if __name__ == "__main__":
    main()
