//! Reading a rotary specification from a model's metadata.

use crate::{Error, Result, RopeLayout, RopeScaling, RopeSpec};
use rusty_loader::meta::keys;
use rusty_loader::{Meta, ModelFile};

impl RopeSpec {
    /// The specification that a file's metadata states, for heads of `head_dim` lanes.
    ///
    /// # Errors
    /// An unknown scaling kind, or one whose parameters are missing: running such a model with other
    /// frequencies would give wrong text, not slightly worse text.
    pub fn from_model(file: &dyn ModelFile, head_dim: u32) -> Result<RopeSpec> {
        let reader = Reader { file };
        let dims = reader
            .integer(keys::ROPE_DIMENSION_COUNT)
            .unwrap_or(head_dim);
        if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
            let reason = format!("is {dims}; it must be even and at most the head's {head_dim}");
            return Err(reader.bad(keys::ROPE_DIMENSION_COUNT, reason));
        }
        let base = reader.float(keys::ROPE_FREQ_BASE).unwrap_or(10_000.0);
        let layout = match file.meta(keys::ROPE_LAYOUT).and_then(Meta::as_str) {
            None | Some("half") => RopeLayout::Half,
            Some("interleaved") => RopeLayout::Interleaved,
            Some(other) => return Err(reader.bad(keys::ROPE_LAYOUT, format!("is '{other}'"))),
        };
        let scaling = reader.scaling(dims)?;
        Ok(RopeSpec {
            dims,
            base,
            layout,
            scaling,
        })
    }
}

struct Reader<'a> {
    file: &'a dyn ModelFile,
}

impl Reader<'_> {
    fn scaling(&self, dims: u32) -> Result<RopeScaling> {
        // GGUF states Llama 3's frequencies as a tensor of divisors.
        if let Some(view) = self.file.tensor("rope_freqs.weight") {
            let mut divisors = vec![0.0; view.elements()];
            view.format.decode_row(&view.bytes, &mut divisors);
            if divisors.len() != dims as usize / 2
                || divisors.iter().any(|d| !d.is_finite() || *d <= 0.0)
            {
                return Err(Error::Tensor {
                    model: self.file.label().to_string(),
                    tensor: "rope_freqs.weight".into(),
                    reason: format!("must hold {} positive divisors", dims / 2),
                });
            }
            return Ok(RopeScaling::Divisors(divisors));
        }
        let factor = || self.needed(keys::ROPE_SCALING_FACTOR);
        match self
            .file
            .meta(keys::ROPE_SCALING_TYPE)
            .and_then(Meta::as_str)
        {
            None | Some("none" | "default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
            Some("dynamic" | "ntk") => Ok(RopeScaling::Dynamic {
                factor: factor()?,
                original: self.original_or_context()?,
            }),
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq: self.needed(keys::ROPE_SCALING_LOW_FREQ_FACTOR)?,
                high_freq: self.needed(keys::ROPE_SCALING_HIGH_FREQ_FACTOR)?,
                original: self.original_or_context()?,
            }),
            Some("yarn") => {
                let factor = factor()?;
                let attn = self.float(keys::ROPE_SCALING_ATTN_FACTOR);
                let truncate = self
                    .file
                    .meta(keys::ROPE_SCALING_TRUNCATE)
                    .and_then(Meta::as_bool);
                Ok(RopeScaling::Yarn {
                    factor,
                    original: self.original_or_context()?,
                    beta_fast: self.float(keys::ROPE_SCALING_BETA_FAST).unwrap_or(32.0),
                    beta_slow: self.float(keys::ROPE_SCALING_BETA_SLOW).unwrap_or(1.0),
                    attn_factor: attn.unwrap_or(if factor <= 1.0 {
                        1.0
                    } else {
                        0.1 * factor.ln() + 1.0
                    }),
                    truncate: truncate.unwrap_or(true),
                })
            }
            Some(other) => {
                let known = "none, linear, dynamic, llama3, yarn";
                Err(self.bad(
                    keys::ROPE_SCALING_TYPE,
                    format!("is '{other}'; known kinds: {known}"),
                ))
            }
        }
    }

    fn original_or_context(&self) -> Result<u32> {
        self.integer(keys::ROPE_SCALING_ORIGINAL_CONTEXT)
            .or_else(|| self.integer(keys::CONTEXT_LENGTH))
            .ok_or_else(|| self.bad(keys::ROPE_SCALING_ORIGINAL_CONTEXT, "is missing".into()))
    }

    fn integer(&self, key: &str) -> Option<u32> {
        self.file
            .meta(key)?
            .as_u64()
            .and_then(|v| u32::try_from(v).ok())
    }

    fn float(&self, key: &str) -> Option<f64> {
        self.file.meta(key)?.as_f64().filter(|v| v.is_finite())
    }

    fn needed(&self, key: &str) -> Result<f64> {
        self.float(key).filter(|v| *v > 0.0).ok_or_else(|| {
            self.bad(
                key,
                "is missing or not a positive number, but the scaling kind needs it".into(),
            )
        })
    }

    fn bad(&self, key: &str, reason: String) -> Error {
        Error::Meta {
            model: self.file.label().to_string(),
            key: key.into(),
            reason,
        }
    }
}
