//! The choice of experts: one row's router logits into indices and weights.

use crate::{RouteScore, RouteSpec};

impl RouteSpec {
    /// Writes the `used` indices of the chosen experts, as numbers, and then their weights into `out`.
    ///
    /// Experts are taken by descending score, the lowest index first among equals; a score that is not a number is never
    /// above another. Slices must have `experts` and `2 used` elements; surplus ones are left alone.
    pub fn choose(&self, logits: &[f32], out: &mut [f32]) {
        let used = self.used as usize;
        let (indices, weights) = out.split_at_mut(used.min(out.len()));
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|l| f64::from(l - most).exp()).sum();
        let score = |l: f32| match self.score {
            RouteScore::Softmax => f64::from(l - most).exp() / total,
            RouteScore::Sigmoid => 1.0 / (1.0 + f64::from(-l).exp()),
        };
        let mut sum = 0.0;
        for j in 0..indices.len() {
            let taken = |e: usize| indices[..j].contains(&(e as f32));
            let mut best: Option<usize> = None;
            for (e, logit) in logits.iter().enumerate() {
                if !taken(e) && best.is_none_or(|b| *logit > logits[b]) {
                    best = Some(e);
                }
            }
            let best = best.unwrap_or(0);
            indices[j] = best as f32;
            let weight = score(logits[best]);
            sum += weight;
            weights[j] = weight as f32;
        }
        let by = f64::from(self.scale) / if self.normalize { sum } else { 1.0 };
        for weight in &mut weights[..used] {
            *weight = (f64::from(*weight) * by) as f32;
        }
    }
}
