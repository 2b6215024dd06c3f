"""PyTorch's speed on a model of random weights in bf16: SHAPE eager|compiled. The last line is JSON: tokens per second by
test. Eager: transformers with its growing cache. Compiled: a static cache and `torch.compile`, which captures graphs."""

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


def eager(model, ids, device):
    def prefill():
        model(input_ids=ids, use_cache=True, logits_to_keep=1)

    first = model(input_ids=ids[:, :1], use_cache=True)

    def decode():
        out = first
        out.past_key_values.crop(1)
        for _ in range(GENERATE):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)

    return prefill, decode


def compiled(model, ids, device):
    cache = StaticCache(config=model.config, max_cache_len=PROMPT + GENERATE)
    step = torch.compile(
        lambda token, position: model(
            input_ids=token, cache_position=position, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits[:, -1].argmax(-1, keepdim=True),
        mode="reduce-overhead",
    )
    everywhere = torch.arange(ids.shape[1], device=device)

    def prefill():
        step(ids, everywhere)

    def decode():
        token = ids[:, :1].clone()
        for at in range(GENERATE):
            torch.compiler.cudagraph_mark_step_begin()
            token = step(token, everywhere[at : at + 1]).clone()

    return prefill, decode


@torch.inference_mode()
def main():
    shape, way = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = AutoModelForCausalLM.from_config(SHAPES[shape]).eval()
        ids = torch.arange(3, 3 + PROMPT)[None] % model.config.vocab_size
    prefill, decode = (compiled if way == "compiled" else eager)(model, ids, device)
    rates = {f"tg{GENERATE}": best(device, decode, GENERATE), f"pp{PROMPT}": best(device, prefill, PROMPT)}
    print(json.dumps(rates))


main()
