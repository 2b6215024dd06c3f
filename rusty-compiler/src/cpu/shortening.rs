//! When matrices of BF16 are [shortened](super::short_rows): some in each step, from the second on. Results are the same
//! to the bit, so a step may find some short and others as in the file; a pause for all at once would be felt.

use super::memory::release;
use super::short_rows::{ShortRows, fits, matrix_bytes};
use super::simd::Level;
use super::weights::{Matrix, Weights};
use rusty_backend::UnifiedTensor;

/// Stored bytes that a step shortens, at least one matrix.
const STEP_BYTES: usize = 64 << 20;

impl Weights {
    /// Notes which matrices are to be shortened, with room behind the first `used` bytes; all bytes then used. Experts
    /// that are routed stay in the file: what no step takes is not read.
    pub(super) fn find_long(&mut self, used: usize) -> usize {
        let mut end = used;
        for (id, matrix) in &self.matrices {
            if let Matrix::Float { bytes, kind, k } = matrix
                && fits(*kind, *k)
                && !self.routed.contains(id)
            {
                // Chunks are whole lines.
                let offset = end.next_multiple_of(64);
                self.long.push((*id, offset));
                end = offset + matrix_bytes(bytes.byte_len() as usize / (2 * k), *k);
            }
        }
        end
    }

    /// Shortens what is next.
    pub(super) fn shorten_some(&mut self, level: Level) {
        let mut done = 0;
        while done < STEP_BYTES
            && let Some((id, offset)) = self.long.pop()
        {
            let Some(Matrix::Float {
                bytes: UnifiedTensor::Host(stored),
                k,
                ..
            }) = self.matrices.get(&id)
            else {
                continue;
            };
            let (n, k) = (stored.len() / (2 * k), *k);
            // SAFETY: the room is inside the buffer, this matrix's own, and read by nobody yet.
            let room = unsafe {
                std::slice::from_raw_parts_mut(self.panels.ptr().add(offset), matrix_bytes(n, k))
            };
            done += stored.len();
            if let Some(short) = ShortRows::pack(level, (n, k), stored, offset, room) {
                release(stored);
                self.tables.remove(&id);
                self.matrices.insert(id, Matrix::Short(short));
            }
        }
        if done > 0 {
            self.account();
        }
    }
}
