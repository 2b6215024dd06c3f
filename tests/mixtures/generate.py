"""Which format `llama-quantize` gives each matrix, by mixture: writes llama-quantize.txt.

    python3 generate.py   (numpy, gguf-0.19.0, llama_cpp_python-0.3.36)

Each line: query heads per key head, experts, layers, mixture, its number as a type of file, matrix, and its format in each
layer, or in all.
"""
import ctypes
import os
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

WIDTH, INNER, HEADS, VOCAB = 256, 512, 8, 512
MIXTURES = dict(
    q4_0=2, q4_1=3, q5_0=8, q5_1=9, q8_0=7, q2_k=10, q3_k_s=11, q3_k_m=12, q3_k_l=13, q4_k_s=14, q4_k_m=15, q5_k_s=16,
    q5_k_m=17, q6_k=18, iq4_nl=25, iq4_xs=30, tq1_0=36, tq2_0=37, mxfp4_moe=38,
)


def model(path, arch, layers, kv_heads, experts):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    random = np.random.default_rng(0)
    add = lambda name, *shape: writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    add("token_embd.weight", VOCAB, WIDTH)
    add("output.weight", VOCAB, WIDTH)
    add("output_norm.weight", WIDTH)
    kv = WIDTH // HEADS * kv_heads
    if arch == "phi3":
        writer.add_rope_dimension_count(WIDTH // HEADS)
        writer.add_uint32("phi3.rope.scaling.original_context_length", 128)
    for i in range(layers):
        for norm in ["attn_norm", "ffn_norm"]:
            add(f"blk.{i}.{norm}.weight", WIDTH)
        split, fused = dict(attn_q=WIDTH, attn_k=kv, attn_v=kv), dict(attn_qkv=WIDTH + 2 * kv)
        for name, rows in ((fused if arch == "phi3" else split) | dict(attn_output=WIDTH)).items():
            add(f"blk.{i}.{name}.weight", rows, WIDTH)
        for name, shape in dict(ffn_gate=(INNER, WIDTH), ffn_up=(INNER, WIDTH), ffn_down=(WIDTH, INNER)).items():
            if experts:
                add(f"blk.{i}.{name}_exps.weight", experts, *shape)
            else:
                add(f"blk.{i}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantized(source, out, file_type):
    wanted = llama_cpp.llama_model_quantize_default_params()
    wanted.ftype, wanted.nthread = file_type, os.cpu_count()
    if llama_cpp.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(wanted)):
        raise SystemExit(f"llama-quantize refuses {file_type}")
    formats = {}
    for tensor in gguf.GGUFReader(out).tensors:
        if len(tensor.shape) > 1:
            parts = tensor.name.split(".")
            role = parts[2] if parts[0] == "blk" else parts[0]
            # Tensors are in the order of their layers.
            formats.setdefault(role, []).append(tensor.tensor_type.name.lower())
    return formats


with tempfile.TemporaryDirectory() as folder:
    source, out = f"{folder}/floats.gguf", f"{folder}/out.gguf"
    lines = ["# generate.py wrote this from the choices of llama.cpp (llama_cpp_python 0.3.36)."]
    for arch, layers, kv_heads, experts in [
        ("llama", 16, 2, 0), ("llama", 16, 4, 0), ("llama", 80, 1, 0), ("llama", 80, 8, 0), ("phi3", 16, 4, 0), ("llama", 16, 2, 4),
        ("llama", 16, 2, 8),
    ]:
        model(source, arch, layers, kv_heads, experts)
        for name, file_type in MIXTURES.items():
            for role, formats in quantized(source, out, file_type).items():
                assert len(formats) in (1, layers)
                shape = f"{HEADS // kv_heads} {experts} {layers}"
                # What all layers share is written once.
                formats = formats[:1] if len(set(formats)) == 1 else formats
                lines.append(f"{shape} {name} {file_type} {role} {','.join(formats)}")
Path(__file__).with_name("llama-quantize.txt").write_text("\n".join(lines) + "\n")
