//! The stages of a chain.

use super::{filters, penalties};

/// What was said before.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// The prompt and the answer so far, oldest first.
    pub tokens: &'a [u32],
    /// Tokens of the prompt.
    pub prompt: usize,
}

impl<'a> History<'a> {
    fn answer(&self) -> &'a [u32] {
        &self.tokens[self.prompt.min(self.tokens.len())..]
    }
}

/// One step of a chain.
#[derive(Clone, Debug, PartialEq)]
pub enum Stage {
    /// Divides logits.
    Temperature(f32),
    /// Keeps the `k` largest logits, ties included; 0 keeps all.
    TopK(usize),
    /// Keeps the most likely tokens up to this probability mass.
    TopP(f32),
    /// Keeps tokens at least this fraction as likely as the most likely.
    MinP(f32),
    /// Keeps the most typical tokens up to this mass (arXiv 2202.00666).
    Typical(f32),
    /// Keeps tokens at least this likely (arXiv 2210.15191).
    Epsilon(f32),
    /// Keeps tokens by an entropy-dependent threshold (arXiv 2210.15191).
    Eta(f32),
    /// Keeps logits within `n` standard deviations of the largest.
    TopNSigma(f32),
    /// Divides positive and multiplies negative logits of tokens of prompt and answer (arXiv 1909.05858).
    Repetition(f32),
    /// Subtracts `presence` for tokens of the answer and `frequency` for each occurrence there.
    PresenceFrequency {
        /// Once per token.
        presence: f32,
        /// Per occurrence.
        frequency: f32,
    },
    /// Removes tokens that would complete an n-gram a second time.
    NoRepeatNgram(usize),
    /// Lowers tokens that would prolong a repetition.
    Dry {
        /// Strength.
        multiplier: f32,
        /// Growth per token of repetition.
        base: f32,
        /// Repetitions up to this length are free.
        allowed_length: usize,
        /// Tokens looked back.
        last_n: usize,
        /// Tokens that end a match.
        breakers: Vec<u32>,
    },
}

impl Stage {
    /// Whether it looks at what was said before.
    pub(super) fn looks_back(&self) -> bool {
        matches!(
            self,
            Stage::Repetition(_)
                | Stage::PresenceFrequency { .. }
                | Stage::NoRepeatNgram(_)
                | Stage::Dry { .. }
        )
    }

    /// What is wrong with its settings, if anything.
    pub fn problem(&self) -> Option<String> {
        let above_0 = |value: f32| (value > 0.0 && value.is_finite(), "finite and above 0");
        let mass = |value: f32| (value > 0.0 && value <= 1.0, "above 0 and at most 1");
        let cutoff = |value: f32| ((0.0..1.0).contains(&value), "at least 0 and below 1");
        let (name, value, (right, range)) = match *self {
            Stage::Temperature(t) => ("temperature", t, above_0(t)),
            Stage::TopP(p) => ("top-p", p, mass(p)),
            Stage::MinP(p) => ("min-p", p, ((0.0..=1.0).contains(&p), "from 0 to 1")),
            Stage::Typical(p) => ("typical-p", p, mass(p)),
            Stage::Epsilon(e) => ("epsilon cutoff", e, cutoff(e)),
            Stage::Eta(e) => ("eta cutoff", e, cutoff(e)),
            Stage::TopNSigma(n) => ("top-n-sigma", n, above_0(n)),
            Stage::Repetition(p) => ("repetition penalty", p, above_0(p)),
            Stage::PresenceFrequency {
                presence,
                frequency,
            } => {
                let finite = presence.is_finite() && frequency.is_finite();
                return (!finite).then(|| "presence and frequency penalties must be finite".into());
            }
            Stage::Dry {
                multiplier, base, ..
            } => match multiplier >= 0.0 && multiplier.is_finite() {
                true => ("DRY's base", base, above_0(base)),
                false => (
                    "DRY's multiplier",
                    multiplier,
                    (false, "finite and at least 0"),
                ),
            },
            Stage::TopK(_) | Stage::NoRepeatNgram(_) => return None,
        };
        (!right).then(|| format!("{name} is {value}; it must be {range}"))
    }

    /// Whether it may remove tokens.
    pub(super) fn removes(&self) -> bool {
        !matches!(
            self,
            Stage::Temperature(_)
                | Stage::Repetition(_)
                | Stage::PresenceFrequency { .. }
                | Stage::Dry { .. }
        )
    }

    /// Whether it looks at neither ids nor tokens that were removed.
    pub(super) fn needs_only_what_is_left(&self) -> bool {
        matches!(
            self,
            Stage::Temperature(_)
                | Stage::TopK(_)
                | Stage::TopP(_)
                | Stage::MinP(_)
                | Stage::Typical(_)
                | Stage::Epsilon(_)
                | Stage::Eta(_)
                | Stage::TopNSigma(_)
        )
    }

    /// Applies the stage to the logits of the token behind `history`.
    pub fn apply(&self, logits: &mut [f32], history: History<'_>) {
        let said = history.tokens;
        match self {
            Stage::Temperature(t) => logits.iter_mut().for_each(|l| *l /= t),
            Stage::TopK(k) => filters::top_k(logits, *k),
            Stage::TopP(p) => filters::top_p(logits, *p),
            Stage::MinP(p) => filters::min_p(logits, *p),
            Stage::Typical(p) => filters::typical(logits, *p),
            Stage::Epsilon(e) => filters::epsilon(logits, *e),
            Stage::Eta(e) => filters::eta(logits, *e),
            Stage::TopNSigma(n) => filters::top_n_sigma(logits, *n),
            Stage::Repetition(p) => penalties::repetition(logits, said, *p),
            Stage::PresenceFrequency {
                presence,
                frequency,
            } => {
                penalties::presence_frequency(logits, history.answer(), *presence, *frequency);
            }
            Stage::NoRepeatNgram(n) => penalties::no_repeat_ngram(logits, said, *n),
            Stage::Dry {
                multiplier,
                base,
                allowed_length,
                last_n,
                breakers,
            } => {
                let recent = &said[said.len().saturating_sub(*last_n)..];
                penalties::dry(
                    logits,
                    recent,
                    *multiplier,
                    *base,
                    *allowed_length,
                    breakers,
                );
            }
        }
    }
}
