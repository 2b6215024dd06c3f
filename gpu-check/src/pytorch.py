"""PyTorch's speed on a model of random weights in bf16: SHAPE eager|compiled. Each test prints a line of JSON with its tokens per
second. Eager: transformers with its growing cache. Compiled: a static cache and `torch.compile`, which captures graphs."""

import inspect
import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, StaticCache

PROMPT, GENERATE, REPETITIONS = 512, 128, 3


def llama(**sizes):
    return LlamaConfig(num_key_value_heads=8, max_position_embeddings=8192, rope_theta=5e5, **sizes)


SHAPES = {
    "qwen3-tiny": Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=8192, tie_word_embeddings=True,
    ),
    "qwen3-0.6b": Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, tie_word_embeddings=True,
    ),
    "llama-3.2-1b": llama(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        tie_word_embeddings=True,
    ),
    "llama-3-8b": llama(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        tie_word_embeddings=False,
    ),
}


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def best(device, work, tokens):
    rates = []
    for repetition in range(-1, REPETITIONS):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        if repetition >= 0:
            rates.append(tokens / (time.perf_counter() - start))
    return max(rates)


def eager(model, ids):
    def decode():
        token, cache = ids[:, :1], None
        for _ in range(GENERATE):
            out = model(input_ids=token, past_key_values=cache, use_cache=True)
            token, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values

    def prefill():
        model(input_ids=ids, use_cache=True, logits_to_keep=1)

    return decode, prefill


def compiled(model, ids):
    cache = StaticCache(config=model.config, max_cache_len=PROMPT + GENERATE)
    positions = torch.arange(PROMPT + GENERATE, device=ids.device)
    # Older transformers are told where the cache ends, newer ones know.
    told = "cache_position" in inspect.signature(model.forward).parameters

    def forward(tokens, at):
        more = {"cache_position": at} if told else {}
        out = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1, **more)
        return out.logits[:, -1].argmax(-1, keepdim=True)

    # The cache is made before anything is captured.
    forward(ids[:, :1], positions[:1])
    step = torch.compile(forward, mode="reduce-overhead", dynamic=False)

    def decode():
        cache.reset()
        token = ids[:, :1].clone()
        for at in range(GENERATE):
            torch.compiler.cudagraph_mark_step_begin()
            token = step(token, positions[at : at + 1]).clone()

    def prefill():
        cache.reset()
        torch.compiler.cudagraph_mark_step_begin()
        step(ids, positions[:PROMPT])

    return decode, prefill


@torch.no_grad()
def main():
    shape, way = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = AutoModelForCausalLM.from_config(SHAPES[shape]).eval()
        ids = torch.arange(3, 3 + PROMPT)[None] % model.config.vocab_size
    decode, prefill = (compiled if way == "compiled" else eager)(model, ids)
    for test, work, tokens in [(f"tg{GENERATE}", decode, GENERATE), (f"pp{PROMPT}", prefill, PROMPT)]:
        print(json.dumps({"test": test, "rate": best(device, work, tokens)}), flush=True)


main()
