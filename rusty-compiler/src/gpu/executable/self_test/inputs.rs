//! What a kernel that is tried reads beside weights: random activations, keys and values.

use super::rows::TrialRows;
use crate::gpu::executable::GpuExecutable;
use crate::gpu::pages::kept_lanes;
use crate::plan::{Anchor, ExpertPart, Kernel, Operand, Plan, PlanValueId, Sink};
use crate::{PAGE_TOKENS, Result};
use rusty_graph::L;
use rusty_graph::interpret::Matrix;
use std::collections::HashMap;

/// Activations and one layer's keys and values.
pub(super) struct Inputs {
    /// All rows of what the kernel loads.
    pub values: HashMap<PlanValueId, Matrix>,
    /// Keys and values by sequence, as pages hold them; none where the kernel touches no page.
    pub cache: Vec<[Matrix; 2]>,
}

impl Inputs {
    /// Random activations for a kernel's rows.
    pub fn new(plan: &Plan, kernel: &Kernel, rows: &TrialRows) -> Self {
        let mut values = HashMap::new();
        for (number, operand) in kernel.operands.iter().enumerate() {
            let Operand::Value(id) = operand else {
                continue;
            };
            let made = |t: &crate::plan::Tail| t.sink == Sink::Value(*id);
            if kernel.first.iter().any(made) {
                continue;
            }
            let value = plan.value(*id);
            let count = match value.rows == L {
                true => rows.count(),
                false => rows.all(),
            };
            let mut matrix = Matrix::zeros(count, value.width as usize);
            match &kernel.anchor {
                Anchor::Experts {
                    routes: Some(routes),
                    parts,
                    ..
                } if usize::from(*routes) == number => {
                    let experts = ExpertPart::experts(parts);
                    fill_routes(&mut matrix, experts);
                }
                // Logits whose order rounding does not change.
                Anchor::Route { .. } | Anchor::ArgMax { .. } => {
                    fill(&mut matrix, |i| 4.0 * apart(i));
                }
                _ => fill(&mut matrix, |i| noise(id.0, i)),
            }
            values.insert(*id, matrix);
        }
        Self {
            values,
            cache: Vec::new(),
        }
    }
}

impl GpuExecutable {
    /// Writes activations, of what the kernel makes first none that is a number, and random keys and values of a layer for all tokens of
    /// the rows' sequences, where the kernel touches it.
    pub(super) fn write_inputs(
        &self,
        inputs: &mut Inputs,
        kernel: &Kernel,
        layer: Option<u32>,
        rows: &TrialRows,
    ) -> Result<()> {
        for (id, matrix) in &inputs.values {
            let offset = self.plan.value(*id).offset;
            let bytes = bytemuck::cast_slice(&matrix.data);
            self.device.write(&self.arena, offset, bytes)?;
        }
        for tail in &kernel.first {
            // A trial before made the same.
            if let Sink::Value(id) = tail.sink {
                let nothing = vec![f32::NAN; rows.count() * tail.width as usize];
                let offset = self.plan.value(id).offset;
                self.device
                    .write(&self.arena, offset, bytemuck::cast_slice(&nothing))?;
            }
        }
        let Some(layer) = layer else {
            return Ok(());
        };
        let kv = self.plan.kv[layer as usize];
        for sequence in 0..rows.sequences() {
            let length = rows.length(sequence);
            let lanes = |width: u32, seed: u32| {
                let mut matrix = Matrix::zeros(length, width as usize);
                fill(&mut matrix, |i| noise(seed, i));
                matrix
            };
            let seed = 1000 + 2 * sequence as u32;
            let keys = lanes(kv.key_lanes(), seed);
            let values = lanes(kv.value_lanes(), seed + 1);
            let cache = &self.kv[layer as usize];
            for (number, page) in rows.pages(sequence).iter().enumerate() {
                let both = (&keys.data[..], &values.data[..]);
                cache.write(&*self.device, *page, both, number * PAGE_TOKENS)?;
            }
            inputs.cache.push([keys, values].map(|m| self.kept(&m)));
        }
        Ok(())
    }

    /// Rows as they are read back from pages.
    pub(super) fn kept(&self, rows: &Matrix) -> Matrix {
        let mut kept = rows.clone();
        for row in 0..kept.rows {
            let lanes = kept_lanes(rows.row(row), self.pages);
            kept.row_mut(row).copy_from_slice(&lanes);
        }
        kept
    }

    /// Leaves the pages of a layer that trials may have written as empty ones are: what a wrong kernel left is no number perhaps.
    pub(super) fn clear_pages(&self, layer: u32, rows: &TrialRows) -> Result<()> {
        let cache = &self.kv[layer as usize];
        let mut lists = (0..rows.sequences()).flat_map(|s| rows.pages(s));
        lists.try_for_each(|page| cache.clear(&*self.device, *page))
    }
}

fn fill(matrix: &mut Matrix, value: impl Fn(u32) -> f32) {
    for (lane, i) in matrix.data.iter_mut().zip(0..) {
        *lane = value(i);
    }
}

/// Experts at equal distances, other ones for other rows, and their weights.
fn fill_routes(matrix: &mut Matrix, experts: usize) {
    let used = matrix.width / 2;
    let distance = (experts / used.max(1)).max(1);
    for row in 0..matrix.rows {
        let (chosen, weights) = matrix.row_mut(row).split_at_mut(used);
        for (j, expert) in chosen.iter_mut().enumerate() {
            *expert = ((row * 3 + j * distance) % experts) as f32;
        }
        for (weight, j) in weights.iter_mut().zip(0..) {
            *weight = 0.5 + 0.4 * noise(row as u32, j);
        }
    }
}

/// The `i`-th of random numbers in `-1..1`.
pub(super) fn noise(seed: u32, i: u32) -> f32 {
    let mut hash = i.wrapping_add(seed.wrapping_mul(0x9e37_79b9));
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x21f0_aaad);
    hash = (hash ^ (hash >> 15)).wrapping_mul(0x735a_2d97);
    hash ^= hash >> 15;
    // 24 bits, which single precision holds: below 1.
    (hash >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// The `i`-th of numbers in `-1..1` no two of which are near each other: multiples of the golden ratio.
fn apart(i: u32) -> f32 {
    let whole = (i + 1).wrapping_mul(0x9e37_79b9);
    (whole >> 8) as f32 / (1 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_take_different_experts() {
        for (experts, used) in [(4, 4), (8, 2), (60, 7), (128, 8)] {
            let mut routes = Matrix::zeros(9, 2 * used);
            fill_routes(&mut routes, experts);
            for row in 0..9 {
                let mut chosen = routes.row(row)[..used].to_vec();
                assert!(chosen.iter().all(|e| (*e as usize) < experts));
                chosen.sort_unstable_by(f32::total_cmp);
                chosen.dedup();
                assert_eq!(chosen.len(), used, "{experts} {row}");
            }
        }
    }

    #[test]
    fn random_numbers_are_spread() {
        let numbers: Vec<f32> = (0..4096).map(|i| noise(3, i)).collect();
        let mean = numbers.iter().sum::<f32>() / 4096.0;
        let square = numbers.iter().map(|n| n * n).sum::<f32>() / 4096.0;
        assert!(mean.abs() < 0.05 && (square - 1.0 / 3.0).abs() < 0.03);
        assert!(numbers.iter().all(|n| (-1.0..1.0).contains(n)));
    }
}
