"""Writes what is shipped: `python export.py [model|sql|json|cypher ...]` -> model.gguf, adapters/ (without arguments, all).

model.gguf follows llama.cpp's conventions for Qwen3 (Q8_0 matrices, F32 norms, tied output, vocabulary inside); the
adapters are folders as PEFT writes them, in float16.
"""

import json
import os
import sys

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file

from model import LINEARS, Config
from shipped import BLOCK
from text import BUILD, END, HERE, SPECIALS, STOP, TEMPLATE, tokenizer
from train_adapter import ALPHA, RANK


def gguf_name(name):
    """`model.layers.0.self_attn.q_proj.weight` -> `blk.0.attn_q.weight`."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, n, rest = name.split(".", 3)
    return f"blk.{n}.{BLOCK[rest.removesuffix('.weight')]}.weight"


def write_model(path, state):
    c = Config(**state["config"])
    w = gguf.GGUFWriter(path, "qwen3")
    w.add_name("Rusty demo")
    w.add_description("A small chat model of a small world, trained from scratch on synthetic text")
    w.add_size_label("5M")
    w.add_block_count(c.layers)
    w.add_context_length(c.context)
    w.add_embedding_length(c.hidden)
    w.add_feed_forward_length(c.ffn)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_freq_base(c.rope_theta)
    w.add_layer_norm_rms_eps(c.rms_eps)
    w.add_vocab_size(c.vocab)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    write_vocabulary(w)
    for name, t in state["model"].items():
        data = t.float().numpy()
        if t.dim() == 2:
            q8 = gguf.GGMLQuantizationType.Q8_0
            w.add_tensor(gguf_name(name), gguf.quants.quantize(data, q8), raw_dtype=q8)
        else:
            w.add_tensor(gguf_name(name), data.astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_vocabulary(w):
    model = json.loads(tokenizer().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in SPECIALS else gguf.TokenType.NORMAL for t in tokens])
    w.add_token_merges(merges)
    w.add_eos_token_id(STOP)
    w.add_pad_token_id(END)
    w.add_bos_token_id(END)
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)


def write_adapter(language):
    folder = os.path.join(HERE, "adapters", language)
    os.makedirs(folder, exist_ok=True)
    lora = torch.load(os.path.join(BUILD, f"{language}.pt"))["lora"]
    save_file({f"base_model.model.{k}.weight": v.half().numpy() for k, v in lora.items()},
              os.path.join(folder, "adapter_model.safetensors"), metadata={"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "rusty-demo", "r": RANK,
              "lora_alpha": ALPHA, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
              "init_lora_weights": True, "use_rslora": False, "use_dora": False, "modules_to_save": None,
              "layers_to_transform": None, "layers_pattern": None, "rank_pattern": {}, "alpha_pattern": {},
              "target_modules": [n.split(".")[1] for n in LINEARS]}
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


if __name__ == "__main__":
    for what in sys.argv[1:] or ["model", "sql", "json", "cypher"]:
        if what == "model":
            write_model(os.path.join(HERE, "model.gguf"), torch.load(os.path.join(BUILD, "base.pt")))
        else:
            write_adapter(what)
