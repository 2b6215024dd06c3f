//! How far two ways of running a model are apart, as a number: the Kullback-Leibler divergence of what they expect next.

use crate::adapters::AdapterSet;
use crate::engine::Engine;
use crate::request::{Prompt, Request};
use crate::{Error, Result};

/// Divergence over a number of positions, in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Divergence {
    /// Mean of KL(first || second).
    pub mean: f64,
    /// Largest.
    pub max: f64,
    /// Share of positions at which both expect the same token most.
    pub same_top: f64,
    /// Positions.
    pub positions: usize,
}

impl Engine {
    /// How far `second` is from `first` in the answers that `first` gives to prompts: each is answered greedily with up
    /// to `most` tokens, and both are asked what they expect at each of them.
    ///
    /// # Errors
    /// A prompt is empty or too long, an adapter is not attached, or logits are not finite.
    pub fn divergence(
        &self,
        prompts: &[Prompt],
        most: usize,
        first: &AdapterSet,
        second: &AdapterSet,
    ) -> Result<Divergence> {
        let mut total = DivergenceSums::default();
        for prompt in prompts {
            let (tokens, from) = self.answered(prompt, most, first)?;
            let (p, q) = (
                self.logits(&tokens, first.clone())?,
                self.logits(&tokens, second.clone())?,
            );
            let vocab = self.vocab() as usize;
            let rows = p.chunks_exact(vocab).zip(q.chunks_exact(vocab));
            for (p, q) in rows.skip(from) {
                total.add(p, q)?;
            }
        }
        Ok(total.finished())
    }

    /// A prompt with its greedy answer, and the position whose logits chose the answer's first token.
    fn answered(
        &self,
        prompt: &Prompt,
        most: usize,
        set: &AdapterSet,
    ) -> Result<(Vec<u32>, usize)> {
        let mut session = self.session();
        session.set_adapter(set.clone())?;
        let mut tokens = session.prompt_tokens(prompt)?;
        let from = tokens.len().saturating_sub(1);
        let request = Request {
            max_tokens: most,
            ..Request::new(Prompt::Tokens(tokens.clone()))
        };
        for token in session.generate(&request)? {
            tokens.extend(token?.id);
        }
        Ok((tokens, from))
    }
}

/// A divergence in the making.
#[derive(Debug, Default)]
pub(crate) struct DivergenceSums {
    kl: f64,
    largest: f64,
    same_top: usize,
    positions: usize,
}

impl DivergenceSums {
    /// The means of what was added.
    pub(crate) fn finished(self) -> Divergence {
        let count = self.positions.max(1) as f64;
        Divergence {
            mean: self.kl / count,
            max: self.largest,
            same_top: self.same_top as f64 / count,
            positions: self.positions,
        }
    }

    /// Adds one position.
    pub(crate) fn add(&mut self, p: &[f32], q: &[f32]) -> Result<()> {
        let (p, q) = (log_softmax(p), log_softmax(q));
        let terms = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q));
        let kl: f64 = terms.sum();
        if !kl.is_finite() {
            return Err(Error::Request("logits are not finite".into()));
        }
        self.kl += kl;
        self.largest = self.largest.max(kl);
        self.same_top += usize::from(top(&p) == top(&q));
        self.positions += 1;
        Ok(())
    }
}

/// Logarithms of the probabilities that logits stand for.
pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = logits.iter().map(|l| f64::from(l - most));
    let sum: f64 = shifted.clone().map(f64::exp).sum();
    shifted.map(|l| l - sum.ln()).collect()
}

fn top(values: &[f64]) -> Option<usize> {
    (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b]))
}
