//! Frequencies and tables of a [`RopeSpec`], in double precision.
//!
//! Pair `i` of a head of `d` rotated dimensions turns by `position * f(i)` with
//! `f(i) = base^(-2 i / d)` before scaling. Only [`RopeScaling::Dynamic`] and
//! [`RopeScaling::Long`] look at the length of the pass.

use std::f64::consts::TAU;

use super::{RopeScaling, RopeSpec};

/// What the pairs of a head turn by at each position of one pass.
#[derive(Clone, Debug)]
pub struct Turns {
    /// Radians per position.
    frequencies: Vec<f64>,
    /// On cos and sin.
    factor: f64,
}

impl Turns {
    /// `(cos, sin)` of each of the `dims / 2` pairs at a position, times the attention factor.
    pub fn at(&self, position: u32) -> impl Iterator<Item = (f32, f32)> {
        let (position, factor) = (f64::from(position), self.factor);
        self.frequencies.iter().map(move |f| {
            let (sin, cos) = (position * f).sin_cos();
            ((cos * factor) as f32, (sin * factor) as f32)
        })
    }
}

impl RopeSpec {
    /// What the pairs of a head turn by in a pass whose last position is `length - 1`.
    pub fn turns(&self, length: u32) -> Turns {
        let (frequencies, factor) = self.frequencies(length);
        Turns {
            frequencies,
            factor,
        }
    }

    /// The `dims / 2` frequencies (radians per position) and the factor on cos and sin, for a pass of a length.
    fn frequencies(&self, length: u32) -> (Vec<f64>, f64) {
        let plain = self.powers(self.base);
        match &self.scaling {
            RopeScaling::None => (plain, 1.0),
            RopeScaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            RopeScaling::Dynamic { factor, original } => (
                self.powers(self.dynamic_base(*factor, *original, length)),
                1.0,
            ),
            RopeScaling::Llama3 {
                factor,
                low_freq,
                high_freq,
                original,
            } => {
                let ramp = Llama3Ramp {
                    factor: *factor,
                    low: *low_freq,
                    high: *high_freq,
                    original: f64::from(*original),
                };
                (plain.iter().map(|&f| ramp.scaled(f)).collect(), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                original,
                beta_fast,
                beta_slow,
                attn_factor,
                truncate,
            } => {
                let (low, high) = self.yarn_ramp([*beta_fast, *beta_slow], *original, *truncate);
                let blend = |(i, &f): (usize, &f64)| {
                    let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * ramp + f * (1.0 - ramp)
                };
                (plain.iter().enumerate().map(blend).collect(), *attn_factor)
            }
            RopeScaling::Divisors(divisors) => (divided(&plain, divisors), 1.0),
            RopeScaling::Long {
                short,
                long,
                original,
                attn_factor,
            } => {
                let divisors = if length > *original { long } else { short };
                (divided(&plain, divisors), *attn_factor)
            }
        }
    }

    /// The pairs between which yarn goes from the stated frequencies to the scaled ones.
    fn yarn_ramp(&self, betas: [f64; 2], original: u32, truncate: bool) -> (f64, f64) {
        let [mut low, mut high] = betas.map(|beta| self.correction_dim(beta, original));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        low = low.max(0.0);
        high = high.min(f64::from(self.dims) - 1.0);
        if low == high {
            high += 0.001;
        }
        (low, high)
    }

    /// The table `[positions, dims]` for the given positions of one pass, each row `cos_0, sin_0, cos_1, sin_1, ..`; see
    /// [`RopeSpec::turns`].
    pub fn table(&self, positions: &[u32], length: u32) -> Vec<f32> {
        let turns = self.turns(length);
        let width = self.dims as usize;
        let mut table = vec![0.0; positions.len() * width];
        for (row, &position) in table.chunks_exact_mut(width).zip(positions) {
            for (pair, (cos, sin)) in row.chunks_exact_mut(2).zip(turns.at(position)) {
                pair[0] = cos;
                pair[1] = sin;
            }
        }
        table
    }

    fn powers(&self, base: f64) -> Vec<f64> {
        let dims = f64::from(self.dims);
        (0..self.dims / 2)
            .map(|i| base.powf(-2.0 * f64::from(i) / dims))
            .collect()
    }

    fn dynamic_base(&self, factor: f64, original: u32, length: u32) -> f64 {
        let (dims, original) = (f64::from(self.dims), f64::from(original));
        let length = f64::from(length).max(original);
        self.base * (factor * length / original - (factor - 1.0)).powf(dims / (dims - 2.0))
    }

    /// YaRN: the (fractional) pair index whose wave turns `rotations` times within the trained context.
    fn correction_dim(&self, rotations: f64, original: u32) -> f64 {
        f64::from(self.dims) * (f64::from(original) / (rotations * TAU)).ln()
            / (2.0 * self.base.ln())
    }
}

fn divided(frequencies: &[f64], divisors: &[f32]) -> Vec<f64> {
    let pairs = frequencies.iter().zip(divisors);
    pairs.map(|(f, d)| f / f64::from(*d)).collect()
}

struct Llama3Ramp {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3Ramp {
    fn scaled(&self, f: f64) -> f64 {
        let wavelength = TAU / f;
        if wavelength < self.original / self.high {
            f
        } else if wavelength > self.original / self.low {
            f / self.factor
        } else {
            let smooth = (self.original / wavelength - self.low) / (self.high - self.low);
            (1.0 - smooth) * f / self.factor + smooth * f
        }
    }
}
