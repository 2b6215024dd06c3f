//! How cubes of [the matrix-vector kernel](super::gemv::gemv_shrinking()) wait for the first of their launch, which start before them
//! where devices do what they are known to do. A cube that waits in vain makes what it waits for itself.
//!
//! Counters of each number of cubes' first dimension, which have the same rows, say how many of the first are done, and how many of all
//! need them no more.

use super::env::{is_cuda, is_wgsl, put};
use cubecl::prelude::*;

/// Looks after which a cube goes on without, for each of some ranks that tables may have: hundreds of microseconds, much longer than
/// the first cubes are at them.
const LOOKS: u32 = 1 << 10;
/// So many ranks.
const RANKS: u32 = 32;
/// The looks of a cube for WGSL, which only tests do this in, and how many looks are one there: Mesa's software device ends all loops of an
/// invocation after 65,535 turns together. Every second cube looks but once, so that either way is tested.
const WGSL_LOOKS: (u32, usize) = (1 << 15, 64);

/// Words from the counters of one such number to the next's, and from its first to its second: lines of their own.
pub const COUNTER_STRIDE: u32 = 32;
const TAKEN: u32 = 16;

/// What this cube left is there for others.
#[cube]
pub fn announce(counters: &[Atomic<u32>]) {
    // Visible before it is told.
    sync_storage();
    if UNIT_POS == 0 {
        counters[done()].fetch_add(1u32);
    }
    // Told before this cube leaves: the last one to leave takes it back.
    sync_storage();
}

/// Waits until `count` cubes of the same rows have left what they make, and returns how many have: the same in all units, which must
/// call it together. `tile` is the cube's number among those that wait; tables have up to `ranks` ranks.
#[cube]
pub fn await_all(counters: &[Atomic<u32>], count: u32, tile: u32, ranks: u32) -> u32 {
    let wgsl = is_wgsl();
    let (most, at_once) = comptime!(if wgsl { WGSL_LOOKS } else { (LOOKS, 1) });
    let seen = Shared::<[u32]>::new_slice(1usize);
    if UNIT_POS == 0 {
        let most = if comptime!(wgsl) {
            select(tile.is_multiple_of(2), most.runtime(), 1u32)
        } else {
            most * (ranks / RANKS + 1)
        };
        let mut looks = 0u32;
        let mut arrived = 0u32;
        while looks < most && arrived < count {
            #[unroll]
            for _ in 0..at_once {
                arrived = look(counters);
            }
            pause();
            looks += 1;
        }
        put(&seen, 0u32, arrived);
    }
    // All units see what was told of.
    sync_storage();
    seen[0]
}

/// Lets others have the memory that the counters are in.
#[cube]
fn pause() {
    let cuda = is_cuda();
    if comptime!(cuda) {
        gpu_asm!("nanosleep.u32 64;", options(nomem));
    }
}

/// Cubes of the same rows that are done. Mesa's software device takes an atomic load for one that nobody else changes, so that a loop
/// would never see another.
#[cube]
fn look(counters: &[Atomic<u32>]) -> u32 {
    let wgsl = is_wgsl();
    if comptime!(wgsl) {
        counters[done()].fetch_add(0u32)
    } else {
        counters[done()].load()
    }
}

/// The last cube of the same rows, whichever it is, leaves the counters as they were.
#[cube]
pub fn leave(counters: &[Atomic<u32>]) {
    if UNIT_POS == 0 {
        let before = counters[taken()].fetch_add(1u32);
        if before + 1 == CUBE_COUNT_Y * CUBE_COUNT_Z {
            counters[done()].store(0u32);
            counters[taken()].store(0u32);
        }
    }
}

#[cube]
fn done() -> usize {
    (CUBE_POS_X * COUNTER_STRIDE) as usize
}

#[cube]
fn taken() -> usize {
    (CUBE_POS_X * COUNTER_STRIDE + TAKEN) as usize
}
