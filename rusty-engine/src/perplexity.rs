//! How well a model expects a text, and how far another one is from it: quality as a number.
//!
//! A text is cut into chunks of equal length, each read on its own. Only the second half of a chunk counts, where every
//! token has at least half a chunk before it, as llama.cpp's `perplexity` does.

use crate::divergence::{Divergence, DivergenceSums, log_softmax};
use crate::engine::Engine;
use crate::{AdapterSet, Error, Result};

/// Perplexity over a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Perplexity {
    /// The exponential of the mean.
    pub perplexity: f64,
    /// Standard error of the perplexity.
    pub error: f64,
    /// Mean negative logarithm of the tokens' probabilities, in nats.
    pub mean: f64,
    /// Tokens that count.
    pub tokens: usize,
}

#[derive(Default)]
struct Sums {
    first: f64,
    second: f64,
    tokens: usize,
}

impl Sums {
    fn add(&mut self, surprise: f64) {
        self.first += surprise;
        self.second += surprise * surprise;
        self.tokens += 1;
    }

    fn finished(&self) -> Perplexity {
        let n = self.tokens.max(1) as f64;
        let mean = self.first / n;
        let variance = (self.second / n - mean * mean).max(0.0);
        let perplexity = mean.exp();
        Perplexity {
            perplexity,
            error: perplexity * (variance / (n - 1.0).max(1.0)).sqrt(),
            mean,
            tokens: self.tokens,
        }
    }
}

/// What a comparison finds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Comparison {
    /// Of the reference.
    pub reference: Perplexity,
    /// Of the other.
    pub other: Perplexity,
    /// KL(reference || other) at the positions that count.
    pub divergence: Divergence,
}

impl Engine {
    /// The perplexity of a text in chunks of `chunk` tokens, `most` of them at most; `progress` is told the chunks done and
    /// to do.
    ///
    /// # Errors
    /// The text has fewer tokens than a chunk, the chunk does not fit the context, or logits are not finite.
    pub fn perplexity(
        &self,
        tokens: &[u32],
        chunk: usize,
        most: usize,
        adapters: &AdapterSet,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Perplexity> {
        let mut sums = Sums::default();
        let chunks = self.chunks(tokens, chunk, most)?;
        for (i, chunk) in chunks.iter().enumerate() {
            let logits = self.logits(chunk, adapters.clone())?;
            let rows = logits.chunks_exact(self.vocab() as usize);
            for (row, next) in rows.zip(&chunk[1..]).skip(chunk.len() / 2) {
                sums.add(surprise(row, *next)?);
            }
            progress(i + 1, chunks.len());
        }
        Ok(sums.finished())
    }

    /// A text in chunks; each begins as a text of its own does where the vocabulary has a token for that.
    fn chunks(&self, tokens: &[u32], chunk: usize, most: usize) -> Result<Vec<Vec<u32>>> {
        if chunk < 4 || tokens.len() < chunk {
            let have = tokens.len();
            return Err(Error::Request(format!(
                "{have} tokens, chunks of {chunk}: a text needs at least one chunk, a chunk four tokens"
            )));
        }
        let begin = match self.tokenizer() {
            Some(tokenizer) => {
                let first = |text| Ok::<_, Error>(tokenizer.encode(text, true)?.first().copied());
                // An empty text's first token may as well be the one that ends it.
                let (begin, of_text) = (first("")?, first("a")?);
                begin.filter(|begin| of_text == Some(*begin))
            }
            None => None,
        };
        let started = |chunk: &[u32]| {
            let mut chunk = chunk.to_vec();
            chunk[0] = begin.unwrap_or(chunk[0]);
            chunk
        };
        Ok(tokens
            .chunks_exact(chunk)
            .take(most.max(1))
            .map(started)
            .collect())
    }

    /// The perplexities of this model, with its adapters, and of `other` (of the same vocabulary) over a text, and how far
    /// `other` is from this one. Arguments and errors as for [`Engine::perplexity`].
    ///
    /// # Errors
    /// As there; or the vocabularies differ.
    pub fn compare(
        &self,
        other: &Engine,
        tokens: &[u32],
        chunk: usize,
        most: usize,
        adapters: &AdapterSet,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Comparison> {
        let vocab = self.vocab() as usize;
        if other.vocab() as usize != vocab {
            let (a, b) = (vocab, other.vocab());
            return Err(Error::Request(format!(
                "vocabularies of {a} and {b} tokens"
            )));
        }
        let (mut own, mut others, mut divergence) =
            (Sums::default(), Sums::default(), DivergenceSums::default());
        let chunks = self.chunks(tokens, chunk, most)?;
        for (i, chunk) in chunks.iter().enumerate() {
            let (p, q) = (
                self.logits(chunk, adapters.clone())?,
                other.logits(chunk, AdapterSet::default())?,
            );
            let rows = p.chunks_exact(vocab).zip(q.chunks_exact(vocab));
            for ((p, q), next) in rows.zip(&chunk[1..]).skip(chunk.len() / 2) {
                own.add(surprise(p, *next)?);
                others.add(surprise(q, *next)?);
                divergence.add(p, q)?;
            }
            progress(i + 1, chunks.len());
        }
        Ok(Comparison {
            reference: own.finished(),
            other: others.finished(),
            divergence: divergence.finished(),
        })
    }
}

/// `-ln p` of a token.
fn surprise(logits: &[f32], token: u32) -> Result<f64> {
    let surprise = -log_softmax(logits)
        .get(token as usize)
        .copied()
        .unwrap_or(f64::NAN);
    match surprise.is_finite() {
        true => Ok(surprise),
        false => Err(Error::Request("logits are not finite".into())),
    }
}
