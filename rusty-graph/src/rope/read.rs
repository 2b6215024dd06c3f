//! Reading a [`RopeSpec`] from canonical metadata.
//!
//! Kinds that are not known are refused: a wrong frequency does not crash, it only makes text worse.

use rusty_loader::meta::keys;
use rusty_loader::{Meta, ModelFile};

use super::{RopeLayout, RopeScaling, RopeSpec};
use crate::Result;
use crate::arch::Checkpoint;

/// Divisors of the frequencies (GGUF's way to state Llama 3.1's scaling).
const DIVISORS: &str = "rope_freqs.weight";
/// GGUF's way to state longrope's divisors.
const SHORT: &str = "rope_factors_short.weight";
const LONG: &str = "rope_factors_long.weight";

impl RopeSpec {
    /// The rotary embedding a model states for heads of width `head_dim`.
    ///
    /// # Errors
    /// [`crate::Error::Meta`] or [`crate::Error::Tensor`] where a key or `rope_freqs.weight` is missing, unusable or of an
    /// unknown kind.
    pub fn from_model(file: &dyn ModelFile, head_dim: u32) -> Result<Self> {
        let model = Checkpoint::new(file);
        let dims = model.int_or(keys::ROPE_DIMENSION_COUNT, head_dim)?;
        if dims == 0 || dims % 2 != 0 || dims > head_dim {
            let reason = format!("is {dims}; needed: even and at most the head's width {head_dim}");
            return Err(model.meta_error(keys::ROPE_DIMENSION_COUNT, reason));
        }
        let base = model.float_or(keys::ROPE_FREQ_BASE, 10_000.0)?;
        if !(base.is_finite() && base > 1.0) {
            let reason = format!("is {base}; needed: a finite number above 1");
            return Err(model.meta_error(keys::ROPE_FREQ_BASE, reason));
        }
        let layout = match model.text(keys::ROPE_LAYOUT)?.unwrap_or("half") {
            "half" => RopeLayout::Half,
            "interleaved" => RopeLayout::Interleaved,
            other => {
                let reason = format!("is '{other}'; known: half, interleaved");
                return Err(model.meta_error(keys::ROPE_LAYOUT, reason));
            }
        };
        let scaling = Scaling { model, dims }.read()?;
        Ok(Self {
            dims,
            base,
            layout,
            scaling,
        })
    }
}

/// YaRN's factor for a stretch, `0.1 m ln(factor) + 1` (arXiv 2309.00071, section 3.4, with DeepSeek's `mscale` as `m`).
pub(crate) fn yarn_magnitude(m: f64, factor: f64) -> f64 {
    match factor > 1.0 {
        true => 0.1 * m * factor.ln() + 1.0,
        false => 1.0,
    }
}

struct Scaling<'a> {
    model: Checkpoint<'a>,
    dims: u32,
}

