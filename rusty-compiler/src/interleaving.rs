//! How an adapter's factors in Q8_0 lie: four ranks side by side.
//!
//! Products of bytes add four neighbours in one lane, and one load should bring codes that share as much as possible.
//! The blocks are those of Q8_0, 32 codes and a half-precision scale; only their order differs, so that nothing is lost.
//! Ranks are filled up to a multiple of four with zeros, so that one to three ranks take the room of four.
//!
//! `A`, for each four ranks (a *quartet*), 128 bytes per block of 32 inputs, then the scales:
//!
//! ```text
//! 16 inputs of rank 0, the same of rank 1, of rank 2, of rank 3; the other 16 inputs likewise      (codes, signed)
//! for each block four scales, one per rank
//! ```
//!
//! `B`, for each panel of 32 outputs, 128 bytes per four ranks, then the scales:
//!
//! ```text
//! ranks 0 to 3 of output 0, the same of output 1, ... of output 31                            (codes plus 128)
//! a scale per rank
//! ```

use crate::delta_table::PANEL;

/// Ranks that lie side by side.
pub(crate) const QUARTET: usize = 4;
/// Bytes of a block of codes of a quartet.
pub(crate) const CODES: usize = QUARTET * PANEL;
/// Bytes of its scales.
pub(crate) const SCALES: usize = QUARTET * 2;
/// Stored bytes of a block of one rank, as in Q8_0.
const BLOCK: usize = PANEL + 2;

/// Which factor a table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factor {
    /// `[rank, k]`, by rows.
    A,
    /// Panels of `rank` rows of 32 outputs.
    B {
        /// Rows of a panel.
        rank: usize,
    },
}

/// Where a block lies.
pub(crate) struct Place {
    /// Byte of its scale.
    pub(crate) scale: usize,
    /// Byte of its first code.
    first: usize,
    /// Distance of codes, of the first and the second half.
    step: usize,
    half: usize,
    /// What is added to a code.
    pub(crate) offset: u8,
}

impl Place {
    /// Byte of code `i`.
    pub(crate) fn code(&self, i: usize) -> usize {
        let half = PANEL / 2;
        self.first + i / half * self.half + i % half * self.step
    }
}

impl Factor {
    /// Bytes of a table of `rows` rows of `columns` values; none where they are no whole panels or more than can be
    /// counted.
    pub(crate) fn bytes(self, rows: usize, columns: usize) -> Option<usize> {
        let blocks = columns / PANEL;
        let filled = match self {
            Factor::A => rows.checked_next_multiple_of(QUARTET)?,
            Factor::B { rank } if !rows.is_multiple_of(rank) => return None,
            Factor::B { rank: 0 } => 0,
            Factor::B { rank } => {
                let ranks = rank.checked_next_multiple_of(QUARTET)?;
                (rows / rank).checked_mul(ranks)?
            }
        };
        filled.checked_mul(blocks)?.checked_mul(BLOCK)
    }

    /// Where block `block` of row `row` lies; a row has `blocks` of them.
    pub(crate) fn place(self, row: usize, block: usize, blocks: usize) -> Place {
        match self {
            Factor::A => {
                let base = row / QUARTET * blocks * (CODES + SCALES);
                let rank = row % QUARTET;
                Place {
                    scale: base + blocks * CODES + block * SCALES + rank * 2,
                    first: base + block * CODES + rank * (PANEL / 2),
                    step: 1,
                    half: CODES / 2,
                    offset: 0,
                }
            }
            Factor::B { rank } => {
                let ranks = rank.next_multiple_of(QUARTET);
                let (base, r) = (row / rank * ranks * BLOCK, row % rank);
                Place {
                    scale: base + ranks * PANEL + r * 2,
                    first: base + r / QUARTET * CODES + r % QUARTET,
                    step: QUARTET,
                    half: CODES / 2,
                    offset: 128,
                }
            }
        }
    }
}
