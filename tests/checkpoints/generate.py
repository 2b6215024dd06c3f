"""Checkpoints in the quantized layouts of others, and their weights as the others' own code decodes them.

    /usr/bin/python3 generate.py PACKAGES   (torch, numpy; PACKAGES holds, unpacked, autoawq-0.2.9,
                                             auto_gptq-0.7.1, bitsandbytes-0.50.2 and ml_dtypes-0.5.4)

Every folder is a one-layer Qwen3 with the same random weights before quantization. `dequantized.safetensors`
beside it has each quantized module's weight `[out, in]` in single precision:

    awq           awq.utils.packing_utils.dequantize_gemm
    gptq*         auto_gptq.nn_modules.qlinear.qlinear_cuda.QuantLinear.forward of the identity
    fp8*          ml_dtypes.float8_e4m3fn, times scales
    nf4*          cdequantize_blockwise_cpu_nf4_fp32 of libbitsandbytes_cpu.so
"""
import ctypes
import importlib.util
import json
import re
import struct
import sys
import types
from pathlib import Path

import numpy as np
import torch

HERE, PACKAGES = Path(__file__).parent, Path(sys.argv[1])
HIDDEN, INNER, HEADS, KV, HEAD = 128, 256, 4, 2, 32
CONFIG = dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=HIDDEN, intermediate_size=INNER,
    num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=HEAD, vocab_size=256,
    max_position_embeddings=128, rms_norm_eps=1e-6, hidden_act="silu", rope_theta=1e6, tie_word_embeddings=True,
    attention_bias=False, torch_dtype="float16",
)
MODULES = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV * HEAD, HIDDEN),
    "self_attn.v_proj": (KV * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
}
DTYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "uint8": "U8", "float8_e4m3fn": "F8_E4M3"}


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    # Indices of older releases of torch are 64 bits wide.
    source = path.read_text().replace("dtype=torch.int32,\n        device=izeros.device", "dtype=torch.int64")
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def save(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        raw = np.ascontiguousarray(value).tobytes()
        header[name] = dict(dtype=DTYPES[str(value.dtype)], shape=list(value.shape),
                            data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def plain(random):
    norm = lambda n: (1 + 0.1 * random.standard_normal(n)).astype(np.float16)
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": random.standard_normal((256, HIDDEN)).astype(np.float16),
        "model.norm.weight": norm(HIDDEN),
        layer + "input_layernorm.weight": norm(HIDDEN), layer + "post_attention_layernorm.weight": norm(HIDDEN),
        layer + "self_attn.q_norm.weight": norm(HEAD), layer + "self_attn.k_norm.weight": norm(HEAD),
    }
    weights = {m: (random.standard_normal(s) / np.sqrt(s[1])).astype(np.float32) for m, s in MODULES.items()}
    return tensors, weights


def affine(weight, group):
    """Scales (as f16) and zeros per group of columns, `[out, groups]`."""
    parts = weight.reshape(weight.shape[0], -1, group)
    low, high = np.minimum(parts.min(2), 0), np.maximum(parts.max(2), 0)
    scales = ((high - low) / 15).astype(np.float16).astype(np.float32)
    # Packers store zeros less one.
    return scales, np.clip(np.round(-low / scales), 1, 15)


def awq(weight, group):
    utils = load("packing_utils", PACKAGES / "autoawq-0.2.9/awq/utils/packing_utils.py")
    scales, zeros = affine(weight, group)
    wide = lambda v: np.repeat(v, group, axis=1)
    codes = np.clip(np.round(weight / wide(scales)) + wide(zeros), 0, 15).astype(np.int64)

    def packed(rows):  # [rows, out] -> [rows, out / 8], as WQLinear_GEMM.from_linear does
        out = np.zeros((rows.shape[0], rows.shape[1] // 8), np.int64)
        for i, source in enumerate(utils.AWQ_ORDER):
            out |= rows[:, source::8] << (4 * i)
        return out.astype(np.uint32).view(np.int32)

    q, z, s = packed(codes.T), packed(zeros.T.astype(np.int64)), scales.T.astype(np.float16)
    decoded = utils.dequantize_gemm(torch.from_numpy(q), torch.from_numpy(z), torch.from_numpy(s).float(), 4, group)
    return {"qweight": q, "qzeros": z, "scales": s}, decoded.float().numpy().T


def gptq(weight, group, shuffled):
    stub = types.ModuleType("transformers")
    stub.pytorch_utils = types.SimpleNamespace(Conv1D=type(None))
    sys.modules.setdefault("transformers", stub)
    path = PACKAGES / "auto_gptq-0.7.1/auto_gptq/nn_modules/qlinear/qlinear_cuda.py"
    module = load("qlinear_cuda", path)
    n, k = weight.shape
    layer = module.QuantLinear(4, group, k, n, False, weight_dtype=torch.float32)
    index = np.arange(k) // group
    if shuffled:
        index = np.random.default_rng(k + n).permutation(index)
    order = np.argsort(index, kind="stable")
    scales, zeros = affine(weight[:, order], group)
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = torch.from_numpy(weight)
    layer.pack(linear, torch.from_numpy(scales), torch.from_numpy(zeros.astype(np.float32)),
               torch.from_numpy(index.astype(np.int32)))
    decoded = layer.forward(torch.eye(k)).detach().numpy().T
    parts = {"qweight": layer.qweight.numpy(), "qzeros": layer.qzeros.numpy(), "scales": scales.T.astype(np.float16),
             "g_idx": index.astype(np.int32)}
    return parts, decoded


def fp8(weight, block):
    sys.path.insert(0, str(PACKAGES / "ml_dtypes-0.5.4"))
    import ml_dtypes
    (n, k), (rows, columns) = weight.shape, block
    tiles = [-(-n // rows), -(-k // columns)]
    scales = np.zeros(tiles, np.float32)
    for i in range(tiles[0]):
        for j in range(tiles[1]):
            part = weight[i * rows:(i + 1) * rows, j * columns:(j + 1) * columns]
            scales[i, j] = np.abs(part).max() / 448
    wide = np.repeat(np.repeat(scales, rows, 0), columns, 1)[:n, :k]
    codes = (weight / wide).astype(ml_dtypes.float8_e4m3fn)
    return codes, scales, codes.astype(np.float32) * wide


def nf4(weight, nested):
    functional = (PACKAGES / "bitsandbytes-0.50.2/bitsandbytes/functional.py").read_text()
    listed = functional[functional.index('if typename == "nf4"'):]
    listed = listed[listed.index("data = [") + 7:]
    table = np.array(json.loads(re.sub(r",\s*\]", "]", listed[:listed.index("]") + 1])), np.float32)
    blocks = weight.reshape(-1, 64)
    absmax = np.abs(blocks).max(1).astype(np.float32)
    codes = np.abs((blocks / absmax[:, None])[:, :, None] - table).argmin(2).astype(np.uint8).reshape(-1)
    packed = (codes[0::2] << 4 | codes[1::2]).reshape(-1, 1)
    state = dict(quant_type="nf4", blocksize=64, dtype="float16", shape=list(weight.shape))
    parts = {"weight": packed, "weight.quant_map": table}
    if nested:
        # The map of bitsandbytes' 8-bit blocks is stored with them, so any will do.
        code = np.sign(np.arange(-128, 128)) * (np.abs(np.arange(-128, 128)) / 128.0) ** 2
        code, offset = code.astype(np.float32), np.float32(absmax.mean())
        centred = absmax - offset
        outer = np.array([np.abs(centred[i:i + 256]).max() for i in range(0, len(absmax), 256)], np.float32)
        inner = np.repeat(outer, 256)[:len(absmax)]
        small = np.abs((centred / inner)[:, None] - code).argmin(1).astype(np.uint8)
        absmax = (code[small] * inner).astype(np.float32) + offset
        parts |= {"weight.absmax": small, "weight.nested_absmax": outer, "weight.nested_quant_map": code}
        state |= dict(nested_blocksize=256, nested_dtype="float32", nested_offset=float(offset))
    else:
        parts["weight.absmax"] = absmax
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    parts["weight.quant_state.bitsandbytes__nf4"] = text
    library = ctypes.CDLL(str(PACKAGES / "bitsandbytes-0.50.2/bitsandbytes/libbitsandbytes_cpu.so"))
    out = np.zeros(weight.shape, np.float32)
    pointer = lambda v: v.ctypes.data_as(ctypes.c_void_p)
    wide = ctypes.c_longlong
    library.cdequantize_blockwise_cpu_nf4_fp32(pointer(packed), pointer(absmax), pointer(out), wide(64),
                                               wide(weight.shape[0]), wide(weight.shape[1]))
    return parts, out


def write(folder, method, quantize):
    tensors, weights = plain(np.random.default_rng(1))
    decoded = {}
    for module, weight in weights.items():
        parts, decoded[module] = quantize(weight)
        tensors |= {f"model.layers.0.{module}.{part}": value for part, value in parts.items()}
    out = HERE / folder
    out.mkdir(exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIG | dict(quantization_config=method), indent=1) + "\n")
    save(out / "model.safetensors", tensors)
    save(out / "dequantized.safetensors", {f"{m}.weight": np.ascontiguousarray(v) for m, v in decoded.items()})


def blockwise(weight, side):
    codes, scales, decoded = fp8(weight, (side, side))
    return {"weight": codes, "weight_scale_inv": scales}, decoded


def per_row(weight):
    codes, scales, decoded = fp8(weight, (1, weight.shape[1]))
    return {"weight": codes, "weight_scale": scales}, decoded


for name, group in [("awq", 32), ("awq-g128", 128)]:
    about = dict(quant_method="awq", bits=4, group_size=group, version="gemm", zero_point=True)
    write(name, about, lambda w: awq(w, group))
for name, group, shuffled in [("gptq", 64, False), ("gptq-g128", 128, False), ("gptq-act-order", 32, True)]:
    about = dict(quant_method="gptq", bits=4, group_size=group, desc_act=shuffled, sym=False)
    write(name, about, lambda w: gptq(w, group, shuffled))
for name, side in [("fp8", 64), ("fp8-32", 32)]:
    about = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[side, side])
    write(name, about, lambda w: blockwise(w, side))
channel = dict(type="float", num_bits=8, strategy="channel", symmetric=True)
write("fp8-channel", dict(quant_method="compressed-tensors", format="float-quantized",
                          config_groups=dict(group_0=dict(weights=channel, targets=["Linear"]))), per_row)
for name, nested in [("nf4", False), ("nf4-nested", True)]:
    about = dict(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4",
                 bnb_4bit_use_double_quant=nested)
    write(name, about, lambda w: nf4(w, nested))
