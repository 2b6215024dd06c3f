//! Rotary position embedding: which frequencies, scaled how, laid out how.
//!
//! The graph holds a specification; whoever runs it computes `cos`/`sin` of `position * inv_freq` on the
//! host in double precision, scaled by the attention factor, and hands a table `[rows, dims / 2]` of pairs
//! to the kernels. References: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), and
//! `modeling_rope_utils.py` of transformers for the exact constants of each scaling kind.

/// Which lanes of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeLayout {
    /// Lane `i` with lane `i + dims / 2` (`rotate_half`).
    Half,
    /// Lane `2 i` with lane `2 i + 1`.
    Interleaved,
}

/// How frequencies are stretched for contexts longer than the trained one.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// The base grows with the length of the whole pass once it exceeds `original` (dynamic NTK).
    Dynamic {
        /// Stretch.
        factor: f64,
        /// Trained context.
        original: u32,
    },
    /// Low frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1).
    Llama3 {
        /// Stretch.
        factor: f64,
        /// Wavelengths above `original / low_freq` are stretched.
        low_freq: f64,
        /// Wavelengths below `original / high_freq` are kept.
        high_freq: f64,
        /// Trained context.
        original: u32,
    },
    /// YaRN.
    Yarn {
        /// Stretch.
        factor: f64,
        /// Trained context.
        original: u32,
        /// Rotations above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which a frequency is stretched.
        beta_slow: f64,
        /// Factor on cos and sin (already resolved from mscale or `0.1 ln(factor) + 1`).
        attn_factor: f64,
        /// Whether the ramp's ends are rounded to whole dimensions.
        truncate: bool,
    },
    /// Explicit divisors per frequency (GGUF's `rope_freqs.weight`).
    Divisors(Vec<f32>),
}

/// One rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Rotated dimensions per head (even; the rest of a head passes through).
    pub dims: u32,
    /// Base frequency.
    pub base: f64,
    /// Pairing of lanes.
    pub layout: RopeLayout,
    /// Context extension.
    pub scaling: RopeScaling,
}

impl RopeSpec {
    /// Inverse frequencies, `dims / 2` of them, and the factor on cos and sin, for a request of `length`
    /// tokens (which matters for [`RopeScaling::Dynamic`] only).
    pub fn inv_freq(&self, length: u32) -> (Vec<f64>, f64) {
        let half = self.dims / 2;
        let plain = |base: f64| -> Vec<f64> {
            (0..half)
                .map(|i| base.powf(-2.0 * f64::from(i) / f64::from(self.dims)))
                .collect()
        };
        let freqs = plain(self.base);
        match &self.scaling {
            RopeScaling::None => (freqs, 1.0),
            RopeScaling::Linear { factor } => (freqs.iter().map(|f| f / factor).collect(), 1.0),
            RopeScaling::Dynamic { factor, original } => {
                let dims = f64::from(self.dims);
                let stretch = factor * f64::from(length.max(*original)) / f64::from(*original)
                    - (factor - 1.0);
                (plain(self.base * stretch.powf(dims / (dims - 2.0))), 1.0)
            }
            RopeScaling::Llama3 {
                factor,
                low_freq,
                high_freq,
                original,
            } => {
                let original = f64::from(*original);
                let scaled = |f: &f64| {
                    let wavelength = 2.0 * std::f64::consts::PI / f;
                    if wavelength > original / low_freq {
                        f / factor
                    } else if wavelength < original / high_freq {
                        *f
                    } else {
                        let smooth = (original / wavelength - low_freq) / (high_freq - low_freq);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (freqs.iter().map(scaled).collect(), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                attn_factor,
                ..
            } => {
                let (low, high) = self.yarn_range();
                let blend = |(i, f): (usize, &f64)| {
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * ramp + f * (1.0 - ramp)
                };
                (freqs.iter().enumerate().map(blend).collect(), *attn_factor)
            }
            RopeScaling::Divisors(divisors) => (
                freqs
                    .iter()
                    .zip(divisors)
                    .map(|(f, d)| f / f64::from(*d))
                    .collect(),
                1.0,
            ),
        }
    }

    /// First and last frequency of YaRN's ramp (`find_correction_range`).
    fn yarn_range(&self) -> (f64, f64) {
        let RopeScaling::Yarn {
            original,
            beta_fast,
            beta_slow,
            truncate,
            ..
        } = &self.scaling
        else {
            return (0.0, 1.0);
        };
        let dims = f64::from(self.dims);
        let dim = |rotations: f64| {
            let turns = f64::from(*original) / (rotations * 2.0 * std::f64::consts::PI);
            dims * turns.ln() / (2.0 * self.base.ln())
        };
        let (mut low, mut high) = (dim(*beta_fast), dim(*beta_slow));
        if *truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dims - 1.0));
        // Equal ends would divide by zero; transformers widens them the same way.
        if low == high {
            (low, high + 0.001)
        } else {
            (low, high)
        }
    }

    /// Writes the row of a position: `(cos, sin)` per frequency, `dims` values in all.
    pub fn table_row(&self, position: u32, length: u32, out: &mut [f32]) {
        let (freqs, factor) = self.inv_freq(length);
        for (pair, freq) in out.chunks_exact_mut(2).zip(freqs) {
            let (sin, cos) = (f64::from(position) * freq).sin_cos();
            pair[0] = (cos * factor) as f32;
            pair[1] = (sin * factor) as f32;
        }
    }
}
