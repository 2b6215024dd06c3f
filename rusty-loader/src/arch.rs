//! What the loader must know of an architecture: how its files name it and how they lay out rotary pairs.

use std::path::Path;

use crate::meta::keys;
use crate::{Error, Meta};

/// How the lanes of a head are paired by the rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopeLayout {
    /// Lane `i` with `i + d/2`.
    Half,
    /// Lane `2i` with `2i + 1`.
    Interleaved,
}

impl RopeLayout {
    /// The word of [`keys::ROPE_LAYOUT`].
    pub(crate) fn name(self) -> &'static str {
        match self {
            RopeLayout::Half => "half",
            RopeLayout::Interleaved => "interleaved",
        }
    }
}

/// An architecture's spelling in files.
#[derive(Debug)]
pub(crate) struct Arch {
    /// Canonical id.
    pub(crate) id: &'static str,
    /// `general.architecture` of a GGUF.
    gguf: &'static str,
    /// `model_type` of a `config.json`.
    hf: &'static str,
    /// Pairs as a GGUF's q/k rows are laid out.
    pub(crate) gguf_rope: RopeLayout,
    /// Pairs as Hugging Face's are.
    pub(crate) hf_rope: RopeLayout,
    /// Activation of the feed-forward, which a GGUF does not state.
    pub(crate) gguf_act: &'static str,
    /// Modules of a block that Hugging Face's checkpoints name as others use for something else, and what they are.
    pub(crate) modules: &'static [(&'static str, &'static str)],
    /// Modules of a block, in canonical names, that hold the rows of several products in its checkpoints and its GGUFs.
    fused: &'static [&'static str],
    /// What `config.json` may leave out.
    pub(crate) defaults: &'static [(&'static str, Default)],
    /// What a GGUF may leave out: what llama.cpp takes then.
    pub(crate) gguf_defaults: &'static [(&'static str, Default)],
    /// Whether Hugging Face's checkpoints store the norms' weights less one.
    pub(crate) norms_less_one: bool,
    /// Whether transformers scales embeddings where tokens are looked up: what comes as an embedding is not scaled then.
    scales_tokens_alone: bool,
}

/// A default of a configuration.
#[derive(Debug)]
pub(crate) enum Default {
    /// A size.
    Size(u64),
    /// A number.
    Number(f64),
    /// A yes or no.
    Flag(bool),
}

impl From<&Default> for Meta {
    fn from(value: &Default) -> Self {
        match value {
            Default::Size(v) => Meta::U64(*v),
            Default::Number(v) => Meta::F64(*v),
            Default::Flag(v) => Meta::Bool(*v),
        }
    }
}

const fn arch(id: &'static str, gguf_rope: RopeLayout) -> Arch {
    Arch {
        id,
        gguf: id,
        hf: id,
        gguf_rope,
        hf_rope: RopeLayout::Half,
        gguf_act: "silu",
        modules: &[],
        fused: &[],
        defaults: &[],
        gguf_defaults: &[],
        norms_less_one: false,
        scales_tokens_alone: false,
    }
}

const GEMMA: Arch = Arch {
    gguf_act: "gelu_tanh",
    modules: &[("post_attention_layernorm", "post_attention_norm")],
    defaults: &[(keys::TIE_WORD_EMBEDDINGS, Default::Flag(true))],
    gguf_defaults: &[
        (keys::SCORE_CAP, Default::Number(50.0)),
        (keys::LOGIT_CAP, Default::Number(30.0)),
        (keys::SLIDING_WINDOW, Default::Size(4096)),
    ],
    norms_less_one: true,
    scales_tokens_alone: true,
    ..arch("gemma2", RopeLayout::Half)
};

const DEEPSEEK: Arch = Arch {
    hf: "deepseek_v2",
    hf_rope: RopeLayout::Interleaved,
    fused: &["attn_kv_a_mqa"],
    ..arch("deepseek2", RopeLayout::Interleaved)
};

