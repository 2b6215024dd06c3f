//! Reductions over a cube: by planes where the target has them, in shared memory otherwise.

use cubecl::prelude::*;

/// How the units of a cube work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Team {
    /// Units of a cube, a power of two.
    pub units: u32,
    /// Units of a plane, or 0: reduce in shared memory.
    pub plane: u32,
}

/// Sum over the cube, the same in every unit. All units must call it together.
#[cube]
pub fn cube_sum(value: f32, #[comptime] team: Team) -> f32 {
    if comptime!(team.plane > 0) {
        let planes = comptime!((team.units / team.plane) as usize);
        let mut partial = Shared::<[f32]>::new_slice(planes);
        let own = plane_sum(value);
        if UNIT_POS.is_multiple_of(team.plane) {
            partial[(UNIT_POS / team.plane) as usize] = own;
        }
        sync_cube();
        let mut total = 0.0f32;
        #[unroll]
        for i in 0..planes {
            total += partial[i];
        }
        sync_cube();
        total
    } else {
        let mut partial = Shared::<[f32]>::new_slice(comptime!(team.units as usize));
        partial[UNIT_POS as usize] = value;
        sync_cube();
        #[unroll]
        for step in 0..comptime!(team.units.ilog2()) {
            let half = comptime!(team.units >> (step + 1));
            if UNIT_POS < half {
                let other = partial[(UNIT_POS + half) as usize];
                partial[UNIT_POS as usize] += other;
            }
            sync_cube();
        }
        let total = partial[0];
        sync_cube();
        total
    }
}
