//! From logits to a token: a chain of stages, then a choice.
//!
//! Stages change logits in place; a removed token's logit is minus infinity. The definitions are those of
//! transformers' logits processors where one exists; presence and frequency follow OpenAI's (of what was answered, not of
//! the prompt), top-n-sigma arXiv 2411.07641, DRY its author's.

mod exponentials;
mod filters;
mod penalties;
mod stage;

pub use stage::{History, Stage};

use exponentials::Shares;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Temperatures below this are greedy: logits divided by them may overflow.
const LEAST_TEMPERATURE: f32 = 1e-5;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0, or next to it: greedy.
    pub temperature: f32,
    /// 0: all.
    pub top_k: usize,
    /// 1: all.
    pub top_p: f32,
    /// 0: all.
    pub min_p: f32,
    /// 1: none.
    pub repetition_penalty: f32,
    /// 0: none.
    pub presence_penalty: f32,
    /// 0: none.
    pub frequency_penalty: f32,
    /// Further stages: those that look at what was said come behind the penalties, in this order, then top-n-sigma, which measures all
    /// logits, as in llama.cpp; the others, in this order, last, as in transformers.
    pub further: Vec<Stage>,
    /// The same seed gives the same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            further: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// The chain in the order of transformers: penalties, temperature, top-k, top-p, min-p, of which those that would
    /// change nothing are left out, and further stages.
    pub fn chain(&self) -> Vec<Stage> {
        let mut chain = Vec::new();
        if self.repetition_penalty != 1.0 {
            chain.push(Stage::Repetition(self.repetition_penalty));
        }
        if self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 {
            let (presence, frequency) = (self.presence_penalty, self.frequency_penalty);
            chain.push(Stage::PresenceFrequency {
                presence,
                frequency,
            });
        }
        let further = || self.further.iter().cloned();
        let of_all = |stage: &Stage| matches!(stage, Stage::TopNSigma(_));
        chain.extend(further().filter(Stage::looks_back));
        if !self.is_greedy() {
            chain.extend(further().filter(of_all));
            if self.temperature != 1.0 {
                chain.push(Stage::Temperature(self.temperature));
            }
            if self.top_k > 0 {
                chain.push(Stage::TopK(self.top_k));
            }
            if self.top_p < 1.0 {
                chain.push(Stage::TopP(self.top_p));
            }
            if self.min_p > 0.0 {
                chain.push(Stage::MinP(self.min_p));
            }
            chain.extend(further().filter(|stage| !stage.looks_back() && !of_all(stage)));
        }
        chain
    }

    fn is_greedy(&self) -> bool {
        self.temperature < LEAST_TEMPERATURE
    }

    /// What is wrong with the settings, if anything.
    pub fn problem(&self) -> Option<String> {
        let temperature = self.temperature;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            let problem = format!("temperature is {temperature}; it must be finite and at least 0");
            return Some(problem);
        }
        let (presence, frequency) = (self.presence_penalty, self.frequency_penalty);
        let settings = [
            Stage::TopP(self.top_p),
            Stage::MinP(self.min_p),
            Stage::Repetition(self.repetition_penalty),
            Stage::PresenceFrequency {
                presence,
                frequency,
            },
        ];
        let mut stages = settings.iter().chain(&self.further);
        stages.find_map(Stage::problem)
    }
}

/// A chain with its random state.
#[derive(Debug)]
pub struct Sampler {
    chain: Vec<Stage>,
    /// Stages in front that are applied to all logits; those behind them see only what is left.
    whole: usize,
    greedy: bool,
    random: StdRng,
}

impl Sampler {
    /// A sampler at the start of its random sequence.
    pub fn new(sampling: &Sampling) -> Self {
        let chain = sampling.chain();
        Self {
            whole: whole_stages(&chain),
            chain,
            greedy: sampling.is_greedy(),
            random: StdRng::seed_from_u64(sampling.seed),
        }
    }

    /// Whether the device's argmax is all it needs.
    pub fn is_argmax(&self) -> bool {
        self.greedy && self.chain.is_empty()
    }

