//! What units of GPUs' attention of rows alone (`gpu/kernels/row_attention.rs`) hold in registers: the lanes of a head are shared by a
//! *lane group*, a few units of a plane, each of which holds its part of the queries, of the results, and of the keys or values that come.

use super::{Anchor, Kernel, Plan};
use rusty_backend::Target;

/// Keys of a lane group at a time; a run of them lies in one page.
pub const RUN: usize = 4;
/// Pairs of lanes of a unit, where a head has so many: more hide a load's latency, fewer leave registers.
const PAIRS: u32 = 4;
/// Floats that a unit may hold, of 255 registers that units have at most.
pub const MOST_REGISTERS: usize = 160;
/// The same where planes may be narrower than 32 units: so are Intel's, where eight units have 128 registers.
const MOST_OF_NARROW: usize = 104;

/// Floats that a unit may hold on a device whose planes have so many units at least.
pub fn most_registers(plane: u32) -> usize {
    match plane {
        32.. => MOST_REGISTERS,
        _ => MOST_OF_NARROW,
    }
}

impl Plan {
    /// Whether units of a GPU's planes have room for the heads of all attention; without, rows alone are tiles of one. Steps are cut for
    /// all kernels alike, so one shape without room is enough.
    pub(crate) fn planes_hold_heads(&self, target: &Target) -> bool {
        let fits = |kernel: &Kernel| match &kernel.anchor {
            Anchor::Attention { spec, .. } => {
                let widths = (spec.head_dim, spec.value_dim());
                HeldLanes::new(1, widths, target.plane_size).fit()
            }
            _ => true,
        };
        target.plane_ops && self.kernels.iter().all(fits)
    }
}

/// What a unit has of its cube's heads.
#[derive(Clone, Copy, Debug)]
pub struct HeldLanes {
    /// Units of a lane group: the most of a plane that leave each whole pairs of lanes, `PAIRS` where there are.
    pub units: u32,
    /// Pairs of key lanes of a unit.
    pub key_pairs: usize,
    /// Pairs of value lanes of a unit.
    pub value_pairs: usize,
    plane: u32,
    heads: usize,
}

impl HeldLanes {
    /// For `heads` query heads, whose keys and values are so wide, on planes of so many units.
    pub fn new(heads: u32, (head_dim, value_dim): (u32, u32), plane: u32) -> Self {
        let (keys, values) = (head_dim / 2, value_dim / 2);
        let most = plane.min((keys / PAIRS).max(1));
        let fits = |units: &u32| keys.is_multiple_of(*units) && values.is_multiple_of(*units);
        let powers = (0..=most.ilog2()).rev().map(|p| 1 << p);
        let units = powers.into_iter().find(fits).unwrap_or(1);
        Self {
            units,
            key_pairs: (keys / units) as usize,
            value_pairs: (values / units) as usize,
            plane,
            heads: heads as usize,
        }
    }

    /// Whether registers have room for what a unit holds at once, about.
    pub fn fit(&self) -> bool {
        let of_run = 2 * RUN * self.key_pairs.max(self.value_pairs);
        self.of_heads() + of_run <= most_registers(self.plane)
    }

    /// Whether they have room for a run's keys and values together, so that these are asked for before those are there.
    pub fn fit_both(&self) -> bool {
        let of_run = 2 * RUN * (self.key_pairs + self.value_pairs);
        self.of_heads() + of_run <= most_registers(self.plane)
    }

    /// Floats of queries, scores and results.
    fn of_heads(&self) -> usize {
        let of_head = 2 * (self.key_pairs + self.value_pairs) + RUN + 2;
        self.heads * of_head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Latents of DeepSeek, too, where planes are wide.
    #[test]
    fn narrow_planes_hold_heads_of_128_lanes() {
        let fits = |widths, plane| HeldLanes::new(1, widths, plane).fit();
        assert!(fits((128, 128), 8) && fits((64, 64), 8));
        assert!(!fits((160, 160), 8) && !fits((256, 256), 8));
        assert!(fits((256, 256), 32) && fits((576, 512), 32));
    }
}
