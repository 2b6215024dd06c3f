//! Which tiles are taken for many rows: the small, the middle or the largest ones, and whether those in single precision hold
//! weights in half precision.

use super::trials::Case;
use super::{BETTER, Tuner, takes};
use crate::Result;
use crate::gpu::kernels::gemm::GemmConfig;
use crate::plan::{Anchor, Implementation, Kernel, Tuning};
use rusty_backend::Language;

/// Rows for which the smaller two tiles are compared, and the larger two, where steps may have so many: half of the first of these
/// is as much as the middle tile takes at least, as the largest would only multiply more.
pub(super) const TILE_ROWS: [u32; 4] = [16, 32, 64, 128];
const LARGE_TILE_ROWS: [u32; 4] = [64, 128, 256, 512];
/// Rows for which weights in half precision are compared with single.
const HALF_ROWS: [u32; 2] = [32, 128];

impl Tuner<'_> {
    /// Measurements that [`Tuner::best_tiles`] makes.
    pub(super) fn of_tiles(&self) -> u64 {
        2 + 2 * u64::from(self.has_largest_tiles()) + 2 * u64::from(self.has_half_tiles())
    }

    /// A tuning with the tiles that are the fastest beside its other choices.
    pub(super) fn best_tiles(&mut self, mut best: Tuning) -> Result<Tuning> {
        if self.has_half_tiles() {
            best = self.better_halves(best)?;
        }
        // Before a trial leaves a plan without such tiles.
        let mut large = self.large_tile_rows();
        // Fewer rows are multiplied by vectors, whichever tile there is.
        let rows = TILE_ROWS.into_iter().filter(|rows| *rows > best.gemv_rows);
        let small: Vec<Case> = rows.map(Case::prompt).collect();
        let small = self.crossing(&best, &small, |t, rows| t.small_tile_rows = rows)?;
        best.small_tile_rows = small.unwrap_or(best.small_tile_rows);
        // And these in the small one.
        large.retain(|rows| *rows > best.small_tile_rows);
        if let (Some(first), Some(last)) = (large.first(), large.last()) {
            let middle: Vec<Case> = large.iter().map(|rows| Case::prompt(*rows)).collect();
            let middle = self.crossing(&best, &middle, |t, rows| t.middle_tile_rows = rows)?;
            best.middle_tile_rows = match middle {
                None => best.middle_tile_rows,
                Some(up_to) if up_to == *last => u32::MAX,
                Some(up_to) => up_to.max(first / 2),
            };
        }
        Ok(best)
    }

    /// A tuning, or the one whose tiles hold weights otherwise, where steps are faster with that.
    fn better_halves(&mut self, best: Tuning) -> Result<Tuning> {
        let other = Tuning {
            half_tiles: !best.half_tiles,
            ..best.clone()
        };
        self.compile(&[best.clone(), other.clone()])?;
        let cases = HALF_ROWS.map(Case::prompt);
        let now: f64 = self.seconds(&best, &cases)?.iter().sum();
        let then: f64 = self.seconds(&other, &cases)?.iter().sum();
        Ok(if then < now * BETTER { other } else { best })
    }

    /// Numbers of rows for which the larger tiles are compared, if there are such.
    pub(super) fn large_tile_rows(&self) -> Vec<u32> {
        let tiles = self.has_largest_tiles();
        let all = LARGE_TILE_ROWS.into_iter();
        all.filter(|rows| tiles && takes(self.exe, *rows)).collect()
    }

    /// Whether the plan has a choice of the largest tiles.
    fn has_largest_tiles(&self) -> bool {
        let mut variants = self.exe.plan().kernels.iter().flat_map(|k| &k.variants);
        variants.any(|v| {
            let largest = [Implementation::GemmMatrix128, Implementation::GemmTiled64];
            largest.contains(&v.implementation)
        })
    }

    /// Whether there is the choice of half precision.
    fn has_half_tiles(&self) -> bool {
        let plan = self.exe.plan();
        let of_halves = |kernel: &Kernel| match &kernel.anchor {
            Anchor::Contract { parts, .. } => parts
                .iter()
                .all(|p| GemmConfig::has_halves(plan.weights[p.weight.index()].format)),
            _ => false,
        };
        plan.target.f16
            && plan.target.language == Language::Wgsl
            && plan.kernels.iter().any(of_halves)
    }
}
