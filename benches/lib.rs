//! Benchmarks with checked answers: `cargo bench -p benches`.
//!
//! * `kernels`: products, attention, norms and adapters one by one, each beside its bound.
//! * `model`: opening, quantizing, prefill and decode of whole models on the CPU.
//! * `adapters`: preparing, attaching, weighting and detaching adapters while an engine runs, and what steps cost with them.
//! * `experts`: choosing who answers a message.
//! * `opening`: from the start of a process to first logits.
//! * `memory`: what a 7B model holds.
//! * `scaling`: speed over depth, batch and prompt, as curves.
//! * `sampling`: chains of stages over a large vocabulary.
//! * `reading_ahead`: one row on cores that read memory ahead on their own, and asked.
//! * `fusion`: chains of operations, fused, beside Burn and PyTorch op by op, and the traffic that fusion saves.
//! * `peers`: speed beside llama.cpp and PyTorch, installed where they are missing.
//!
//! What `kernels` and `fusion` measure is part of this library, so that `gpu-check` measures the same.
//!
//! Figures that are kept lie in `benches/record/`, each with its date, machine, commit and command.

pub mod bandwidth;
pub mod conversation;
pub mod copies;
pub mod fusion;
pub mod kernels;
pub mod machine;
pub mod python;
pub mod vocabulary;

/// The cosine of the angle between two vectors.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The middle of some numbers; of an even count the mean of the two in the middle.
pub fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let of_two = all.len().saturating_sub(1) / 2..=all.len() / 2;
    let two = all.get(of_two).unwrap_or(&[]);
    two.iter().sum::<f64>() / two.len() as f64
}
