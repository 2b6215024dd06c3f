"""Adapters beside the goldens' as PEFT writes them, and what the adapted models say.

    python3 generate.py [NAME ...]

makes the cases that the installed transformers and PEFT are of; see README.md.
"""
import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parent / "goldens"
sys.path.insert(0, str(GOLDENS / "gen"))
from common import *

torch = init_torch()
import peft
import transformers
from peft import IA3Config, LoHaConfig, LoKrConfig, LoraConfig, PeftModel, VeraConfig, get_peft_model
from transformers import AutoModelForCausalLM

EXPERTS = ["gate_proj", "up_proj", "down_proj"]
PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# Name, base model, versions of transformers and PEFT, configuration.
CASES = {
    # Experts are modules of linear layers.
    "qwen3-moe-lora": ("qwen3-moe", "4.57.1", "0.21.2", LoraConfig(
        r=4, lora_alpha=10, target_modules=["q_proj", *EXPERTS],
        rank_pattern={r"experts\.1\.up_proj": 7}, alpha_pattern={r"experts\.2\.down_proj": 3})),
    "qwen3-moe-dora": ("qwen3-moe", "4.57.1", "0.21.2", LoraConfig(
        r=3, lora_alpha=6, use_dora=True, target_modules=EXPERTS)),
    "mixtral-lora": ("mixtral", "4.57.1", "0.21.2", LoraConfig(
        r=4, lora_alpha=8, use_rslora=True, target_modules=["w1", "w2", "w3"])),
    "mixtral-ia3": ("mixtral", "4.57.1", "0.21.2", IA3Config(
        target_modules=["w1", "w2", "v_proj"], feedforward_modules=[])),
    "mixtral-loha": ("mixtral", "4.57.1", "0.21.2", LoHaConfig(r=3, alpha=6, target_modules=["w1", "w2", "w3"])),
    "qwen3-moe-lokr": ("qwen3-moe", "4.57.1", "0.21.2", LoKrConfig(
        r=2, alpha=4, decompose_factor=2, target_modules=["o_proj", *EXPERTS])),
    "qwen3-moe-vera": ("qwen3-moe", "4.57.1", "0.21.2", VeraConfig(
        r=6, projection_prng_key=5, target_modules=["up_proj", "gate_proj"])),
    "deepseek-v2-lite-lora": ("deepseek-v2-lite", "4.57.1", "0.21.2", LoraConfig(
        r=4, lora_alpha=8, target_modules=["kv_b_proj"])),
    "qwen3-dora-embed": ("qwen3-tied", "4.57.1", "0.21.2", LoraConfig(
        r=4, lora_alpha=8, use_dora=True, target_modules=["embed_tokens", "v_proj"])),
    # Experts are parameters of one module. (DeepSeek V3 because version 4 takes experts of groups that are not chosen, whose
    # scores it sets to zero where others' are below.)
    "qwen3-moe-parameters": ("qwen3-moe", "5", "0.21.2", LoraConfig(
        r=4, lora_alpha=10, target_modules=["q_proj"], target_parameters=[*PARAMETERS, "mlp.gate.weight"],
        rank_pattern={r"experts\.down_proj": 3, r"gate\.weight": 2})),
    "deepseek-v3-lora": ("deepseek-v3", "5", "0.21.2", LoraConfig(
        r=4, lora_alpha=12, target_modules=["q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", *EXPERTS],
        target_parameters=PARAMETERS, rank_pattern={"kv_b_proj": 5})),
    "mixtral-parameters": ("mixtral", "5", "0.21.2", LoraConfig(
        r=4, lora_alpha=8, target_modules=[], target_parameters=["mlp.experts.down_proj"])),
    "qwen3-moe-parameters-swapped": ("qwen3-moe", "5", "0.18.0", LoraConfig(
        r=4, lora_alpha=10, target_modules=[], target_parameters=PARAMETERS)),
}


def base_model(name):
    """The golden model, whose configuration is spelled as the installed transformers know it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = shutil.copytree(GOLDENS / "models" / name, Path(scratch) / "model")
        if transformers.__version__.startswith("4"):
            config = json.loads((folder / "config.legacy.json").read_text())
            if config["model_type"] == "qwen3_moe":
                config["num_experts"] = config["num_local_experts"]
            (folder / "config.json").write_text(json.dumps(config))
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def fill(model, name):
    for key, p in sorted(model.named_parameters()):
        noise = torch.from_numpy(rng("peft_adapters", name, key).standard_normal(tuple(p.shape)).astype(np.float32))
        if "ia3_l" in key:
            p.data.copy_(1.0 + 0.3 * noise)
        elif "magnitude" in key:
            p.data.mul_(1.0 + 0.3 * noise)
        elif "lora_" in key:
            p.data.copy_(0.15 * noise)
        elif any(kind in key for kind in ("hada_w", "lokr_w", "vera_lambda")):
            p.data.copy_(0.4 * noise)


def logits(model, ids):
    return model(input_ids=torch.tensor(ids[None]), use_cache=False).logits[0]


def build(name, model, config):
    out = HERE / name
    shutil.rmtree(out, ignore_errors=True)
    plain = base_model(model)
    prompts = [random_ids(("peft_adapters", name, i), plain.config.vocab_size, n) for i, n in enumerate([11, 33])]
    before = [logits(plain, ids) for ids in prompts]
    torch.manual_seed(7)
    adapted = get_peft_model(base_model(model), config).eval()
    fill(adapted, name)
    config = adapted.peft_config["default"]
    config.base_model_name_or_path, config.revision = f"models/{model}", None
    adapted.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)

    # What the saved files say, on a base that nothing was done to.
    read = PeftModel.from_pretrained(base_model(model), out).eval()
    expected, change, apart = {}, [], 0.0
    for i, ids in enumerate(prompts):
        rows = logits(read, ids)
        apart = max(apart, float((rows - logits(adapted, ids)).abs().max()))
        change.append(round(float((rows - before[i]).abs().mean()), 4))
        expected[f"ids.{i}"], expected[f"logits.{i}"] = ids, rows.numpy()
    merged = read.merge_and_unload()
    noise = max(float((logits(merged, ids) - torch.from_numpy(expected[f"logits.{i}"])).abs().max())
                for i, ids in enumerate(prompts))
    write_tensors(out / "expected.safetensors", expected)
    write_json(out / "manifest.json", {
        "name": name, "base": f"models/{model}", "peft": peft.__version__, "transformers": transformers.__version__,
        "prompts": [{"ids": f"ids.{i}", "logits": f"logits.{i}"} for i in range(len(prompts))],
        "mean_abs_change_vs_base": change, "merged_max_diff": noise, "reload_vs_memory_max_diff": apart})
    print(f"{name:30s} change {change} merged {noise:.1e} reload {apart:.1e}", flush=True)


for name, (model, of_transformers, of_peft, config) in CASES.items():
    installed = transformers.__version__.startswith(of_transformers) and peft.__version__ == of_peft
    if installed and (not sys.argv[1:] or name in sys.argv[1:]):
        build(name, model, config)
