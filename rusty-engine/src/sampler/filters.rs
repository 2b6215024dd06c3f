//! Stages that remove tokens by their probabilities.

use super::exponentials::Shares;
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

/// Values that are looked at together: the largest of them tells whether one counts.
const RUN: usize = 64;

/// The largest of some values, in lanes that compilers make vectors of; minus infinity of none.
pub(super) fn largest(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (chunks, rest) = values.as_chunks::<16>();
    let mut most = [GONE; 16];
    for chunk in chunks {
        for (most, value) in most.iter_mut().zip(chunk) {
            *most = larger(*value, *most);
        }
    }
    rest.iter()
        .chain(&most)
        .fold(GONE, |most, v| larger(*v, most))
}

/// Tokens whose logits are at least `least`, and those; none that is no more.
pub(super) fn at_least(logits: &[f32], least: f32) -> (Vec<u32>, Vec<f32>) {
    let (mut tokens, mut left) = (Vec::new(), Vec::new());
    for (run, first) in logits.chunks(RUN).zip((0u32..).step_by(RUN)) {
        if largest(run) < least {
            continue;
        }
        for (logit, token) in run.iter().zip(first..) {
            if *logit >= least && *logit > GONE {
                tokens.push(token);
                left.push(*logit);
            }
        }
    }
    (tokens, left)
}

/// The `k`-th largest of more than `k` values. Nearly all are smaller than the largest so far, and need no more than a look.
pub(super) fn kth_largest(values: &[f32], k: usize) -> f32 {
    let mut found = Vec::with_capacity(2 * k);
    let mut least = GONE;
    let cut = |found: &mut Vec<f32>| {
        let kth = *found.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
        found.truncate(k);
        kth
    };
    for run in values.chunks(RUN) {
        if found.len() >= k && largest(run) <= least {
            continue;
        }
        for value in run {
            if found.len() < k || *value > least {
                found.push(*value);
                if found.len() == 2 * k {
                    least = cut(&mut found);
                }
            }
        }
    }
    cut(&mut found)
}

pub(super) fn top_k(logits: &mut [f32], k: usize) {
    if k == 0 || k >= logits.len() {
        return;
    }
    let kth = kth_largest(logits, k);
    logits
        .iter_mut()
        .filter(|l| **l < kth)
        .for_each(|l| *l = GONE);
}

/// Tokens that are put in order first; then four times as many, and so on.
const FIRST_ORDERED: usize = 256;

/// Tokens go by descending logit; equal ones by descending id, as a stable ascending sort read backwards.
pub(super) fn top_p(logits: &mut [f32], p: f32) {
    let p = f64::from(p);
    let most = largest(logits);
    let shares = Shares::beside(most);
    let total = shares.total(logits);
    // All that are less likely have together less than half of what more likely ones leave of 1: before each of them lies more than p.
    let least = (1.0 - p) / (2.0 * logits.len() as f64);
    let bound = f64::from(most) + (least * total).ln();
    // Somewhat lower, for rounding.
    let bound = match most.is_infinite() {
        true => most,
        false => (bound - (f64::from(most).abs() + bound.abs() + 1.0) * 1e-5) as f32,
    };
    let (tokens, likely) = at_least(logits, bound);
    let descending = |a: &usize, b: &usize| likely[*b].total_cmp(&likely[*a]).then(b.cmp(a));
    let mut order: Vec<usize> = (0..likely.len()).collect();
    let mut keep = vec![false; likely.len()];
    let (mut rest, mut count) = (&mut order[..], FIRST_ORDERED);
    let mut before = 0.0;
    while before < p && !rest.is_empty() {
        count = count.min(rest.len());
        rest.select_nth_unstable_by(count - 1, descending);
        let (next, behind) = rest.split_at_mut(count);
        next.sort_unstable_by(descending);
        for place in next {
            // A token stays while the mass of the more likely ones is below p.
            keep[*place] = before < p;
            before += shares.of(likely[*place]) / total;
        }
        (rest, count) = (behind, count * 4);
    }
    let best = super::argmax(logits) as usize;
    logits.fill(GONE);
    for ((token, logit), keep) in tokens.iter().zip(&likely).zip(keep) {
        if keep || *token as usize == best {
            logits[*token as usize] = *logit;
        }
    }
}

