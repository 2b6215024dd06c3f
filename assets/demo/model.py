"""Qwen3 in plain PyTorch, with LoRA on every linear layer.

Qwen3 (arXiv:2505.09388): pre-norm blocks, grouped-query attention with an RMSNorm per head on queries and keys
before half-split RoPE, SwiGLU, tied embeddings, no biases. Parameter names are those of Hugging Face checkpoints
(`model.layers.N.self_attn.q_proj.weight`, ...). LoRA: arXiv:2106.09685.
"""

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


@dataclass
class Config:
    vocab: int = 2048
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 768
    rope_theta: float = 10000.0
    rms_eps: float = 1e-6
    context: int = 1024

    def to_dict(self):
        return asdict(self)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight.to(x.dtype)


class Linear(nn.Module):
    """y = x W^T, plus (alpha / r) * (x A^T) B^T when LoRA is attached."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        nn.init.normal_(self.weight, std=0.5 / math.sqrt(n_in))
        self.lora_A = self.lora_B = None
        self.scale = 0.0

    def attach(self, rank, alpha):
        self.lora_A = nn.Parameter(torch.randn(rank, self.weight.shape[1]) / math.sqrt(self.weight.shape[1]))
        self.lora_B = nn.Parameter(torch.zeros(self.weight.shape[0], rank))
        self.scale = alpha / rank

    def forward(self, x):
        y = x @ self.weight.to(x.dtype).t()
        if self.lora_A is not None:
            y = y + (x @ self.lora_A.to(x.dtype).t()) @ self.lora_B.to(x.dtype).t() * self.scale
        return y


def rope(x, cos, sin):
    """Half-split rotation; x is [B, H, T, D], cos and sin are [T, D / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.q_proj = Linear(c.hidden, c.heads * c.head_dim)
        self.k_proj = Linear(c.hidden, c.kv_heads * c.head_dim)
        self.v_proj = Linear(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = Linear(c.heads * c.head_dim, c.hidden)
        self.q_norm = RMSNorm(c.head_dim, c.rms_eps)
        self.k_norm = RMSNorm(c.head_dim, c.rms_eps)

    def forward(self, x, cos, sin, mask, past):
        b, t, _ = x.shape
        c = self.c
        q = rope(self.q_norm(self.q_proj(x).view(b, t, c.heads, c.head_dim)).transpose(1, 2), cos, sin)
        k = rope(self.k_norm(self.k_proj(x).view(b, t, c.kv_heads, c.head_dim)).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2)
        if past is not None:
            if "k" in past:
                k, v = torch.cat((past["k"], k), 2), torch.cat((past["v"], v), 2)
            past["k"], past["v"] = k, v
        group = c.heads // c.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        s = (q * c.head_dim**-0.5) @ k.transpose(2, 3)
        p = torch.softmax(s + mask, dim=-1)
        return self.o_proj((p @ v).transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate_proj = Linear(c.hidden, c.ffn)
        self.up_proj = Linear(c.hidden, c.ffn)
        self.down_proj = Linear(c.ffn, c.hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden, c.rms_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.rms_eps)
        self.mlp = Mlp(c)

    def forward(self, x, cos, sin, mask, past):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden, c.rms_eps)


class Qwen3(nn.Module):
    """`forward` gives the final hidden states [B, T, hidden]; `logits` applies the tied output matrix."""

    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.model = Trunk(c)
        inv = c.rope_theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float32) / c.head_dim)
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, ids, doc=None, past=None, dtype=torch.float32):
        """`doc` [B, T] numbers the packed documents (no attention across them); `past` is a list of dicts (KV cache)."""
        b, t = ids.shape
        start = past[0]["k"].shape[2] if past and "k" in past[0] else 0
        angle = torch.outer(torch.arange(start, start + t, dtype=torch.float32), self.inv_freq)
        seen = torch.ones(t, start + t, dtype=torch.bool).tril(start)[None, None]
        if doc is not None:
            seen = seen & (doc[:, None, :, None] == doc[:, None, None, :])
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -1e9)
        x = self.model.embed_tokens(ids).to(dtype)
        for i, block in enumerate(self.model.layers):
            x = block(x, angle.cos().to(dtype), angle.sin().to(dtype), mask, past[i] if past else None)
        return self.model.norm(x)

    def logits(self, h):
        return (h @ self.model.embed_tokens.weight.to(h.dtype).t()).float()

    def linears(self):
        """(name, module) of every linear layer, in the order of the layers."""
        for i, block in enumerate(self.model.layers):
            for name in LINEARS:
                yield f"model.layers.{i}.{name}", block.get_submodule(name)

    def attach_lora(self, rank, alpha):
        for p in self.parameters():
            p.requires_grad_(False)
        for _, m in self.linears():
            m.attach(rank, alpha)

    def lora_parameters(self):
        return [p for _, m in self.linears() for p in (m.lora_A, m.lora_B)]


@torch.no_grad()
def greedy(model, prompts, n, stop, dtype=torch.float32):
    """Greedy decoding of several prompts of equal length; returns the generated ids of each, without the stop token."""
    past = [{} for _ in range(model.c.layers)]
    ids = torch.tensor(prompts)
    out, done = [[] for _ in prompts], [False] * len(prompts)
    for _ in range(n):
        nxt = model.logits(model(ids, past=past, dtype=dtype)[:, -1]).argmax(-1)
        for i, tok in enumerate(nxt.tolist()):
            done[i] = done[i] or tok == stop
            if not done[i]:
                out[i].append(tok)
        if all(done):
            break
        ids = nxt[:, None]
    return out