impl Scaling<'_> {
    fn read(&self) -> Result<RopeScaling> {
        let kind = self.model.text(keys::ROPE_SCALING_TYPE)?.unwrap_or("none");
        let plain = matches!(kind, "none" | "default");
        if kind == "longrope" || plain && self.model.has(LONG) {
            return self.long();
        }
        if let Some(divisors) = self.divisors()? {
            if !plain {
                let reason = format!("is '{kind}', and '{DIVISORS}' states a scaling of its own");
                return Err(self.model.meta_error(keys::ROPE_SCALING_TYPE, reason));
            }
            return Ok(divisors);
        }
        match kind {
            _ if plain => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear {
                factor: self.factor()?,
            }),
            "dynamic" | "ntk" => self.dynamic(),
            "llama3" => self.llama3(),
            "yarn" => self.yarn(),
            other => {
                let reason = format!(
                    "is '{other}'; supported: none, linear, dynamic, llama3, yarn, longrope (--rope-scaling chooses \
                     another)"
                );
                Err(self.model.meta_error(keys::ROPE_SCALING_TYPE, reason))
            }
        }
    }

    fn divisors(&self) -> Result<Option<RopeScaling>> {
        let Some(values) = self.model.vector(DIVISORS)? else {
            return Ok(None);
        };
        self.check_divisors(&values)
            .map_err(|reason| self.model.tensor_error(DIVISORS, reason))?;
        Ok(Some(RopeScaling::Divisors(values)))
    }

    fn check_divisors(&self, values: &[f32]) -> Result<(), String> {
        let usable = values.iter().all(|d| d.is_finite() && *d > 0.0);
        if values.len() == self.dims as usize / 2 && usable {
            return Ok(());
        }
        let (have, need) = (values.len(), self.dims / 2);
        Err(format!(
            "holds {have} divisors; needed: {need} positive numbers"
        ))
    }

    fn long(&self) -> Result<RopeScaling> {
        let original = self.original()?;
        let context = self.model.int(keys::CONTEXT_LENGTH)?;
        let stretch = match self.model.float(keys::ROPE_SCALING_FACTOR)? {
            Some(_) => self.factor()?,
            None => f64::from(context) / f64::from(original),
        };
        let usual = match stretch > 1.0 && original > 1 {
            true => (1.0 + stretch.ln() / f64::from(original).ln()).sqrt(),
            false => 1.0,
        };
        Ok(RopeScaling::Long {
            short: self.list(keys::ROPE_SCALING_SHORT_FACTOR, SHORT)?,
            long: self.list(keys::ROPE_SCALING_LONG_FACTOR, LONG)?,
            original,
            attn_factor: self.positive(keys::ROPE_SCALING_ATTN_FACTOR, Some(usual))?,
        })
    }

    /// Divisors from the metadata or from a tensor.
    fn list(&self, key: &str, tensor: &str) -> Result<Vec<f32>> {
        let values = match self.model.meta(key) {
            Some(stated) => stated.as_array().and_then(|list| {
                let value = |v: &Meta| Some(v.as_f64()? as f32);
                list.iter().map(value).collect()
            }),
            None => self.model.vector(tensor)?,
        };
        let Some(values) = values else {
            let reason = match self.model.meta(key) {
                Some(_) => "is no list of numbers",
                None => {
                    "is missing: only a model that was made for longrope can be scaled by it \
                     (--rope-scaling chooses another)"
                }
            };
            return Err(self.model.meta_error(key, reason.into()));
        };
        self.check_divisors(&values)
            .map_err(|reason| self.model.meta_error(key, reason))?;
        Ok(values)
    }

    fn dynamic(&self) -> Result<RopeScaling> {
        if self.dims <= 2 {
            let reason = "is 'dynamic', which needs more than 2 rotated dimensions".into();
            return Err(self.model.meta_error(keys::ROPE_SCALING_TYPE, reason));
        }
        Ok(RopeScaling::Dynamic {
            factor: self.factor()?,
            original: self.original()?,
        })
    }

    fn llama3(&self) -> Result<RopeScaling> {
        let low_freq = self.positive(keys::ROPE_SCALING_LOW_FREQ_FACTOR, None)?;
        let high_freq = self.positive(keys::ROPE_SCALING_HIGH_FREQ_FACTOR, None)?;
        if low_freq >= high_freq {
            let reason = format!("is {high_freq}, not above the low factor {low_freq}");
            return Err(self
                .model
                .meta_error(keys::ROPE_SCALING_HIGH_FREQ_FACTOR, reason));
        }
        Ok(RopeScaling::Llama3 {
            factor: self.factor()?,
            low_freq,
            high_freq,
            original: self.original()?,
        })
    }

    fn yarn(&self) -> Result<RopeScaling> {
        let key = keys::ROPE_SCALING_ORIGINAL_CONTEXT;
        if self.model.meta(key).is_none() {
            let model = self.model.label();
            tracing::warn!("{model} asks for YaRN, but lacks {key}: dynamic NTK takes its place");
            return self.dynamic();
        }
        let original = self.original()?;
        let factor = match self.model.float(keys::ROPE_SCALING_FACTOR)? {
            Some(_) => self.factor()?,
            None => f64::from(self.model.int(keys::CONTEXT_LENGTH)?) / f64::from(original),
        };
        let attn_factor = match self.model.float(keys::ROPE_SCALING_ATTN_FACTOR)? {
            Some(_) => self.positive(keys::ROPE_SCALING_ATTN_FACTOR, None)?,
            None => self.magnitude(factor)?,
        };
        Ok(RopeScaling::Yarn {
            factor,
            original,
            beta_fast: self.positive(keys::ROPE_SCALING_BETA_FAST, Some(32.0))?,
            beta_slow: self.positive(keys::ROPE_SCALING_BETA_SLOW, Some(1.0))?,
            attn_factor,
            truncate: self
                .model
                .meta(keys::ROPE_SCALING_TRUNCATE)
                .and_then(Meta::as_bool)
                .unwrap_or(true),
        })
    }

    /// YaRN's default factor on cos and sin (section 3.4 of the paper; DeepSeek's two `mscale`s).
    fn magnitude(&self, factor: f64) -> Result<f64> {
        let mscale = |m: f64| yarn_magnitude(m, factor);
        let (one, all) = (
            self.model.float(keys::ROPE_SCALING_MSCALE)?,
            self.model.float(keys::ROPE_SCALING_MSCALE_ALL_DIM)?,
        );
        Ok(match (one, all) {
            (Some(a), Some(b)) if a != 0.0 && b != 0.0 => mscale(a) / mscale(b),
            _ => mscale(1.0),
        })
    }

    fn factor(&self) -> Result<f64> {
        self.positive(keys::ROPE_SCALING_FACTOR, None)
    }

    fn original(&self) -> Result<u32> {
        let key = keys::ROPE_SCALING_ORIGINAL_CONTEXT;
        let original = match self.model.meta(key) {
            Some(_) => self.model.int(key)?,
            None => self.model.int(keys::CONTEXT_LENGTH)?,
        };
        if original == 0 {
            return Err(self.model.meta_error(key, "is 0".into()));
        }
        Ok(original)
    }

    fn positive(&self, key: &str, default: Option<f64>) -> Result<f64> {
        let value = self.model.float(key)?.or(default);
        match value {
            Some(v) if v.is_finite() && v > 0.0 => Ok(v),
            Some(v) => Err(self
                .model
                .meta_error(key, format!("is {v}; needed: a positive number"))),
            None if key == keys::ROPE_SCALING_FACTOR => {
                let reason = "is missing; --rope-scaling with --rope-factor states one";
                Err(self.model.meta_error(key, reason.into()))
            }
            None => Err(self.model.meta_error(key, "is missing".into())),
        }
    }
}
