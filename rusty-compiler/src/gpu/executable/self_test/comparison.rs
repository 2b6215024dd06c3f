//! How far what kernels left is from what was expected.

use super::reference::{Expected, Found};
use super::rows::TrialRows;
use crate::gpu::executable::GpuExecutable;
use crate::gpu::kernels::grouped::Tiles;
use crate::gpu::stage::Template;
use crate::gpu::text::Kind;
use crate::plan::PlanValueId;
use crate::self_test::{self, Difference};
use crate::{KvFormat, PAGE_TOKENS, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What is taken for rounding where sums are of single precision.
const SINGLE: f64 = 1e-5;

/// Results that were read, by value.
type Read = HashMap<PlanValueId, Vec<f32>>;

/// What is taken for rounding of some kernels, which touch pages of a format, or none.
pub(super) fn allowed(launched: &[Template], pages: Option<KvFormat>) -> f64 {
    let rounds = launched.iter().any(|t| match &t.spec.kind {
        Kind::Gemv(config) => config.bytes,
        Kind::Experts(config) => config.product.bytes,
        Kind::Matrix(_) | Kind::MatrixAttention(_) => true,
        Kind::Grouped(config) => matches!(config.tiles, Tiles::Matrix(_)),
        _ => false,
    });
    match (pages, rounds) {
        (Some(kv), _) => self_test::allowed(kv),
        (None, true) => self_test::allowed(KvFormat::F32),
        (None, false) => SINGLE,
    }
}

impl GpuExecutable {
    /// The largest difference of what was left from what was `expected`.
    pub(super) fn difference(
        &self,
        expected: &[Expected],
        layer: Option<u32>,
        rows: &TrialRows,
    ) -> Result<Difference> {
        let mut read = Read::new();
        let mut worst = Difference::default();
        for Expected {
            found,
            want,
            counts,
        } in expected
        {
            let have = match found {
                Found::Value { value, row, lanes } => {
                    self.lanes(&mut read, (*value, *row), rows.count(), lanes)?
                }
                Found::Page { half, of_step } => self.page_lanes(layer, *half, rows, *of_step)?,
                Found::Pick { row } => {
                    let word = self.device.read(&self.picks, *row as u64 * 4, 4)?;
                    let picked: Vec<u32> = bytemuck::pod_collect_to_vec(&word);
                    picked.iter().map(|p| *p as f32).collect()
                }
            };
            worst = worst.or_worse(match counts {
                true => Difference::of_numbers(&have, want),
                false => Difference::between(&have, want),
            });
        }
        Ok(worst)
    }

    /// Lanes of a row of a value, whose first `rows` are read at once.
    fn lanes(
        &self,
        read: &mut Read,
        (id, row): (PlanValueId, usize),
        rows: usize,
        lanes: &[u32],
    ) -> Result<Vec<f32>> {
        let value = self.plan.value(id);
        let width = value.width as usize;
        if let Entry::Vacant(entry) = read.entry(id) {
            let mut data = vec![0.0f32; rows * width];
            let bytes = bytemuck::cast_slice_mut(&mut data);
            self.device.read_into(&self.arena, value.offset, bytes)?;
            entry.insert(data);
        }
        let all = read.get(&id).map_or(&[][..], |all| &all[row * width..]);
        Ok(lanes.iter().map(|l| all[*l as usize]).collect())
    }

    /// Keys or values of a step's row, out of its page.
    fn page_lanes(
        &self,
        layer: Option<u32>,
        half: u32,
        rows: &TrialRows,
        of_step: usize,
    ) -> Result<Vec<f32>> {
        let layer = layer.unwrap_or(0) as usize;
        let (_, sequence, position) = rows.row(of_step);
        let (page, at) = (
            rows.pages(sequence)[position as usize / PAGE_TOKENS],
            position as usize % PAGE_TOKENS,
        );
        self.kv[layer].token(&*self.device, page, half, at)
    }
}
