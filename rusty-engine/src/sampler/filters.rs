//! Stages that remove tokens by their probabilities.

use super::softmax;

const GONE: f32 = f32::NEG_INFINITY;

/// Removes tokens for which `keep` is false, but never the most likely one.
fn retain(logits: &mut [f32], keep: impl Fn(usize) -> bool) {
    let best = super::argmax(logits) as usize;
    for (token, logit) in logits.iter_mut().enumerate() {
        if token != best && !keep(token) {
            *logit = GONE;
        }
    }
}

/// Tokens by descending logit; equal ones by descending id, as a stable ascending sort read backwards.
fn descending(keys: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|a, b| keys[*b].total_cmp(&keys[*a]).then(b.cmp(a)));
    order
}

pub(super) fn top_k(logits: &mut [f32], k: usize) {
    if k == 0 || k >= logits.len() {
        return;
    }
    let mut values = logits.to_vec();
    let (_, kth, _) = values.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    let kth = *kth;
    logits
        .iter_mut()
        .filter(|l| **l < kth)
        .for_each(|l| *l = GONE);
}

pub(super) fn top_p(logits: &mut [f32], p: f32) {
    let probabilities = softmax(logits);
    let order = descending(logits);
    let mut before = 0.0;
    let mut keep = vec![false; logits.len()];
    for token in order {
        // A token stays while the mass of the more likely ones is below p.
        keep[token] = before < f64::from(p);
        before += probabilities[token];
    }
    retain(logits, |t| keep[t]);
}

pub(super) fn min_p(logits: &mut [f32], p: f32) {
    let probabilities = softmax(logits);
    let best = probabilities.iter().copied().fold(0.0, f64::max);
    retain(logits, |t| probabilities[t] >= best * f64::from(p));
}

pub(super) fn typical(logits: &mut [f32], p: f32) {
    let probabilities = softmax(logits);
    let entropy: f64 = probabilities
        .iter()
        .filter(|p| **p > 0.0)
        .map(|p| -p * p.ln())
        .sum();
    let distance = |t: usize| (-(probabilities[t].ln()) - entropy).abs();
    let mut order: Vec<usize> = (0..logits.len())
        .filter(|t| probabilities[*t] > 0.0)
        .collect();
    order.sort_by(|a, b| distance(*a).total_cmp(&distance(*b)));
    let mut keep = vec![false; logits.len()];
    let mut mass = 0.0;
    for (rank, token) in order.into_iter().enumerate() {
        keep[token] = rank == 0 || mass < f64::from(p);
        mass += probabilities[token];
    }
    for (token, logit) in logits.iter_mut().enumerate() {
        if !keep[token] {
            *logit = GONE;
        }
    }
}

pub(super) fn epsilon(logits: &mut [f32], epsilon: f32) {
    let probabilities = softmax(logits);
    retain(logits, |t| probabilities[t] >= f64::from(epsilon));
}

pub(super) fn eta(logits: &mut [f32], epsilon: f32) {
    let probabilities = softmax(logits);
    let entropy: f64 = probabilities
        .iter()
        .filter(|p| **p > 0.0)
        .map(|p| -p * p.ln())
        .sum();
    let epsilon = f64::from(epsilon);
    let threshold = epsilon.min(epsilon.sqrt() * (-entropy).exp());
    retain(logits, |t| probabilities[t] >= threshold);
}

pub(super) fn top_n_sigma(logits: &mut [f32], n: f32) {
    let count = logits.len() as f64;
    let mean = logits.iter().map(|l| f64::from(*l)).sum::<f64>() / count;
    let variance = logits
        .iter()
        .map(|l| (f64::from(*l) - mean).powi(2))
        .sum::<f64>()
        / count;
    let max = logits.iter().copied().fold(GONE, f32::max);
    let least = f64::from(max) - f64::from(n) * variance.sqrt();
    logits
        .iter_mut()
        .filter(|l| f64::from(**l) < least)
        .for_each(|l| *l = GONE);
}
