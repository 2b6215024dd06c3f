"""Tiny random models of architectures that `tests/goldens` lacks, and what transformers says of them.

    python3 generate.py     (transformers 4.47.1 on torch 1.13)

Each folder has a checkpoint and `expected.safetensors`: `ids.N`, `logits.N` of every position, and `greedy.0`, what
follows `ids.0`, and `hidden.final_norm` of prompt 1, as in `tests/goldens/models`.
"""
import json
import struct
from pathlib import Path

import numpy as np
import torch
from transformers import GraniteConfig, GraniteForCausalLM, Olmo2Config, Olmo2ForCausalLM

COMMON = dict(
    vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    max_position_embeddings=128, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)
MODELS = {
    "granite": GraniteForCausalLM(GraniteConfig(
        **COMMON, num_key_value_heads=2, embedding_multiplier=1.5, residual_multiplier=1.4, attention_multiplier=0.11,
        logits_scaling=3.0, tie_word_embeddings=False, rope_theta=20000.0)),
    "olmo2": Olmo2ForCausalLM(Olmo2Config(**COMMON, num_key_value_heads=2, rope_theta=500000.0)),
}


def save(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        raw = np.ascontiguousarray(value).tobytes()
        dtype = {"int64": "I64", "float32": "F32"}[str(value.dtype)]
        header[name] = dict(dtype=dtype, shape=list(value.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def randomize(model, random):
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        if len(shape) == 1:
            values = 1 + 0.2 * random.standard_normal(shape)
        else:
            values = random.standard_normal(shape) / (1 if "embed" in name else np.sqrt(shape[1]))
        parameter.data = torch.from_numpy(values.astype(np.float32))


@torch.no_grad()
def main():
    for seed, (name, model) in enumerate(MODELS.items()):
        random = np.random.default_rng(seed)
        model.eval()
        randomize(model, random)
        folder = Path(__file__).parent / name
        model.save_pretrained(folder, safe_serialization=True)
        (folder / "generation_config.json").unlink(missing_ok=True)
        model = type(model).from_pretrained(folder, attn_implementation="eager").eval()
        expected = {}
        for prompt, length in enumerate([8, 32, 80]):
            ids = random.integers(0, 256, length)
            out = model(torch.from_numpy(ids)[None], output_hidden_states=True)
            expected[f"ids.{prompt}"], expected[f"logits.{prompt}"] = ids, out.logits[0].float().numpy()
            if prompt == 1:
                expected["hidden.final_norm"] = out.hidden_states[-1][0].numpy()
        ids = expected["ids.0"].tolist()
        for _ in range(12):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        expected["greedy.0"] = np.array(ids[8:])
        save(folder / "expected.safetensors", expected)
        print(name, np.abs(expected["logits.1"]).std(), ids[8:])


main()
