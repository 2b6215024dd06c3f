//! A model whose rotary scaling is chosen by the user instead of by its file.

use std::collections::HashMap;

use crate::meta::keys;
use crate::{Error, Meta, ModelFile, Result, WeightView};

/// Kinds of scaling that users may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// None.
    None,
    /// All frequencies divided by the factor.
    Linear,
    /// A base that grows with the text (dynamic NTK).
    Ntk,
    /// YaRN.
    Yarn,
    /// As Llama 3.1 scales.
    Llama3,
    /// LongRoPE, by the divisors that the file states.
    LongRope,
}

impl RopeKind {
    /// What users call it.
    const fn name(self) -> &'static str {
        match self {
            RopeKind::Ntk => "ntk",
            other => other.canonical(),
        }
    }

    /// What files call it.
    const fn canonical(self) -> &'static str {
        match self {
            RopeKind::None => "none",
            RopeKind::Linear => "linear",
            RopeKind::Ntk => "dynamic",
            RopeKind::Yarn => "yarn",
            RopeKind::Llama3 => "llama3",
            RopeKind::LongRope => "longrope",
        }
    }
}

/// What the user chooses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeOverride {
    /// Kind of scaling.
    pub kind: RopeKind,
    /// Stretch of the context; absent: the file's.
    pub factor: Option<f64>,
    /// Context before scaling, in tokens; absent: the file's.
    pub original: Option<u64>,
}

impl RopeOverride {
    /// YaRN from 32,768 to 131,072 tokens, as Qwen3's model cards recommend.
    pub const YARN_128K: Self = Self {
        kind: RopeKind::Yarn,
        factor: Some(4.0),
        original: Some(32_768),
    };

    /// The model with this scaling. The context becomes the original one times the factor.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kind needs a factor and neither the user nor the file states one above 0.
    pub fn apply(self, file: Box<dyn ModelFile>) -> Result<Box<dyn ModelFile>> {
        let stated = |key: &str| file.meta(key).and_then(Meta::as_f64);
        let context = file.meta(keys::CONTEXT_LENGTH).and_then(Meta::as_u64);
        let scaled = stated(keys::ROPE_SCALING_ORIGINAL_CONTEXT).map(|v| v as u64);
        let original = self.original.or(scaled).or(context);
        let factor = self.factor.or(stated(keys::ROPE_SCALING_FACTOR));
        // No context is longer than positions can be told.
        let reach = |f: f64| f.max(1.0) * original.unwrap_or(1) as f64 <= f64::from(u32::MAX);
        let usable = factor.is_some_and(|f| f > 0.0 && reach(f));
        if !matches!(self.kind, RopeKind::None | RopeKind::LongRope) && !usable {
            let name = self.kind.name();
            return Err(Error::unsupported(
                std::path::Path::new(file.label()),
                match factor {
                    None => format!("rope scaling '{name}' without a factor"),
                    Some(factor) => format!("rope scaling '{name}' by {factor}"),
                },
                "name one above 0, for a context of fewer than 2^32 tokens, with --rope-factor",
            ));
        }
        let mut meta = HashMap::new();
        let mut set = |key: &str, value: Meta| meta.insert(key.to_owned(), Some(value));
        set(keys::ROPE_SCALING_TYPE, self.kind.canonical().into());
        if let (Some(factor), Some(original)) = (factor, original) {
            set(keys::ROPE_SCALING_FACTOR, factor.into());
            set(keys::ROPE_SCALING_ORIGINAL_CONTEXT, original.into());
            let stretched = (original as f64 * factor.max(1.0)) as u64;
            let context = match self.kind {
                RopeKind::None => context.unwrap_or(original),
                RopeKind::LongRope => context.unwrap_or(stretched),
                _ => stretched,
            };
            set(keys::CONTEXT_LENGTH, context.into());
        }
        if self.kind == RopeKind::Llama3 {
            for (key, usual) in [
                (keys::ROPE_SCALING_LOW_FREQ_FACTOR, 1.0),
                (keys::ROPE_SCALING_HIGH_FREQ_FACTOR, 4.0),
            ] {
                set(key, stated(key).unwrap_or(usual).into());
            }
        }
        // What the file states for its own kind of scaling does not hold for another.
        let own = file.meta(keys::ROPE_SCALING_TYPE).and_then(Meta::as_str);
        if own != Some(self.kind.canonical()) {
            meta.insert(keys::ROPE_SCALING_ATTN_FACTOR.to_owned(), None);
        }
        Ok(Box::new(Overridden {
            file,
            meta,
            keeps_divisors: self.kind == RopeKind::LongRope,
        }))
    }
}

struct Overridden {
    file: Box<dyn ModelFile>,
    /// Values instead of the file's; none: as if the file did not state it.
    meta: HashMap<String, Option<Meta>>,
    keeps_divisors: bool,
}

impl ModelFile for Overridden {
    fn arch(&self) -> &str {
        self.file.arch()
    }

    fn meta(&self, key: &str) -> Option<&Meta> {
        match self.meta.get(key) {
            Some(value) => value.as_ref(),
            None => self.file.meta(key),
        }
    }

    fn tensor(&self, name: &str) -> Option<WeightView> {
        // GGUF states divisors of frequencies as tensors.
        let divisors = name.starts_with("rope_f");
        match divisors && !self.keeps_divisors {
            true => None,
            false => self.file.tensor(name),
        }
    }

    fn tensor_names(&self) -> Vec<String> {
        let mut names = self.file.tensor_names();
        names.retain(|n| self.keeps_divisors || !n.starts_with("rope_f"));
        names
    }

    fn label(&self) -> &str {
        self.file.label()
    }
}
