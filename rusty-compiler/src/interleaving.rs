//! How an adapter's factors in Q8_0 lie: four ranks side by side.
//!
//! Products of bytes add four neighbours in one lane, and one load should bring codes that share as much as possible.
//! The blocks are those of Q8_0, 32 codes and a half-precision scale; in `A` only their order differs. Ranks are filled up to a
//! multiple of four with zeros, so that one to three ranks take the room of four.
//!
//! `A`, for each four ranks (a *quartet*), 128 bytes per block of 32 inputs, then the scales:
//!
//! ```text
//! 16 inputs of rank 0, the same of rank 1, of rank 2, of rank 3; the other 16 inputs likewise      (codes, signed)
//! for each block four scales, one per rank
//! ```
//!
//! A block of `B` is up to 32 ranks of one output, so that what is multiplied with it becomes whole numbers once for all
//! outputs; an output's last block may be shorter. Ranks may differ in size, small where their inputs are large: each is divided
//! by its largest value, its *factor*. An output all of whose values are far below that, a thousandth part and less, is kept less
//! exactly, because half precision has no such scales. First come the factors, in single precision, filled up to a multiple of
//! sixteen, then for each panel of 32 outputs and each 32 ranks:
//!
//! ```text
//! a scale per output
//! ranks 0 to 3 of output 0, the same of output 1, ... of output 31; ranks 4 to 7 likewise; ...     (codes plus 128)
//! ```

use crate::delta_table::PANEL;
use half::f16;
use rusty_loader::Format;
use rusty_loader::formats::{self, Encoder};

/// Ranks that lie side by side.
pub(crate) const QUARTET: usize = 4;
/// Bytes of a block of codes of a quartet.
pub(crate) const CODES: usize = QUARTET * PANEL;
/// Bytes of its scales in `A`.
pub(crate) const SCALES: usize = QUARTET * 2;
/// Ranks of a block of `B`.
pub(crate) const RANKS: usize = 32;
/// Bytes of the scales of a panel's blocks of `B`.
pub(crate) const PANEL_SCALES: usize = PANEL * 2;
/// Factors of ranks are filled up to this many.
pub(crate) const FACTORS: usize = 16;
/// Stored bytes of a block of Q8_0, the scale first.
const BLOCK: usize = 2 + PANEL;
/// What is added to codes of `B`.
const OFFSET: u8 = 128;

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

/// Bytes in front of the panels of a `B` of so many ranks.
pub(crate) fn factor_bytes(rank: usize) -> usize {
    rank.next_multiple_of(FACTORS) * 4
}

/// Bytes of a panel of `B`.
pub(crate) fn panel_bytes(rank: usize) -> usize {
    rank.div_ceil(RANKS) * PANEL_SCALES + rank.next_multiple_of(QUARTET) * PANEL
}

impl Factor {
    /// Bytes of a table of `rows` rows of `columns` values; none where they are no whole panels or more than can be
    /// counted.
    pub(crate) fn bytes(self, rows: usize, columns: usize) -> Option<usize> {
        match self {
            Factor::A => {
                let ranks = rows.checked_next_multiple_of(QUARTET)?;
                ranks.checked_mul(columns / PANEL)?.checked_mul(BLOCK)
            }
            Factor::B { rank } if columns != PANEL || !rows.is_multiple_of(rank) => None,
            Factor::B { .. } if rows == 0 => Some(0),
            Factor::B { rank } => {
                // As many values as can be counted have countable ranks.
                rows.checked_mul(2 * (PANEL + PANEL_SCALES))?;
                let panels = (rows / rank).checked_mul(panel_bytes(rank))?;
                panels.checked_add(factor_bytes(rank))
            }
        }
    }

    /// Encodes `values`, of which there are some, rows of `columns`, into the bytes of a table, which are zeros; `encoder` is that
    /// of Q8_0.
    pub(crate) fn encode(
        self,
        encoder: &Encoder,
        columns: usize,
        values: &[f32],
        bytes: &mut [u8],
    ) {
        match self {
            Factor::A => {
                let blocks = columns / PANEL;
                for (row, values) in values.chunks_exact(columns).enumerate() {
                    let mut stored = vec![0; blocks * BLOCK];
                    encoder.rows(values, &mut stored);
                    for (b, block) in stored.chunks_exact(BLOCK).enumerate() {
                        let place = InA::new(row, b, blocks);
                        bytes[place.scale..][..2].copy_from_slice(&block[..2]);
                        for (i, code) in block[2..].iter().enumerate() {
                            bytes[place.code(i)] = *code;
                        }
                    }
                }
            }
            Factor::B { rank } => encode_b(encoder, rank, values, bytes),
        }
    }

