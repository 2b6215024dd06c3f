"""PyTorch's speed on models of random weights in bf16, and that of their products alone. The argument is a JSON object: the way
(eager, compiled or matmul), the tests (pairs of a shape and `tg128`, `pp512`, ...) and the sizes of square products. Each
finding is a line of JSON with the device that it is of, as soon as it is known. Eager: transformers with its growing cache.
Compiled: a static cache and `torch.compile`, which captures graphs."""

import inspect
import json
import sys
import time

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, StaticCache

# Repetitions, and the seconds after which there are no more.
REPETITIONS, ENOUGH = 3, 2.0
# Tokens that are decoded before any are timed.
WARM_UP = 8
# Seconds for which products are repeated between two looks at the clock.
REPEATED = 0.05


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


def tell(device, **finding):
    print(json.dumps({"device": device.type, **finding}), flush=True)


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(device, work):
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def best(device, work, warm_up):
    """Seconds of the fastest repetition; the warm-up comes thrice, since graphs are captured after the first."""
    for _ in range(3):
        warm_up()
    took = []
    while len(took) < REPETITIONS and sum(took) < ENOUGH:
        took.append(timed(device, work))
    return min(took)


def eager(model, ids):
    def decode(count):
        token, cache = ids[:, :1], None
        for _ in range(count):
            out = model(input_ids=token, past_key_values=cache, use_cache=True)
            token, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values

    def prefill():
        model(input_ids=ids, use_cache=True, logits_to_keep=1)

    return decode, prefill


def compiled(model, ids):
    count = ids.shape[1]
    cache = StaticCache(config=model.config, max_cache_len=count)
    positions = torch.arange(count, device=ids.device)
    # Older transformers are told where the cache ends, newer ones know.
    told = "cache_position" in inspect.signature(model.forward).parameters

    def forward(tokens, at):
        more = {"cache_position": at} if told else {}
        out = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1, **more)
        return out.logits[:, -1].argmax(-1, keepdim=True)

    # The cache is made before anything is captured.
    forward(ids[:, :1], positions[:1])
    step = torch.compile(forward, mode="reduce-overhead", dynamic=False)

    def decode(count):
        cache.reset()
        token = ids[:, :1].clone()
        for at in range(count):
            torch.compiler.cudagraph_mark_step_begin()
            token = step(token, positions[at : at + 1]).clone()

    def prefill():
        cache.reset()
        torch.compiler.cudagraph_mark_step_begin()
        step(ids, positions)

    return decode, prefill


def speed(way, model, test, device):
    """Tokens per second."""
    kind, count = test[:2], int(test[2:])
    ids = torch.arange(3, 3 + count, device=device)[None] % model.config.vocab_size
    # What was compiled for other lengths would count against the limit of compilations.
    torch.compiler.reset()
    decode, prefill = (compiled if way == "compiled" else eager)(model, ids)
    if kind == "tg":
        seconds = best(device, lambda: decode(count), lambda: decode(min(count, WARM_UP)))
    else:
        seconds = best(device, prefill, prefill)
    return count / seconds


def models(way, tests, device):
    made = {}
    for shape, test in tests:
        try:
            if shape not in made:
                with device:
                    made[shape] = AutoModelForCausalLM.from_config(SHAPES[shape]).eval()
            tell(device, shape=shape, test=test, rate=speed(way, made[shape], test, device))
        except Exception as error:
            tell(device, shape=shape, test=test, error=f"{type(error).__name__}: {error}"[:300])


def repeated(device, work):
    """Seconds of a work that is too short to be timed alone."""

    def many():
        for _ in range(times):
            work()

    work()
    times = 1
    while timed(device, many) < REPEATED:
        times *= 2
    return min(timed(device, many) for _ in range(REPETITIONS)) / times


def products(config):
    """Outputs and inputs of a layer's products, those of one input merged."""
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    lanes = getattr(config, "head_dim", None) or hidden // heads
    own, shared = heads * lanes, config.num_key_value_heads * lanes
    return [(own + 2 * shared, hidden), (hidden, own), (2 * inner, hidden), (hidden, inner)]


def square(size, device):
    x, w = (torch.randn(size, size, device=device) for _ in range(2))
    return {"operations": 2 * size**3 / repeated(device, lambda: F.linear(x, w))}


def layer(shape, rows, device):
    config = SHAPES[shape]
    pairs = [
        (torch.randn(rows, k, device=device), torch.randn(n, k, device=device))
        for n, k in products(config)
    ]

    def work():
        for x, w in pairs:
            F.linear(x, w)

    seconds = repeated(device, work)
    operations = 2 * rows * sum(n * k for n, k in products(config)) / seconds
    return {"operations": operations, "rate": rows / seconds / config.num_hidden_layers}


def matmul(tests, squares, device):
    """Each by itself: one that fails leaves the others."""
    work = [({"test": f"matmul {size}"}, lambda size=size: square(size, device)) for size in squares]
    for shape, test in tests:
        what = {"shape": shape, "test": test}
        work.append((what, lambda s=shape, rows=int(test[2:]): layer(s, rows, device)))
    for what, measure in work:
        try:
            tell(device, **what, **measure())
        except Exception as error:
            tell(device, **what, error=f"{type(error).__name__}: {error}"[:300])


@torch.no_grad()
def main():
    job = json.loads(sys.argv[1])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_default_dtype(torch.bfloat16)
    if job["way"] == "matmul":
        matmul(job["tests"], job["squares"], device)
    else:
        models(job["way"], job["tests"], device)


main()
