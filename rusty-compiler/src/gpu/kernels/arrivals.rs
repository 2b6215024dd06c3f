//! Cubes that leave something in the arena, of which the last one to arrive goes on with what all have left.

use super::env::put;
use cubecl::prelude::*;

/// Whether this cube is the last of `count`, by the counter at `at`, which is zero before and [again](reset()) after. What the others left
/// is there for it then. All units of the cube must call it together.
#[cube]
pub fn is_last(counters: &[Atomic<u32>], at: u32, count: u32) -> bool {
    let arrived = Shared::<[u32]>::new_slice(1usize);
    // What this cube left is visible before it says so, and what others left before it is told of them.
    sync_storage();
    if UNIT_POS == 0 {
        put(&arrived, 0u32, counters[at as usize].fetch_add(1u32));
    }
    sync_storage();
    arrived[0] + 1 == count
}

/// Makes the counter zero again, by the last cube.
#[cube]
pub fn reset(counters: &[Atomic<u32>], at: u32) {
    if UNIT_POS == 0 {
        counters[at as usize].store(0u32);
    }
}