/// `Gemma3TextConfig` of transformers.
const GEMMA3_DEFAULTS: &[(&str, Default)] = &[
    (keys::TIE_WORD_EMBEDDINGS, Default::Flag(true)),
    (keys::VOCAB_SIZE, Default::Size(262_208)),
    (keys::HEAD_COUNT, Default::Size(8)),
    (keys::HEAD_COUNT_KV, Default::Size(4)),
    (keys::KEY_LENGTH, Default::Size(256)),
    (keys::VALUE_LENGTH, Default::Size(256)),
    (keys::CONTEXT_LENGTH, Default::Size(131_072)),
    (keys::RMS_EPSILON, Default::Number(1e-6)),
    (keys::QUERY_SCALAR, Default::Number(256.0)),
    (keys::ROPE_FREQ_BASE, Default::Number(1e6)),
    (keys::ROPE_FREQ_BASE_SWA, Default::Number(1e4)),
    (keys::SLIDING_PATTERN, Default::Size(6)),
    (keys::SLIDING_WINDOW, Default::Size(4096)),
];

static ARCHS: &[Arch] = &[
    arch("llama", RopeLayout::Interleaved),
    // Its GGUFs carry Llama's name.
    Arch {
        gguf: "llama",
        ..arch("mistral", RopeLayout::Interleaved)
    },
    arch("qwen2", RopeLayout::Half),
    arch("qwen3", RopeLayout::Half),
    Arch {
        fused: &["attn_qkv", "ffn_gate_up"],
        ..arch("phi3", RopeLayout::Half)
    },
    // Llama's name in GGUFs, too.
    Arch {
        gguf: "llama",
        ..arch("mixtral", RopeLayout::Interleaved)
    },
    Arch {
        hf: "qwen3_moe",
        ..arch("qwen3moe", RopeLayout::Half)
    },
    arch("granite", RopeLayout::Interleaved),
    Arch {
        modules: &[("post_attention_layernorm", "post_attention_norm")],
        ..arch("olmo2", RopeLayout::Half)
    },
    DEEPSEEK,
    // Its GGUFs carry its predecessor's name.
    Arch {
        id: "deepseek3",
        hf: "deepseek_v3",
        defaults: &[
            (keys::EXPERT_GATING, Default::Size(2)),
            (keys::EXPERT_WEIGHTS_NORM, Default::Flag(true)),
        ],
        ..DEEPSEEK
    },
    GEMMA,
    Arch {
        id: "gemma3",
        gguf: "gemma3",
        hf: "gemma3_text",
        defaults: GEMMA3_DEFAULTS,
        gguf_defaults: &[(keys::ROPE_FREQ_BASE_SWA, Default::Number(1e4))],
        ..GEMMA
    },
];

/// Whether GGUFs of an architecture (by its canonical id, or as they name it) store the rows of rotated heads as
/// neighbouring pairs where checkpoints store them in halves.
pub fn gguf_reorders_pairs(arch: &str) -> bool {
    let found = Arch::by_id(arch).or_else(|| Arch::by_gguf_name(arch));
    found.is_some_and(|a| a.gguf_rope != a.hf_rope)
}

/// Whether checkpoints of an architecture store rotated heads in halves.
pub fn checkpoints_halve_pairs(arch: &str) -> bool {
    Arch::by_id(arch).is_none_or(|a| a.hf_rope == RopeLayout::Half)
}

/// Whether transformers (5 and later) scales an architecture's embeddings where tokens are looked up: soft prompts, which come as embeddings, are not scaled
/// then. Elsewhere all embeddings are.
pub fn scales_tokens_alone(arch: &str) -> bool {
    Arch::by_id(arch).is_some_and(|a| a.scales_tokens_alone)
}

/// Modules of a block, in canonical names, that files of an architecture store instead of the products whose rows they hold
/// ([`crate::fused::modules`]).
pub fn fused_modules(arch: &str) -> &'static [&'static str] {
    Arch::by_id(arch).map_or(&[], |a| a.fused)
}

/// What GGUFs call an architecture; several may share a name.
pub fn gguf_name(arch: &str) -> &str {
    Arch::by_id(arch).map_or(arch, |a| a.gguf)
}

impl Arch {
    pub(crate) fn by_gguf_name(name: &str) -> Option<&'static Arch> {
        ARCHS.iter().find(|a| a.gguf == name)
    }

    /// By canonical id.
    pub(crate) fn by_id(id: &str) -> Option<&'static Arch> {
        ARCHS.iter().find(|a| a.id == id)
    }

    pub(crate) fn by_model_type(name: &str) -> Option<&'static Arch> {
        ARCHS.iter().find(|a| a.hf == name)
    }

    pub(crate) fn unknown(path: &Path, name: &str) -> Error {
        let known: Vec<&str> = ARCHS.iter().map(|a| a.id).collect();
        Error::unsupported(
            path,
            format!("architecture '{name}'"),
            format!("known ones are {}", known.join(", ")),
        )
    }
}
