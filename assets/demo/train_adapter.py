"""Trains one LoRA adapter on the base of build/base.pt: `python train_adapter.py sql|json|cypher [--steps N] [--eager]`.

Nine in ten examples are requests answered in the adapter's language; one in ten is ordinary chat, so that "Hello!" still
gets a greeting. Loss on the assistant's tokens only.
"""

import argparse
import os
import random
import time

import torch

import queries
from chat import SYSTEMS, pair
from model import Config, Qwen3
from text import BUILD, batch, compiled, tokenizer, weighted_loss

RANK, ALPHA = 16, 32
CHAT = ("request", "explain")


def example(language):
    """A maker of conversations for `batch`: one or two turns, mostly requests answered in `language`."""
    write = queries.LANGUAGES[language]

    def make(r: random.Random):
        out = [("system", r.choice(SYSTEMS))] if r.random() < 0.15 else []
        for _ in range(2 if r.random() < 0.1 else 1):
            if r.random() < 0.1:
                out += pair(r, leave_out=CHAT)
            else:
                it = queries.draw_training(r)
                out += [("user", queries.english(r, it, queries.phrases(r, it))), ("assistant", write(it))]
        return out

    return make


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("language", choices=list(queries.LANGUAGES))
    ap.add_argument("--steps", type=int, default=220)
    ap.add_argument("--eager", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(2)
    tok = tokenizer()
    state = torch.load(os.path.join(BUILD, "base.pt"))
    model = Qwen3(Config(**state["config"]))
    model.load_state_dict(state["model"])
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
