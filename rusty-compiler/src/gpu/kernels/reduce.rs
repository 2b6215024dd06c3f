//! Reductions over a cube: by planes where the target has them, in shared memory otherwise.
//!
//! A *plane* here is as many neighbouring units as any plane of the device has at least: they exchange values among themselves alone, so it
//! does not matter whether the driver runs them as a plane or as part of a larger one, of which some may be idle. That takes drivers that fill
//! planes with units in their order. WebGPU's APIs do not promise it, and all known ones do; the self-test finds one that does not.

use super::env::{is_cuda, put};
use cubecl::prelude::*;

/// How units work together: those of a cube, or those of each plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Team {
    /// Units of it, a power of two: a cube's, or a plane's, of which a cube may have several.
    pub units: u32,
    /// Units of a plane, or 0: reduce in shared memory.
    pub plane: u32,
}

impl Team {
    /// A plane of it as a team of its own.
    pub fn of_plane(self) -> Team {
        Team {
            units: self.plane,
            ..self
        }
    }

    /// Planes of it.
    pub fn planes(self) -> u32 {
        self.units / self.plane
    }

    fn is_plane(self) -> bool {
        self.units == self.plane
    }
}

/// Place of a unit in its team.
#[cube]
pub fn place_in(#[comptime] team: Team) -> u32 {
    if comptime!(team.is_plane()) {
        UNIT_POS % team.plane
    } else {
        UNIT_POS
    }
}

/// Sums before there are any.
#[cube]
pub fn no_sums(#[comptime] count: usize) -> Array<f32> {
    let mut sums = Array::<f32>::new(count);
    #[unroll]
    for i in 0..count {
        sums[i] = 0.0f32.runtime();
    }
    sums
}

/// Has the units of a plane meet before they exchange, which CUDA does not promise behind what may have parted them.
#[cube]
pub fn together() {
    let cuda = is_cuda();
    if comptime!(cuda) {
        sync_plane();
    }
}

/// Sum over a plane, the same in every unit. All units must call it together.
#[cube]
pub fn plane_total(value: f32, #[comptime] plane: u32) -> f32 {
    together();
    // Not the language's own sum, which takes all of a plane where the driver chose a larger one. In the order of `plane_totals`, so
    // that a sum does not depend on how many there are.
    let mut total = value;
    #[unroll]
    for level in 0..comptime!(plane.ilog2()) {
        total += plane_shuffle_xor(total, comptime!(plane >> (level + 1)));
    }
    total
}

/// Sums of `count` values over a plane, both powers of two: the unit gets that of value `UNIT_POS % plane / (plane / count)`.
/// `values` are overwritten. All units must call it together.
///
/// Units exchange halves of what they have, so that `count - 1 + log2(plane / count)` values are passed on instead of
/// `count * log2(plane)`.
#[cube]
pub fn plane_totals(
    values: &mut Array<f32>,
    #[comptime] count: usize,
    #[comptime] plane: u32,
) -> f32 {
    together();
    #[unroll]
    for level in 0..comptime!(count.ilog2()) {
        let mask = comptime!(plane >> (level + 1));
        let half = comptime!(count >> (level + 1));
        let upper = (UNIT_POS & mask) != 0;
        #[unroll]
        for i in 0..half {
            let (low, high) = (values[i], values[comptime!(i + half)]);
            let given = select(upper, low, high);
            values[i] = select(upper, high, low) + plane_shuffle_xor(given, mask);
        }
    }
    plane_total(values[0], comptime!(plane / count as u32))
}

/// Sum over each team of `size` units, a power of two, in shared memory, the same in all of them. All units of the cube must call it
/// together.
#[cube]
pub fn shared_total(partial: &Shared<[f32]>, value: f32, #[comptime] size: u32) -> f32 {
    let inner = UNIT_POS % size;
    put(partial, UNIT_POS, value);
    sync_cube();
    #[unroll]
    for step in 0..comptime!(size.ilog2()) {
        let half = comptime!(size >> (step + 1));
        if inner < half {
            let other = partial[(UNIT_POS + half) as usize];
            put(partial, UNIT_POS, partial[UNIT_POS as usize] + other);
        }
        sync_cube();
    }
    let total = partial[(UNIT_POS - inner) as usize];
    sync_cube();
    total
}

/// Largest value of a plane, the same in every unit. All units must call it together.
#[cube]
pub fn plane_largest(value: f32, #[comptime] plane: u32) -> f32 {
    together();
    let mut largest = value;
    #[unroll]
    for level in 0..comptime!(plane.ilog2()) {
        let other = plane_shuffle_xor(largest, comptime!(plane >> (level + 1)));
        largest = max(largest, other);
    }
    largest
}

/// Largest value of the team, the same in every unit. All its units must call it together.
#[cube]
pub fn team_largest(value: f32, #[comptime] team: Team) -> f32 {
    if comptime!(team.is_plane()) {
        plane_largest(value, comptime!(team.plane))
    } else if comptime!(team.plane > 0) {
        let planes = comptime!(team.planes() as usize);
        let mut partial = Shared::<[f32]>::new_slice(planes);
        let own = plane_largest(value, comptime!(team.plane));
        if UNIT_POS.is_multiple_of(team.plane) {
            partial[(UNIT_POS / team.plane) as usize] = own;
        }
        sync_cube();
        let mut largest = own;
        #[unroll]
        for i in 0..planes {
            largest = max(largest, partial[i]);
        }
        sync_cube();
        largest
    } else {
        let partial = Shared::<[f32]>::new_slice(comptime!(team.units as usize));
        shared_largest(&partial, value, comptime!(team.units))
    }
}

/// The same in shared memory, over `units` units, which are all of the cube.
#[cube]
fn shared_largest(partial: &Shared<[f32]>, value: f32, #[comptime] units: u32) -> f32 {
    put(partial, UNIT_POS, value);
    sync_cube();
    #[unroll]
    for step in 0..comptime!(units.ilog2()) {
        let half = comptime!(units >> (step + 1));
        if UNIT_POS < half {
            let own = partial[UNIT_POS as usize];
            let other = partial[(UNIT_POS + half) as usize];
            put(partial, UNIT_POS, max(own, other));
        }
        sync_cube();
    }
    let largest = partial[0];
    sync_cube();
    largest
}

/// Words of shared memory of [`team_sum()`].
pub fn sum_words(team: Team) -> usize {
    match team.plane {
        0 => team.units as usize,
        _ if team.is_plane() => 0,
        _ => team.planes() as usize,
    }
}

/// Sum over the team, the same in every unit. All its units must call it together.
#[cube]
pub fn team_sum(value: f32, #[comptime] team: Team) -> f32 {
    if comptime!(team.is_plane()) {
        plane_total(value, comptime!(team.plane))
    } else if comptime!(team.plane > 0) {
        let planes = comptime!(team.planes() as usize);
        let mut partial = Shared::<[f32]>::new_slice(planes);
        let own = plane_total(value, comptime!(team.plane));
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
        let partial = Shared::<[f32]>::new_slice(comptime!(team.units as usize));
        shared_total(&partial, value, comptime!(team.units))
    }
}
