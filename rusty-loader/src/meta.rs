//! Metadata values and the canonical keys under which every reader states them.
//!
//! Keys follow GGUF without the architecture prefix (`qwen3.block_count` is `block_count`). Beside the
//! canonical ones every reader passes on what its file says: GGUF keys as they are (`general.name`,
//! `tokenizer.ggml.tokens`), entries of `config.json` under `hf.` and of `generation_config.json` under
//! `generation.`.

use std::fmt;
use std::sync::Arc;

/// A metadata value; integers of all widths are widened.
#[derive(Clone, Debug, PartialEq)]
pub enum Meta {
    /// A boolean.
    Bool(bool),
    /// Any unsigned or non-negative integer.
    U64(u64),
    /// A negative integer.
    I64(i64),
    /// A float of either width.
    F64(f64),
    /// Text.
    Str(Arc<str>),
    /// An array (possibly nested).
    Array(Arc<[Meta]>),
}

/// Canonical keys read by the architectures; see the constants' values for their spelling.
pub mod keys {
    /// Number of transformer blocks.
    pub const BLOCK_COUNT: &str = "block_count";
    /// Trained context length in tokens.
    pub const CONTEXT_LENGTH: &str = "context_length";
    /// Hidden width.
    pub const EMBEDDING_LENGTH: &str = "embedding_length";
    /// Width of the feed-forward's inner layer.
    pub const FEED_FORWARD_LENGTH: &str = "feed_forward_length";
    /// Query heads.
    pub const HEAD_COUNT: &str = "attention.head_count";
    /// Key/value heads.
    pub const HEAD_COUNT_KV: &str = "attention.head_count_kv";
    /// Width of a head's keys and queries.
    pub const KEY_LENGTH: &str = "attention.key_length";
    /// Width of a head's values.
    pub const VALUE_LENGTH: &str = "attention.value_length";
    /// Epsilon of the RMS norms.
    pub const RMS_EPSILON: &str = "attention.layer_norm_rms_epsilon";
    /// Sliding window in tokens, itself included; absent: none.
    pub const SLIDING_WINDOW: &str = "attention.sliding_window";
    /// Which layers see the window only: an array of booleans, or a period whose last layer sees everything.
    pub const SLIDING_PATTERN: &str = "attention.sliding_window_pattern";
    /// Cap on attention's scores, `cap * tanh(score / cap)`; absent: none.
    pub const SCORE_CAP: &str = "attn_logit_softcapping";
    /// The same on logits.
    pub const LOGIT_CAP: &str = "final_logit_softcapping";
    /// Queries are scaled by one over the root of this; absent: of the key length.
    pub const QUERY_SCALAR: &str = "attention.query_pre_attn_scalar";
    /// Factor on embeddings.
    pub const EMBEDDING_SCALE: &str = "embedding_scale";
    /// Factor on what attention and feed-forward add to a row.
    pub const RESIDUAL_SCALE: &str = "residual_scale";
    /// Factor on attention's scores.
    pub const ATTENTION_SCALE: &str = "attention.scale";
    /// Divisor of logits.
    pub const LOGIT_SCALE: &str = "logit_scale";
    /// Experts of a layer; absent: none.
    pub const EXPERT_COUNT: &str = "expert_count";
    /// Experts that a token takes.
    pub const EXPERT_USED_COUNT: &str = "expert_used_count";
    /// Inner width of an expert.
    pub const EXPERT_FEED_FORWARD_LENGTH: &str = "expert_feed_forward_length";
    /// Whether the weights of the experts that a token takes are divided by their sum.
    pub const EXPERT_WEIGHTS_NORM: &str = "expert_weights_norm";
    /// Experts of a layer that every token takes; absent: none.
    pub const EXPERT_SHARED_COUNT: &str = "expert_shared_count";
    /// Factor on the weights of experts.
    pub const EXPERT_WEIGHTS_SCALE: &str = "expert_weights_scale";
    /// How router logits become scores: 1 softmax, 2 sigmoid.
    pub const EXPERT_GATING: &str = "expert_gating_func";
    /// Groups of experts, of which a token takes some; absent: one.
    pub const EXPERT_GROUP_COUNT: &str = "expert_group_count";
    /// Groups that a token takes.
    pub const EXPERT_GROUP_USED_COUNT: &str = "expert_group_used_count";
    /// Width of the row from which latent attention makes queries; absent: the hidden row.
    pub const Q_LORA_RANK: &str = "attention.q_lora_rank";
    /// Width of the row from which latent attention makes keys and values.
    pub const KV_LORA_RANK: &str = "attention.kv_lora_rank";
    /// Width of a head's keys and queries under latent attention.
    pub const KEY_LENGTH_LATENT: &str = "attention.key_length_mla";
    /// Width of a head's values under latent attention.
    pub const VALUE_LENGTH_LATENT: &str = "attention.value_length_mla";
    /// RoPE base frequency.
    pub const ROPE_FREQ_BASE: &str = "rope.freq_base";
    /// Rotated dimensions of a head (absent: all).
    pub const ROPE_DIMENSION_COUNT: &str = "rope.dimension_count";
    /// `none`, `linear`, `dynamic`, `yarn`, `llama3`, `longrope`.
    pub const ROPE_SCALING_TYPE: &str = "rope.scaling.type";
    /// Scaling factor.
    pub const ROPE_SCALING_FACTOR: &str = "rope.scaling.factor";
    /// Context before scaling.
    pub const ROPE_SCALING_ORIGINAL_CONTEXT: &str = "rope.scaling.original_context_length";
    /// Attention factor of YaRN / longrope.
    pub const ROPE_SCALING_ATTN_FACTOR: &str = "rope.scaling.attn_factor";
    /// YaRN beta_fast.
    pub const ROPE_SCALING_BETA_FAST: &str = "rope.scaling.yarn_beta_fast";
    /// YaRN beta_slow.
    pub const ROPE_SCALING_BETA_SLOW: &str = "rope.scaling.yarn_beta_slow";
    /// Whether YaRN's ramp ends on whole dimensions.
    pub const ROPE_SCALING_TRUNCATE: &str = "rope.scaling.truncate";
    /// A tenth of mscale_all_dim, as GGUF states it.
    pub const ROPE_SCALING_YARN_LOG: &str = "rope.scaling.yarn_log_multiplier";
    /// YaRN mscale (DeepSeek).
    pub const ROPE_SCALING_MSCALE: &str = "rope.scaling.mscale";
    /// YaRN mscale_all_dim (DeepSeek; its square also scales the attention).
    pub const ROPE_SCALING_MSCALE_ALL_DIM: &str = "rope.scaling.mscale_all_dim";
    /// longrope divisors inside the original context (array, one per lane pair).
    pub const ROPE_SCALING_SHORT_FACTOR: &str = "rope.scaling.short_factor";
    /// longrope divisors beyond the original context.
    pub const ROPE_SCALING_LONG_FACTOR: &str = "rope.scaling.long_factor";
    /// RoPE base frequency of sliding-window layers, where it differs.
    pub const ROPE_FREQ_BASE_SWA: &str = "rope.freq_base_swa";
    /// llama3 low frequency factor.
    pub const ROPE_SCALING_LOW_FREQ_FACTOR: &str = "rope.scaling.low_freq_factor";
    /// llama3 high frequency factor.
    pub const ROPE_SCALING_HIGH_FREQ_FACTOR: &str = "rope.scaling.high_freq_factor";
    /// `half` (rotate_half: lane i with i + d/2) or `interleaved` (lane 2i with 2i + 1).
    pub const ROPE_LAYOUT: &str = "rope.layout";
    /// Entries of the vocabulary.
    pub const VOCAB_SIZE: &str = "vocab_size";
    /// Whether the output head is the embedding table.
    pub const TIE_WORD_EMBEDDINGS: &str = "tie_word_embeddings";
    /// Activation of the feed-forward: `silu`, `gelu`, `gelu_tanh`, ...
    pub const HIDDEN_ACT: &str = "hidden_act";
    /// Ids that end a generation (array, possibly empty).
    pub const EOS_TOKEN_IDS: &str = "tokenizer.eos_token_ids";
    /// Id that begins a text; absent: none.
    pub const BOS_TOKEN_ID: &str = "tokenizer.bos_token_id";
    /// Source of the chat template (Jinja); absent: none.
    pub const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
    /// What the file calls the model.
    pub const NAME: &str = "general.name";
}

