//! Whether two programs say the same.

use super::works::Kind;
use super::{Job, Reply};
use rusty_benches::cosine;

/// Least cosine between logits: both round activations to bytes, each in its own way, and each layer of random weights
/// spreads what the ones before differ by (28 of them leave 0.9996, the 32 wide ones of 8 billion parameters 0.992). Of 16
/// sequences that are compared at once, one that is wrong leaves less.
const COSINE: f64 = 0.98;

/// Tokens of a prompt, and of one for works at a depth.
pub const SHORT: usize = 24;
const LONG: usize = 513;

/// Tokens that every vocabulary has, also when a sequence's number is added to each.
pub fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|i| (i * 97 + 11) % 400).collect()
}

/// Has both sides answer a prompt, the peer first; the cosine of their logits.
pub fn answers_agree(
    name: &str,
    job: &Job,
    own: impl Fn(&Job) -> Reply,
    peer: impl Fn(&Job) -> Reply,
) -> f64 {
    let tokens = if job.depth > 0 { LONG } else { SHORT };
    let job = Job {
        kind: Kind::Answer,
        tokens: prompt(tokens),
        prompt: tokens,
        generate: 0,
        depth: 0,
        ..job.clone()
    };
    let want = peer(&job).logits;
    let have = own(&job).logits;
    assert_eq!(have.len(), want.len(), "{name}");
    let cosine = cosine(&have, &want);
    assert!(cosine > COSINE, "{name}: cosine {cosine} of the logits");
    cosine
}