    /// Decodes row `row` into `out`, `[columns]`.
    pub(crate) fn read_row(self, bytes: &[u8], row: usize, out: &mut [f32]) {
        match self {
            Factor::A => {
                let blocks = out.len() / PANEL;
                let mut stored = vec![0; blocks * BLOCK];
                for (b, block) in stored.chunks_exact_mut(BLOCK).enumerate() {
                    let place = InA::new(row, b, blocks);
                    block[..2].copy_from_slice(&bytes[place.scale..][..2]);
                    for (i, code) in block[2..].iter_mut().enumerate() {
                        *code = bytes[place.code(i)];
                    }
                }
                Format::Blocks(&formats::Q8_0).decode_row(&stored, out);
            }
            Factor::B { rank } => {
                let (panel, r) = (row / rank, row % rank);
                let factor = f32::from_le_bytes(array(&bytes[r * 4..]));
                for (lane, value) in out.iter_mut().enumerate() {
                    let place = InB::new(rank, panel, r, lane);
                    let scale = f16::from_le_bytes(array(&bytes[place.scale..])).to_f32();
                    let code = bytes[place.code].wrapping_sub(OFFSET).cast_signed();
                    *value = scale * f32::from(code) * factor;
                }
            }
        }
    }
}

fn encode_b(encoder: &Encoder, rank: usize, values: &[f32], bytes: &mut [u8]) {
    let mut factors = vec![0f32; rank];
    for (row, lanes) in values.chunks_exact(PANEL).enumerate() {
        let factor = &mut factors[row % rank];
        *factor = lanes.iter().fold(*factor, |most, v| most.max(v.abs()));
    }
    for (r, factor) in factors.iter().enumerate() {
        bytes[r * 4..][..4].copy_from_slice(&factor.to_le_bytes());
    }
    for (panel, rows) in values.chunks_exact(rank * PANEL).enumerate() {
        for (lane, from) in (0..PANEL).flat_map(|l| (0..rank).step_by(RANKS).map(move |f| (l, f))) {
            let count = RANKS.min(rank - from);
            let mut block = [0.0; RANKS];
            for (i, value) in block[..count].iter_mut().enumerate() {
                let factor = factors[from + i];
                if factor > 0.0 {
                    *value = rows[(from + i) * PANEL + lane] / factor;
                }
            }
            let mut stored = [0; BLOCK];
            encoder.rows(&block, &mut stored);
            let scale = InB::new(rank, panel, from, lane).scale;
            bytes[scale..][..2].copy_from_slice(&stored[..2]);
            let filled = count.next_multiple_of(QUARTET);
            for (i, code) in stored[2..].iter().enumerate().take(filled) {
                bytes[InB::new(rank, panel, from + i, lane).code] = code.wrapping_add(OFFSET);
            }
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| bytes[i])
}

/// Where a block of `A` lies.
struct InA {
    /// Byte of its scale.
    scale: usize,
    /// Byte of its first code.
    first: usize,
}

impl InA {
    fn new(row: usize, block: usize, blocks: usize) -> Self {
        let base = row / QUARTET * blocks * (CODES + SCALES);
        let rank = row % QUARTET;
        Self {
            scale: base + blocks * CODES + block * SCALES + rank * 2,
            first: base + block * CODES + rank * (PANEL / 2),
        }
    }

    /// Byte of code `i`.
    fn code(&self, i: usize) -> usize {
        let half = PANEL / 2;
        self.first + i / half * (CODES / 2) + i % half
    }
}

/// Where a value of `B` lies.
struct InB {
    /// Byte of its block's scale.
    scale: usize,
    /// Byte of its code.
    code: usize,
}

impl InB {
    fn new(rank: usize, panel: usize, r: usize, lane: usize) -> Self {
        let before = r / RANKS * (PANEL_SCALES + RANKS * PANEL);
        let block = factor_bytes(rank) + panel * panel_bytes(rank) + before;
        let r = r % RANKS;
        Self {
            scale: block + lane * 2,
            code: block + PANEL_SCALES + r / QUARTET * CODES + lane * QUARTET + r % QUARTET,
        }
    }
}
