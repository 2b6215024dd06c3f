//! Where a body's intermediate lanes lie.

use super::memory::Buffer;
use super::simd::LANES;

/// Registers and the scratch behind them.
pub(super) struct Registers {
    pub(super) regs: Vec<*const f32>,
    pub(super) scratch: Buffer,
    pub(super) stride: usize,
}

impl Registers {
    /// Room for bodies of `ops` instructions over `lanes` lanes.
    pub(super) fn new(ops: usize, lanes: usize) -> Self {
        let stride = lanes.next_multiple_of(LANES) + LANES;
        Self {
            regs: vec![std::ptr::null(); ops],
            scratch: Buffer::words(ops * stride),
            stride,
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.scratch.bytes()
    }
}
