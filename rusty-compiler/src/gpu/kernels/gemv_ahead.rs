//! Weights that [the matrix-vector kernel](super::gemv) asks for before it makes its inputs, so that memory is not idle meanwhile: where
//! kernels begin while those before them end (`gpu/cuda_text.rs`), while it waits for them. On CUDA only; whether it helps is [measured](crate::gpu::tuner).

use super::contract::{ContractConfig, PartConfig};
use super::env::{Buffers, is_cuda};
use super::gemv_place::lane_address;
use super::unit_lanes::{AlikeUnits, Lanes};
use cubecl::prelude::*;

/// Bytes of a cache's line.
const LINE: u32 = 128;
/// Lines that a unit asks for at most: what comes first of each row.
const MOST: u32 = 8;

impl ContractConfig {
    /// Lines of each of a part's rows.
    fn lines_ahead(&self, part: PartConfig) -> u32 {
        let rows = self.cube_lanes() * self.most_parts() as u32;
        let most = (MOST * self.team.units / rows).max(1);
        part.row_bytes.div_ceil(LINE).min(most)
    }
}

/// Asks for the first lines of the rows of weights of a cube's lanes, into the cache that all cubes share.
#[cube]
pub fn ask_ahead(
    buffers: &Buffers<'_>,
    lanes: &Lanes,
    #[comptime] config: ContractConfig,
    #[comptime] alike: AlikeUnits,
) {
    #[unroll]
    for p in 0..comptime!(alike.parts.len()) {
        let part = comptime!(alike.parts[p]);
        let lines = comptime!(config.lines_ahead(part));
        let mut line = UNIT_POS;
        while line < comptime!(config.cube_lanes() * lines) {
            let lane = min(lanes.first + line / lines, lanes.end - 1);
            let row = lane_address(lanes, lane, part, p);
            ask_for(
                buffers.weights,
                row / 4 + line % lines * comptime!(LINE / 4),
            );
            line += comptime!(config.team.units);
        }
    }
}

/// Where a kernel that has something to do before it waits for the launches before its own: all that comes of others, or goes to them,
/// is behind.
#[cube]
pub fn await_earlier() {
    let cuda = is_cuda();
    if comptime!(cuda) {
        gpu_asm!("// await earlier launches");
    }
}

#[cube]
fn ask_for(words: &[u32], at: u32) {
    // SAFETY: the address of a word of a row, which is neither read nor written.
    let address = unsafe { words[at as usize..].as_ptr_unchecked() };
    gpu_asm!("prefetch.global.L2 [{}];", in(_) address, options(nomem));
}
