"""Reads what is shipped: model.gguf (its Q8_0 weights dequantized) with its tokenizer, and the adapter folders."""

import json
import os

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from model import Config, Qwen3
from text import HERE, QWEN2

BLOCK = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
NAMES = {v: k for k, v in BLOCK.items()}


def load(path=os.path.join(HERE, "model.gguf")):
    """The model (float32, from the dequantized file) and its tokenizer, both from the GGUF file alone."""
    reader = gguf.GGUFReader(path)
    get = lambda key: reader.fields[key].contents()
    config = Config(vocab=len(get("tokenizer.ggml.tokens")), hidden=get("qwen3.embedding_length"), layers=get("qwen3.block_count"),
                    heads=get("qwen3.attention.head_count"), kv_heads=get("qwen3.attention.head_count_kv"),
                    head_dim=get("qwen3.attention.key_length"), ffn=get("qwen3.feed_forward_length"),
                    rope_theta=get("qwen3.rope.freq_base"), rms_eps=get("qwen3.attention.layer_norm_rms_epsilon"))
    state = {}
    for t in reader.tensors:
        data = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        parts = t.name.split(".")
        name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}.get(parts[0])
        state[(name or f"model.layers.{parts[1]}.{NAMES[parts[2]]}") + ".weight"] = torch.from_numpy(data.copy())
    model = Qwen3(config)
    model.load_state_dict(state)
    tokens, merges = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.merges")
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([t for t, k in zip(tokens, get("tokenizer.ggml.token_type")) if k == gguf.TokenType.CONTROL])
    return model.eval(), tok


def set_adapter(model, language):
    """Puts the adapter folder's matrices into the model; None takes the adapter off."""
    if language is None:
        for _, m in model.linears():
            m.lora_A = m.lora_B = None
        return
    folder = os.path.join(HERE, "adapters", language)
    with open(os.path.join(folder, "adapter_config.json")) as f:
        config = json.load(f)
    weights = load_file(os.path.join(folder, "adapter_model.safetensors"))
    for name, m in model.linears():
        a, b = (torch.from_numpy(weights[f"base_model.model.{name}.lora_{x}.weight"].astype(np.float32)) for x in "AB")
        m.lora_A, m.lora_B = torch.nn.Parameter(a, False), torch.nn.Parameter(b, False)
        m.scale = config["lora_alpha"] / config["r"]
