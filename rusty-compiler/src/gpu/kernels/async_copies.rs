//! Copies from a buffer to shared memory that units start and wait for later (PTX ISA, `cp.async`), while they multiply what is there.
//!
//! Copies that a unit starts belong to the group that it [closes](close_copies()) next, and it waits for its own groups in order; only a
//! barrier behind that shows the words to others. CUDA alone has them.

use cubecl::prelude::*;
use cubecl_cpp::cuda::ptx::generic_to_shared;

/// Starts to copy four words; both places are multiples of four.
#[cube]
pub fn start_copy<T: CubePrimitive>(from: &[T], at: u32, to: &Shared<[u32]>, place: u32) {
    let source = &from[at as usize..(at + 4) as usize];
    let target = &to[place as usize..(place + 4) as usize];
    let source = source.as_ptr();
    let target = generic_to_shared::<u32>(target.as_ptr());
    gpu_asm!(
        "cp.async.cg.shared::cta.global [{t}], [{s}], 16;",
        t = mem_out(_) target, s = mem_in(_) source,
        options(explicit_mem),
    );
}

/// Closes the group of the copies started since the one before.
#[cube]
pub fn close_copies() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until the unit's groups are there, but for the last `but`.
#[cube]
pub fn await_copies(#[comptime] but: usize) {
    gpu_asm!("cp.async.wait_group {but};");
}
