"""LoRAs of `tests/goldens/adapters` as llama.cpp's own converter writes them, and what llama.cpp makes of them.

    python3 generate.py LLAMA_CPP

LLAMA_CPP is a folder with convert_lora_to_gguf.py, conversion/ and gguf-py/ of the release that the installed
llama_cpp was built from. See README.md.
"""
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LLAMA_CPP = Path(sys.argv[1]).resolve()
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import gguf
import llama_cpp
import numpy as np
import torch
import transformers
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parent / "goldens"
SCALES = [1.0, 0.5]
# Adapter, type of the factors, and whether the file says all that PEFT's configuration does: the converter takes
# neither `alpha_pattern` nor `use_rslora` over.
CASES = [
    ("llama-lora-all", "f32", True),
    ("llama-lora-head", "f32", True),
    ("qwen3-lora-all", "f32", True),
    ("qwen3-lora-patterns", "q8_0", False),
]


def write_base(folder, out):
    """The base model in F32, by llama.cpp's converter but for the tokenizer, which the golden models lack."""
    hparams = ModelBase.load_hparams(folder, False)
    converter = get_model_class(get_model_architecture(hparams, ModelType.TEXT))

    class WithoutTokenizer(converter):
        model_arch = converter.model_arch

        def set_vocab(self):
            self._set_vocab_none()
            # llama.cpp counts a vocabulary that is not there by this key, which not all of the converters write.
            if not any(key.endswith(".vocab_size") for key in self.gguf_writer.kv_data[0]):
                self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])

    with torch.inference_mode():
        WithoutTokenizer(folder, gguf.LlamaFileType.ALL_F32, out, hparams=hparams).write()


def widened(path, out):
    """The same adapter with all factors in F32: llama.cpp rounds activations to the type of what multiplies them."""
    reader = gguf.GGUFReader(path)
    keys = {k: f.contents() for k, f in reader.fields.items()}
    writer = gguf.GGUFWriter(out, keys["general.architecture"])
    writer.add_type(keys["general.type"])
    writer.add_string("adapter.type", keys["adapter.type"])
    writer.add_float32("adapter.lora.alpha", keys["adapter.lora.alpha"])
    for t in reader.tensors:
        shape = [int(d) for d in reversed(t.shape)]
        writer.add_tensor(t.name, gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(base, ids, adapter=None, scale=1.0):
    """Logits of every position on the CPU: one thread, F32 cache, plain attention."""
    model = llama_cpp.llama_model_load_from_file(str(base).encode(), llama_cpp.llama_model_default_params())
    assert model, f"llama.cpp refuses {base}"
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 128, 128, 128
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, params)
    if adapter is not None:
        lora = llama_cpp.llama_adapter_lora_init(model, str(adapter).encode())
        assert lora, f"llama.cpp refuses {adapter}"
        one = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(lora)
        assert llama_cpp.llama_set_adapters_lora(context, one, 1, (ctypes.c_float * 1)(scale)) == 0
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(ids), vocab)).copy()
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return rows


def apart(a, b):
    return float(np.abs(a - b).max())


def write_case(bases, scratch, name, kind, as_peft):
    adapter, out = GOLDENS / "adapters" / name, HERE / name
    model = json.loads((adapter / "manifest.json").read_text())["base"]
    if model not in bases:
        folder = shutil.copytree(GOLDENS / model, scratch / Path(model).name)
        # The spelling that every version of transformers knows.
        (folder / "config.legacy.json").replace(folder / "config.json")
        bases[model] = folder, folder.with_suffix(".gguf")
        write_base(*bases[model])
    folder, base = bases[model]
    out.mkdir(exist_ok=True)
    written, wide = out / f"{kind}.gguf", scratch / f"{name}.gguf"
    converter = [sys.executable, LLAMA_CPP / "convert_lora_to_gguf.py"]
    subprocess.run([*converter, adapter, "--base", folder, "--outtype", kind, "--outfile", written], check=True)
    widened(written, wide)
    golden, plain = load_file(adapter / "expected.safetensors"), load_file(GOLDENS / model / "expected.safetensors")
    ids = golden["ids.0"]
    expected = {f"logits.{i}": logits(base, ids, wide, scale) for i, scale in enumerate(SCALES)}
    save_file({"ids": ids, **expected}, out / "expected.safetensors")
    (out / "expected.safetensors").chmod(0o644)
    checks = {
        "base_vs_transformers": apart(logits(base, plain["ids.1"]), plain["logits.1"]),
        "stored_factors_vs_f32": apart(logits(base, ids, written), expected["logits.0"]),
        "vs_peft": [apart(logits(base, golden[f"ids.{p}"], wide), golden[f"logits.{p}"]) for p in (0, 1)],
        "mean_abs_change_between_scales": float(np.abs(expected["logits.0"] - expected["logits.1"]).mean()),
    }
    assert checks["base_vs_transformers"] < 1e-4 and (max(checks["vs_peft"]) < 1e-4) == as_peft, checks
    manifest = {
        "name": name, "file": written.name, "base": model, "adapter": f"adapters/{name}", "as_peft": as_peft,
        "scales": [{"scale": scale, "logits": f"logits.{i}"} for i, scale in enumerate(SCALES)],
        "versions": {m.__name__: m.__version__ for m in (llama_cpp, torch, transformers, np)}, "checks": checks,
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def main():
    bases = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            write_case(bases, Path(scratch), *case)


main()
