"""PyTorch's side of a comparison: transformers, eager, on the CPU; one job, given as JSON in the first argument; prints one
JSON object. Weights are random: PyTorch reads no GGUF. Where answers are compared it writes its model for the other side."""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

SHAPES = {
    "qwen3-0.6b": Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, tie_word_embeddings=True,
    ),
    "llama-3.2-1b": LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=131072, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling={
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
}
TYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def answer(model, job):
    """Logits of the last token, which is a step of its own; the model becomes a checkpoint in the job's folder."""
    model.save_pretrained(job["file"])
    ids = torch.tensor([job["tokens"]])
    out = model(input_ids=ids[:, :-1], use_cache=True)
    out = model(input_ids=ids[:, -1:], past_key_values=out.past_key_values, use_cache=True)
    return {"logits": out.logits[0, -1].float().tolist()}


def speed(model, job):
    """Tokens per second, by repetition, and bytes of the weights that each token reads."""
    rates = []
    for repetition in range(-1, job["repetitions"]):
        ids = torch.arange(3, 3 + max(job["prompt"], 1))[None]
        start = time.perf_counter()
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        if not job["prompt"]:
            start = time.perf_counter()
            for _ in range(job["generate"]):
                ids = out.logits[:, -1].argmax(-1, keepdim=True)
                out = model(input_ids=ids, past_key_values=out.past_key_values, use_cache=True)
        seconds = time.perf_counter() - start
        if repetition >= 0:
            rates.append(max(job["prompt"], job["generate"]) / seconds)
    # A table that is the head, too, is among them once.
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"samples": rates, "bytes": weights}


@torch.inference_mode()
def main():
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    torch.set_default_dtype(TYPES[job["format"]])
    model = AutoModelForCausalLM.from_config(SHAPES[job["shape"]]).eval()
    print(json.dumps({"answer": answer, "speed": speed}[job["kind"]](model, job)))


main()
