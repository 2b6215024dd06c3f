//! When matrices of BF16 are [shortened](super::short_rows): some before each step, once blocks are
//! [repacked](super::weights). Results are the same to the bit, so a step may find some short and others as in the file;
//! a pause for all at once would be felt.

use super::memory::release;
use super::prefetch::LINE;
use super::short_rows::{ShortRows, fits, matrix_bytes};
use super::simd::Level;
use super::weights::{Matrix, Weights};
use rusty_backend::UnifiedTensor;
use rusty_graph::WeightId;

/// Stored bytes that are shortened before a step, at least one matrix.
const STEP_BYTES: usize = 64 << 20;

/// Matrices that are still to be shortened.
#[derive(Default)]
pub(super) struct Long {
    /// The last is next.
    ids: Vec<WeightId>,
    /// Where the next one's rows go in [`Weights::panels`].
    end: usize,
}

impl Weights {
    /// Whether a matrix is multiplied with inputs that are rounded to brain floats.
    pub(super) fn takes_brains(&self, matrix: &Matrix) -> bool {
        self.brains
            && match matrix {
                Matrix::Short(_) => true,
                Matrix::Float { kind, k, .. } => fits(*kind, *k),
                _ => false,
            }
    }

    /// Notes which matrices are to be shortened, into room behind the first `used` bytes; all bytes then used. Experts
    /// that are routed stay in the file: what no step takes is not read.
    pub(super) fn find_long(&mut self, used: usize) -> usize {
        // Chunks are whole lines.
        let first = used.next_multiple_of(LINE);
        let mut end = first;
        let mut ids = vec![];
        for (id, matrix) in &self.matrices {
            if let Matrix::Float { bytes, kind, k } = matrix
                && fits(*kind, *k)
                && !self.routed.contains(id)
            {
                ids.push(*id);
                end += matrix_bytes(bytes.byte_len() as usize / (2 * k), *k);
            }
        }
        self.long = Long { ids, end: first };
        end
    }

    /// Shortens what is next.
    pub(super) fn shorten_some(&mut self, level: Level) {
        let mut done = 0;
        while done < STEP_BYTES
            && let Some(id) = self.long.ids.pop()
        {
            let Some(Matrix::Float {
                bytes: UnifiedTensor::Host(stored),
                k,
                ..
            }) = self.matrices.get(&id)
            else {
                continue;
            };
            let (n, k, at) = (stored.len() / (2 * k), *k, self.long.end);
            // SAFETY: the room is inside the buffer, behind all that was shortened before, and read by nobody yet.
            let room = unsafe {
                std::slice::from_raw_parts_mut(self.panels.ptr().add(at), matrix_bytes(n, k))
            };
            done += stored.len();
            // Where too many values are exceptions, the next matrix takes the room.
            if let Some(short) = ShortRows::pack(level, (n, k), stored, at, room) {
                self.long.end += matrix_bytes(n, k);
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
