"""PyTorch's side of the comparison of chains: eager, on CUDA where the other side runs on a GPU, whatever its API, and PyTorch
has one, else on the CPU; each line that it reads is a job, as JSON, and is answered by a line with a JSON object: times, the
answer and the device, or an error."""

import json
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

SIZES = "rows", "width", "inner", "heads", "kv_heads", "head_dim", "scores"
rows = width = inner = heads = kv_heads = head_dim = scores = 0
device = "cpu"


def tensor(seed, count, columns, spread):
    """Every side makes the same numbers."""
    at = (np.arange(count * columns, dtype=np.uint64) + seed * 1_000_003) & 0xFFFFFFFF
    hashes = (at * 2_654_435_761) & 0xFFFFFFFF
    values = ((hashes >> 8).astype(np.float32) / np.float32(1 << 23) - np.float32(1)) * np.float32(spread)
    return torch.from_numpy(values.reshape(count, columns)).to(device)


def activations(seed, columns):
    """Rows come again after 64."""
    return tensor(seed, 64, columns, 1.7)[torch.arange(rows, device=device) % 64]


def matrix(seed, n, k):
    return tensor(seed, n, k, np.sqrt(np.float32(3) / np.float32(k)))


def norm(x, gain):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * gain


def add_multiply():
    a, b, c = (activations(seed, width) for seed in (1, 2, 3))
    return lambda: (a + b) * c


def normed():
    x, gain = activations(1, width), tensor(2, 1, width, 1.0)
    return lambda: norm(x, gain)


def softmax():
    x = activations(1, scores)
    return lambda: torch.softmax(x * 4.0, -1)


def rotary():
    x = activations(1, heads * head_dim).view(rows, heads, head_dim)
    half = head_dim // 2
    frequencies = 1e4 ** (-2 * torch.arange(half, dtype=torch.float64) / head_dim)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
    cos, sin = (f(angles).float().repeat(1, 2)[:, None].to(device) for f in (torch.cos, torch.sin))

    def run():
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return (x * cos + turned * sin).view(rows, heads * head_dim)

    return run


def matmul():
    x, w = activations(1, width), matrix(2, inner, width)
    return lambda: F.linear(x, w)


def matmul_add_gelu():
    x, w, bias = activations(1, width), matrix(2, inner, width), tensor(3, 1, inner, 1.0)[0]
    return lambda: F.gelu(F.linear(x, w, bias))


def norm_gate_up_silu():
    x, gain = activations(1, width), tensor(2, 1, width, 1.0)
    gate, up = matrix(3, inner, width), matrix(4, inner, width)

    def run():
        normed = norm(x, gain)
        return F.silu(F.linear(normed, gate)) * F.linear(normed, up)

    return run


def attention():
    q = activations(1, heads * head_dim).view(1, rows, heads, head_dim).transpose(1, 2)
    k, v = (activations(s, kv_heads * head_dim).view(1, rows, kv_heads, head_dim).transpose(1, 2) for s in (2, 3))

    def run():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(rows, heads * head_dim)

    return run


CHAINS = {
    "add-multiply": add_multiply,
    "norm": normed,
    "softmax": softmax,
    "rotary": rotary,
    "matmul": matmul,
    "matmul-add-gelu": matmul_add_gelu,
    "norm-gate-up-silu": norm_gate_up_silu,
    "attention": attention,
}


def answer(job):
    globals().update({size: job[size] for size in SIZES})
    globals()["device"] = "cuda" if job["gpu"] and torch.cuda.is_available() else "cpu"
    torch.set_num_threads(job["threads"])
    torch.backends.cuda.matmul.allow_tf32 = False
    chain = CHAINS[job["chain"]]()

    def times(seconds):
        start, each = time.perf_counter(), []
        while time.perf_counter() - start < seconds:
            one = time.perf_counter()
            chain()[-1].cpu()
            each.append(time.perf_counter() - one)
        return each

    row = chain()[-1].cpu()
    times(job["warm_up"])
    return {"seconds": times(job["timed"]), "answer": row.tolist(), "device": device}


@torch.inference_mode()
def main():
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:
            # Other chains may do.
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), flush=True)


main()
