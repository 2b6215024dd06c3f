//! What the loader must know of an architecture: how its files name it and how they lay out rotary pairs.

use std::path::Path;

use crate::Error;

/// How the lanes of a head are paired by the rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopeLayout {
    /// Lane `i` with `i + d/2`.
    Half,
    /// Lane `2i` with `2i + 1`.
    Interleaved,
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
    /// Pairs as a GGUF's q/k rows are laid out (Hugging Face's are always in halves here).
    pub(crate) gguf_rope: RopeLayout,
}

const fn arch(id: &'static str, gguf_rope: RopeLayout) -> Arch {
    Arch {
        id,
        gguf: id,
        hf: id,
        gguf_rope,
    }
}

static ARCHS: &[Arch] = &[
    arch("llama", RopeLayout::Interleaved),
    arch("mistral", RopeLayout::Interleaved),
    arch("qwen2", RopeLayout::Half),
    arch("qwen3", RopeLayout::Half),
];

impl Arch {
    pub(crate) fn by_gguf_name(name: &str) -> Option<&'static Arch> {
        ARCHS.iter().find(|a| a.gguf == name)
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