/// As people write it, for messages: text in quotes, of an array its length.
impl fmt::Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Meta::Bool(v) => write!(f, "{v}"),
            Meta::U64(v) => write!(f, "{v}"),
            Meta::I64(v) => write!(f, "{v}"),
            // With a point also where it is whole: that may be what is wrong with it.
            Meta::F64(v) => write!(f, "{v:?}"),
            Meta::Str(v) => write!(f, "'{}'", v.escape_debug()),
            Meta::Array(v) => write!(f, "an array of {}", v.len()),
        }
    }
}

impl From<&str> for Meta {
    fn from(text: &str) -> Self {
        Meta::Str(text.into())
    }
}

impl From<u64> for Meta {
    fn from(value: u64) -> Self {
        Meta::U64(value)
    }
}

impl From<f64> for Meta {
    fn from(value: f64) -> Self {
        Meta::F64(value)
    }
}

impl From<bool> for Meta {
    fn from(value: bool) -> Self {
        Meta::Bool(value)
    }
}

impl FromIterator<Meta> for Meta {
    fn from_iter<I: IntoIterator<Item = Meta>>(items: I) -> Self {
        Meta::Array(items.into_iter().collect())
    }
}

impl Meta {
    /// The value as an unsigned integer, where it is one.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Meta::U64(v) => Some(*v),
            Meta::I64(v) => u64::try_from(*v).ok(),
            _ => None,
        }
    }

    /// The value as a float; integers convert.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Meta::F64(v) => Some(*v),
            Meta::U64(v) => Some(*v as f64),
            Meta::I64(v) => Some(*v as f64),
            _ => None,
        }
    }

    /// The value as text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Meta::Str(v) => Some(v),
            _ => None,
        }
    }

    /// The value as a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Meta::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// The value as an array.
    pub fn as_array(&self) -> Option<&[Meta]> {
        match self {
            Meta::Array(v) => Some(v),
            _ => None,
        }
    }
}
