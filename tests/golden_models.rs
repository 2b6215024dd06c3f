//! Which golden models there are; part of the tests of several crates.

/// Models of the supported architectures, all of whose weights are floats.
pub const MODELS: [&str; 21] = [
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "gemma2",
    "gemma3",
    "granite",
    "llama-dynamic",
    "llama-linear",
    "llama-llama3rope-sharded",
    "llama-mha-f16",
    "llama-yarn",
    "mistral-window",
    "mixtral",
    "olmo2",
    "phi3",
    "phi3-longrope",
    "qwen2-bias",
    "qwen3-moe",
    "qwen3-tied",
    "qwen3-untied-bf16",
    "qwen3-yarn",
];