    /// Chooses the next token.
    pub fn choose(&mut self, logits: &mut [f32], history: History<'_>) -> u32 {
        let least = self.least_kept(logits);
        let whole = if least.is_some() { 0 } else { self.whole };
        let (whole, behind) = self.chain.split_at(whole);
        for stage in whole {
            stage.apply(logits, history);
        }
        if !self.chain.iter().any(Stage::removes) {
            return self.pick(logits) as u32;
        }
        let (tokens, mut logits) = filters::at_least(logits, least.unwrap_or(f32::NEG_INFINITY));
        for stage in behind {
            stage.apply(&mut logits, history);
        }
        // None is left where all are minus infinity.
        tokens.get(self.pick(&logits)).copied().unwrap_or(0)
    }

    /// A logit below which nothing stays, where all of them tell it before any stage: of chains that begin by keeping the largest or the
    /// most likely, at a temperature or without, so that stages need be applied to few.
    fn least_kept(&self, logits: &[f32]) -> Option<f32> {
        let (temperature, first, number) = match &self.chain[..] {
            [Stage::Temperature(t), first, ..] => (*t, first, 1),
            [first, ..] => (1.0, first, 0),
            [] => return None,
        };
        // Nothing behind the first that removes tokens needs them all.
        if self.whole > number + 1 {
            return None;
        }
        let (most, below) = match first {
            Stage::TopK(k) if *k > 0 && *k < logits.len() => {
                (filters::kth_largest(logits, *k), 0.0)
            }
            Stage::MinP(p) if *p > 0.0 => (filters::largest(logits), -temperature * p.ln()),
            _ => return None,
        };
        // Stages themselves are exact; here rounding must not go too far.
        let least = most - below - (most.abs() + below + 1.0) * 1e-5;
        (!least.is_nan()).then_some(least)
    }

    /// The place of the most likely of some tokens, or of one drawn as its logit says.
    fn pick(&mut self, logits: &[f32]) -> usize {
        if self.greedy {
            return argmax(logits) as usize;
        }
        let place = Shares::beside(filters::largest(logits)).place_of(logits, self.random.random());
        // Rounding can leave a remainder behind the last token.
        place.unwrap_or_else(|| argmax(logits) as usize)
    }
}

/// Of a chain, how many stages are applied to all logits: up to the first that removes some, and as far as others need them all.
fn whole_stages(chain: &[Stage]) -> usize {
    let removing = chain
        .iter()
        .position(Stage::removes)
        .map_or(chain.len(), |at| at + 1);
    let needing = chain
        .iter()
        .rposition(|stage| !stage.needs_only_what_is_left());
    removing.max(needing.map_or(0, |at| at + 1))
}

/// The lowest id among the largest logits.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

/// Probabilities of logits, in double precision. Of infinite ones, which a stage may have made, each of the largest is as
/// likely.
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let shares = Shares::beside(filters::largest(logits));
    let mut all = vec![0.0; logits.len()];
    shares.write(logits, &mut all);
    let total = exponentials::total(&all);
    all.iter_mut().for_each(|share| *share /= total);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Logits of which many are equal, and some are no more.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let one = prop_oneof![
            8 => (-40i32..40).prop_map(|l| l as f32 / 4.0),
            2 => -150f32..150.0,
            1 => Just(f32::NEG_INFINITY),
        ];
        prop::collection::vec(one, 1..900)
    }

    fn stage() -> impl Strategy<Value = Stage> {
        prop_oneof![
            (0.3f32..2.0).prop_map(Stage::Temperature),
            (0usize..40).prop_map(Stage::TopK),
            (0.01f32..=1.0).prop_map(Stage::TopP),
            (0.0f32..=1.0).prop_map(Stage::MinP),
            (0.1f32..1.0).prop_map(Stage::Typical),
            (0.0f32..0.1).prop_map(Stage::Epsilon),
            (0.5f32..3.0).prop_map(Stage::TopNSigma),
            (1.0f32..2.0).prop_map(Stage::Repetition),
        ]
    }

    proptest! {
        /// What stages that follow do not see changes no choice.
        #[test]
        fn removed_tokens_are_removed_for_good(
            logits in logits(),
            chain in prop::collection::vec(stage(), 0..4),
            greedy in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let said = [3, 5, 3, 8];
            let history = History { tokens: &said, prompt: 2 };
            let mut all = logits.clone();
            for stage in &chain {
                stage.apply(&mut all, history);
            }
            let sampler = |whole| Sampler {
                whole,
                chain: chain.clone(),
                greedy,
                random: StdRng::seed_from_u64(seed),
            };
            let want = sampler(chain.len()).pick(&all) as u32;
            let have = sampler(whole_stages(&chain)).choose(&mut logits.clone(), history);
            prop_assert_eq!(have, want);
        }
    }
}
