//! The choice of experts: one row's router logits into indices and weights.

use crate::{GroupScore, RouteGroups, RouteScore, RouteSpec};

impl RouteSpec {
    /// Writes the `used` indices of the chosen experts, as numbers, and then their weights into `out`.
    ///
    /// Experts are taken by descending score (plus `bias`, where there is one), the lowest index first among equals. Where a
    /// score is not a number, some experts are taken. Slices must have `experts` and `2 used` elements; surplus ones
    /// are left alone.
    pub fn choose(&self, logits: &[f32], bias: Option<&[f32]>, out: &mut [f32]) {
        let used = self.used as usize;
        let (indices, weights) = out.split_at_mut(used.min(out.len()));
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|l| f64::from(l - most).exp()).sum();
        let score = |e: usize| match self.score {
            RouteScore::Softmax => f64::from(logits[e] - most).exp() / total,
            RouteScore::Sigmoid => 1.0 / (1.0 + f64::from(-logits[e]).exp()),
        };
        // Without a bias by the logits themselves, whose order is that of the scores and finer.
        let rank = |e: usize| match bias {
            Some(bias) => score(e) + f64::from(bias[e]),
            None => f64::from(logits[e]),
        };
        let ranks: Vec<f64> = (0..logits.len()).map(rank).collect();
        let rank = |e: usize| ranks[e];
        let open = self.groups.map(|groups| groups.choose(logits.len(), rank));
        let size = |open: &Vec<bool>| logits.len() / open.len().max(1);
        let allowed = |e: usize| open.as_ref().is_none_or(|open| open[e / size(open)]);
        let mut sum = 0.0;
        for j in 0..indices.len() {
            let taken = |e: usize| indices[..j].contains(&(e as f32));
            let free = (0..logits.len()).filter(|e| allowed(*e) && !taken(*e));
            let best = first_best(free, rank).unwrap_or(0);
            indices[j] = best as f32;
            let weight = score(best);
            sum += weight;
            weights[j] = weight as f32;
        }
        let by = f64::from(self.scale) / if self.normalize { sum } else { 1.0 };
        for weight in &mut weights[..used] {
            *weight = (f64::from(*weight) * by) as f32;
        }
    }
}

impl RouteGroups {
    /// Which groups are taken.
    fn choose(&self, experts: usize, rank: impl Fn(usize) -> f64) -> Vec<bool> {
        let count = self.count as usize;
        let size = experts / count;
        let scores = (0..count).map(|g| {
            let members = g * size..(g + 1) * size;
            let Some(best) = first_best(members.clone(), &rank) else {
                return f64::NEG_INFINITY;
            };
            let second = first_best(members.filter(|e| *e != best), &rank);
            match (self.score, second) {
                (GroupScore::BestTwo, Some(second)) => rank(best) + rank(second),
                _ => rank(best),
            }
        });
        let scores: Vec<f64> = scores.collect();
        let mut open = vec![false; count];
        for _ in 0..self.used {
            let closed = (0..count).filter(|g| !open[*g]);
            if let Some(best) = first_best(closed, |g| scores[g]) {
                open[best] = true;
            }
        }
        open
    }
}

/// The candidate of the highest rank, the first among equals.
fn first_best(
    candidates: impl Iterator<Item = usize>,
    rank: impl Fn(usize) -> f64,
) -> Option<usize> {
    let mut best: Option<usize> = None;
    for candidate in candidates {
        if best.is_none_or(|b| rank(candidate) > rank(b)) {
            best = Some(candidate);
        }
    }
    best
}