/// A token is `p` times as likely as the most likely one where its logit is less by the logarithm of `p`.
pub(super) fn min_p(logits: &mut [f32], p: f32) {
    let best = logits.iter().copied().fold(GONE, f32::max);
    let most = -f64::from(p).ln();
    let less = |l: f32| f64::from(best) - f64::from(l);
    for logit in logits.iter_mut() {
        if *logit != best && less(*logit) > most {
            *logit = GONE;
        }
    }
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
    // What was removed is no part of it.
    let left = || logits.iter().filter(|l| **l > GONE).map(|l| f64::from(*l));
    let count = left().count() as f64;
    let mean = left().sum::<f64>() / count;
    let variance = left().map(|l| (l - mean).powi(2)).sum::<f64>() / count;
    let max = logits.iter().copied().fold(GONE, f32::max);
    let least = f64::from(max) - f64::from(n) * variance.sqrt();
    logits
        .iter_mut()
        .filter(|l| f64::from(**l) < least)
        .for_each(|l| *l = GONE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Logits of which many are equal, or all are nearly as likely; some are no more, or infinite.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let one = prop_oneof![
            20 => (-400i32..400).prop_map(|l| l as f32 / 16.0),
            2 => Just(GONE),
            1 => Just(f32::INFINITY),
        ];
        let nearly_even = (0i32..3).prop_map(|l| l as f32 / 64.0);
        prop_oneof![
            prop::collection::vec(one, 1..1500),
            prop::collection::vec(nearly_even, 1..3000),
        ]
    }

    /// Tokens by descending logit; equal ones by descending id.
    fn ordered(logits: &[f32]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(b.cmp(a)));
        order
    }

    fn kept(logits: &[f32]) -> Vec<usize> {
        (0..logits.len()).filter(|t| logits[*t] > GONE).collect()
    }

    proptest! {
        #[test]
        fn the_largest_stay(logits in logits(), k in 1usize..1000) {
            let mut some = logits.clone();
            top_k(&mut some, k);
            let last = ordered(&logits)[k.min(logits.len()) - 1];
            let stays = |t: &usize| logits[*t] > GONE && logits[*t] >= logits[last];
            let want: Vec<usize> = (0..logits.len()).filter(stays).collect();
            prop_assert_eq!(kept(&some), want);
        }

        #[test]
        fn the_most_likely_stay(logits in logits(), p in prop_oneof![0.001f32..=1.0, 0.999f32..=1.0]) {
            let mut some = logits.clone();
            top_p(&mut some, p);
            let probabilities = softmax(&logits);
            let mut before = 0.0;
            let mut want = vec![];
            for token in ordered(&logits) {
                let stays = before < f64::from(p) || token == crate::sampler::argmax(&logits) as usize;
                if stays && logits[token] > GONE {
                    want.push(token);
                }
                before += probabilities[token];
            }
            want.sort_unstable();
            prop_assert_eq!(kept(&some), want);
        }

        #[test]
        fn those_that_are_likely_enough_stay(logits in logits(), p in 0.0f32..=1.0) {
            let mut some = logits.clone();
            min_p(&mut some, p);
            let probabilities = softmax(&logits);
            let best = probabilities.iter().copied().fold(0.0, f64::max);
            for (token, probability) in probabilities.iter().enumerate() {
                let share = probability / best;
                // A share that is just as large as asked for may be rounded either way.
                if (share - f64::from(p)).abs() > 1e-12 {
                    let stays = share > f64::from(p) && logits[token] > GONE;
                    prop_assert_eq!(some[token] > GONE, stays, "{}", share);
                }
            }
        }
    }
}
