//! Whether two programs say the same.

use super::{Job, Reply};

/// Least cosine between logits: both round activations to bytes, each in its own way, and each layer of random weights
/// spreads what the ones before differ by (28 of them leave 0.9996, the 32 wide ones of 8 billion parameters 0.992).
const COSINE: f64 = 0.98;

/// Tokens of the prompt.
const TOKENS: u32 = 24;

/// Has both sides answer a short prompt; the cosine of their logits.
pub fn answers_agree(
    name: &str,
    job: &Job,
    own: impl Fn(&Job) -> Reply,
    peer: impl Fn(&Job) -> Reply,
) -> f64 {
    let job = Job {
        tokens: (0..TOKENS).map(|i| (i * 97 + 11) % 500).collect(),
        prompt: TOKENS as usize,
        generate: 0,
        depth: 0,
        batch: 1,
        repetitions: 1,
        ..job.clone()
    };
    let (have, want) = (own(&job).logits, peer(&job).logits);
    assert_eq!(have.len(), want.len(), "{name}");
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter()
            .zip(b)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    };
    let cosine = dot(&have, &want) / (dot(&have, &have) * dot(&want, &want)).sqrt();
    assert!(cosine > COSINE, "{name}: cosine {cosine} of the logits");
    cosine
}
