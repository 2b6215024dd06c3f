//! Rotary position embedding: which frequencies, scaled how, laid out how.
//!
//! The graph holds a specification; whoever runs it computes cosine and sine of each position times each frequency
//! ([`Turns`]) on the host in double precision, scaled by the attention factor, and hands a table `[rows, dims / 2]` of
//! pairs to the kernels. References: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), and
//! `modeling_rope_utils.py` of transformers for the exact constants of each scaling kind.

mod frequencies;
pub(crate) mod read;

pub use frequencies::Turns;

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
    /// Explicit divisors, others for passes that exceed the trained context (LongRoPE, arXiv 2402.13753, as Phi-3
    /// uses it).
    Long {
        /// Divisors up to the trained context.
        short: Vec<f32>,
        /// Divisors beyond.
        long: Vec<f32>,
        /// Trained context.
        original: u32,
        /// Factor on cos and sin.
        attn_factor: f64,
    },
}

impl RopeScaling {
    /// Tokens that a model reaches which states `context`: dynamic NTK only acts beyond the trained context, which
    /// files state unstretched.
    pub fn reach(&self, context: u32) -> u32 {
        match self {
            RopeScaling::Dynamic { factor, original } => {
                context.max((f64::from(*original) * factor) as u32)
            }
            _ => context,
        }
    }
}

impl std::fmt::Display for RopeScaling {
    /// Its name and what it stretches: `yarn, 4 times 32768 tokens`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RopeScaling::None => write!(f, "none"),
            RopeScaling::Linear { factor } => write!(f, "linear, {factor} times"),
            RopeScaling::Dynamic { factor, original } => {
                write!(f, "ntk, {factor} times {original} tokens")
            }
            RopeScaling::Llama3 {
                factor, original, ..
            } => write!(f, "llama3, {factor} times {original} tokens"),
            RopeScaling::Yarn {
                factor, original, ..
            } => write!(f, "yarn, {factor} times {original} tokens"),
            RopeScaling::Divisors(divisors) => {
                write!(f, "{} divisors of the file", divisors.len())
            }
            RopeScaling::Long { original, .. } => write!(f, "longrope beyond {original} tokens"),
        }
    }
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
    /// Whether frequencies are the same for sequences of two lengths.
    pub fn rotates_alike(&self, a: u32, b: u32) -> bool {
        match self.scaling {
            RopeScaling::Dynamic { original, .. } => a.max(original) == b.max(original),
            RopeScaling::Long { original, .. } => (a > original) == (b > original),
            _ => true,
        }
    }
}
