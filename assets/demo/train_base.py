"""Trains the base model: `python train_base.py [--eager]`. Restarts from build/base.pt.

Matrices by Muon (https://kellerjordan.github.io/posts/muon/), embeddings and norms by Adam. Each step draws its batch
from its own seed, so a restarted run sees the same data as an uninterrupted one.
"""

import argparse
import os
import time

import torch

from chat import conversation
from model import Config, Qwen3
from text import BUILD, batch, compiled, tokenizer, weighted_loss

LONG = (2, 3, 4, 6, 8, 10, 14)  # turns per conversation in the last tenth of a cycle, at three times the length
CYCLES = [(600, 1.0), (500, 0.5)]  # steps and peak of the learning rate; each cycle warms up, holds, and decays to zero


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised by a Newton-Schulz iteration."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            by_shape = {}
            for p in g["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - g["momentum"])
                by_shape.setdefault(p.shape, []).append((p, p.grad.lerp(m, g["momentum"])))
            for shape, items in by_shape.items():
                u = orthogonal(torch.stack([x for _, x in items])).float() * max(1, shape[0] / shape[1]) ** 0.5
                for (p, _), x in zip(items, u):
                    p.mul_(1 - g["lr"] * g["weight_decay"]).sub_(x, alpha=g["lr"])


def orthogonal(x, steps=5):
    """Newton-Schulz iteration of degree five; x is [N, rows, columns]."""
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(steps):
        s = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * (s @ s)) @ x
    return x.transpose(1, 2) if tall else x


def schedule():
    """(learning rate factor, whether the batch is of long conversations) of every step."""
    for n, peak in CYCLES:
        for i in range(n):
            yield peak * min(1.0, (i + 1) / 40, (n - i) / (0.6 * n)), i >= 0.9 * n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--eager", action="store_true")
    ap.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    tok = tokenizer()
    config = Config(vocab=tok.get_vocab_size())
    model = Qwen3(config)
    matrices = [m.weight for _, m in model.linears()]
    ids = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in ids]
    opts = [Muon(matrices, lr=0.02), torch.optim.Adam(rest, lr=0.004, betas=(0.9, 0.98), eps=1e-10)]
    rates = [0.02, 0.004]
    path, start = os.path.join(BUILD, "base.pt"), 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        for o, s in zip(opts, state["opts"]):
            o.load_state_dict(s)
        start = state["step"]
    loss_of = compiled(lambda i, w, d: weighted_loss(model, i, w, d))

    def save(step):
        torch.save({"model": model.state_dict(), "opts": [o.state_dict() for o in opts], "step": step,
                    "config": config.to_dict()}, path + ".new")
        os.replace(path + ".new", path)

    t0 = time.time()
    plan = list(schedule())
    for step in range(start, len(plan)):
        factor, long = plan[step]
        make = (lambda r: conversation(r, LONG)) if long else conversation
        data = batch(tok, make, 1_000_003 + step, 10 if long else 32, 768 if long else 256, 0.15)
        loss = loss_of(*data)
        for o in opts:
            o.zero_grad(set_to_none=True)
        loss.backward()
        for o, rate in zip(opts, rates):
            o.param_groups[0]["lr"] = rate * factor
            o.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - t0:.0f}s", flush=True)
        if step % 100 == 99:
            save(step + 1)
    save(len(plan))


if __name__ == "__main__":
    main()
