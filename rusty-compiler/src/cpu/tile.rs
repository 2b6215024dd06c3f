//! Integer tiles: some input rows times one panel of sixteen outputs.
//!
//! Per group of 32 inputs the bytes are multiplied and summed as integers, then scaled once into the float
//! accumulator, of a block where groups have steps of a block's scale. The order of additions of an output does not depend on how many rows share the tile, so a
//! row's result is bit-equal alone and in any batch. The weight's decode is shared by the rows of a tile.

use super::forms::Form;
use super::group_sums::{Inputs, sums};
use super::kind::Kind;
use super::panel::PanelLayout;
use super::prefetch::{Ahead, LINE, ask_for};
use super::quads::Codes;
use super::quantize::InputRows;
use super::simd::word_products::WordProducts;
use super::simd::{Level, per_isa};
#[cfg(target_arch = "x86_64")]
use super::{amx, amx_registers};

/// Groups between two looks ahead: in the loop over groups they would take its registers.
const SEGMENT: usize = 4;

/// Bytes of a group's codes where each is a byte. Narrower codes are taken apart, which twelve rows share; bytes are not,
/// and eight rows' inputs leave them more of the first-level cache.
const BYTE_CODES: usize = 512;
/// Rows of a tile on tile registers.
pub(super) const TILE_ROWS: usize = 16;
/// Rows from which on they are taken twelve at a time; sixteen are two times eight, not twelve and four.
const TWELVES: usize = 24;

/// This thread's tile registers, set up until it is dropped.
pub(super) struct TileRegisters(());

impl TileRegisters {
    /// For panels of a kind and so many rows; none where the machine has none or the rows are too few.
    pub(super) fn set_up(level: Level, kind: &Kind, rows: usize) -> Option<Self> {
        if rows < TILE_ROWS || !level.has_tiles() {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level exists only where the process may use them.
        unsafe {
            amx::set_up(kind.scaling.halves());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = kind;
        Some(Self(()))
    }
}

impl Drop for TileRegisters {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: they were set up.
        unsafe {
            amx_registers::release();
        }
    }
}

/// One panel to multiply.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub(super) kind: Kind,
    pub(super) groups: usize,
    /// Its first byte.
    pub(super) at: *const u8,
    /// Groups between two looks ahead, see [`stretch`].
    pub(super) stretch: usize,
    /// Whether tile registers are set up for its kind.
    pub(super) tiles: bool,
    /// Which of the inputs' starts belong to it.
    pub(super) start: usize,
    /// Its bytes.
    pub(super) bytes: usize,
    /// Bytes asked for at each group: of the whole panel, its padding and the scales of blocks included.
    asked_bytes: usize,
    /// What is asked for meanwhile, as many bytes as the panel has; null: nothing.
    next: *const u8,
    /// Lines per group that one pass over the panel asks for: first, and the one behind the last.
    lines: (usize, usize),
}

impl Panel {
    /// The panel whose bytes start at `at`; `start` is the position of its kind's start among the inputs', `next` where
    /// the bytes lie that are asked for meanwhile, null where none are; `registers` are set up for its kind.
    pub(super) fn new(
        layout: &PanelLayout,
        at: *const u8,
        start: usize,
        next: *const u8,
        registers: Option<&TileRegisters>,
    ) -> Self {
        let asked_bytes = layout.panel_bytes() / layout.groups();
        Self {
            kind: layout.kind,
            groups: layout.groups(),
            at,
            stretch: stretch(layout),
            tiles: registers.is_some(),
            start,
            bytes: layout.panel_bytes(),
            asked_bytes,
            next,
            lines: (0, asked_bytes.div_ceil(LINE)),
        }
    }

    /// Where the block lies that begins with group `g`; where blocks have no scales, that group.
    pub(super) fn block<F: Form>(&self, g: usize) -> *const u8 {
        let blocks = g / self.stretch * F::SCALING.block_bytes();
        self.at.wrapping_add(blocks + g * F::BYTES)
    }

    /// Whether another one lies in the same way and is multiplied with the same of the inputs.
    pub(super) fn is_like(&self, other: &Panel) -> bool {
        (self.kind, self.bytes, self.start) == (other.kind, other.bytes, other.start)
    }

    /// Steps at which a product of one row asks for memory ahead, see [`Ahead`].
    pub(super) fn steps(&self) -> usize {
        steps_of_panel(self.groups, self.stretch)
    }

    /// The panel `by` bytes further, which asks for what lies `next` bytes further.
    pub(super) fn moved(self, by: usize, next: usize) -> Self {
        let asked = match self.next.is_null() {
            true => self.next,
            false => self.next.wrapping_add(next),
        };
        Self {
            at: self.at.wrapping_add(by),
            next: asked,
            ..self
        }
    }

    /// The same, which asks for what lies at `next`; null: for nothing.
    pub(super) fn asking(self, next: *const u8) -> Self {
        Self { next, ..self }
    }

    /// The panel in pass `i` of `passes`: each asks for its part of the lines, because memory answers evenly or late.
    pub(super) fn pass(self, i: usize, passes: usize) -> Self {
        let lines = self.asked_bytes.div_ceil(LINE);
        Self {
            lines: (lines * i / passes, lines * (i + 1) / passes),
            ..self
        }
    }

    /// Asks for lines of what comes next, where group `g` is now. The groups together ask for whole panels.
    #[inline(always)]
    pub(super) fn ask(&self, g: usize) {
        if !self.next.is_null() {
            let at = self.next.addr() + g * self.asked_bytes;
            for line in self.lines.0..self.lines.1 {
                ask_for(at + line * LINE);
            }
        }
    }
}

/// Looks ahead of one pass over a panel.
fn steps_of_panel(groups: usize, stretch: usize) -> usize {
    groups.div_ceil(stretch)
}

/// Groups between two looks ahead; where blocks have scales, a block's.
fn stretch(layout: &PanelLayout) -> usize {
    match layout.kind.scaling.block_bytes() {
        0 => SEGMENT,
        _ => layout.block_groups(),
    }
}

/// Steps at which products of `rows` rows with one panel, or of one row with [several](super::stream::streams), ask for memory
/// ahead: about as many, rather too few, as what is left at a product's end is asked for at once.
pub(super) fn steps(level: Level, layout: &PanelLayout, rows: usize) -> usize {
    let together = match rows {
        TILE_ROWS.. if level.has_tiles() => TILE_ROWS,
        TWELVES.. => 12,
        _ => 8,
    };
    rows.div_ceil(together) * steps_of_panel(layout.groups(), stretch(layout))
}

per_isa! {
    /// `out[r * stride ..][..16] = x[first + r] W^T` for `rows` rows over the panel's sixteen columns; `place` is `(first,
    /// rows)`.
    ///
    /// # Safety
    /// The panel and the input rows are whole; `out` holds 16 values per row.
    pub(super) fn multiply<F: Form>(panel: Panel, x: InputRows, place: (usize, usize), out: *mut f32, stride: usize, ahead: &mut Ahead) = products multiply_with
}

#[inline(always)]
unsafe fn multiply_with<V: WordProducts, F: Form>(
    panel: Panel,
    x: InputRows,
    place: (usize, usize),
    out: *mut f32,
    stride: usize,
    ahead: &mut Ahead,
) {
    let mut r = 0;
    let out = (out, stride);
    // SAFETY: the caller's duty.
    unsafe {
        if panel.tiles && place.1 >= TILE_ROWS && x.taken.is_null() {
            r = V::tiles::<F>(panel, x, place, out, ahead);
        }
        if V::QUANT_ROWS >= 12 && F::Codes::BYTES < BYTE_CODES && place.1 - r >= TWELVES {
            r = tiles::<V, F, 12>(panel, x, place, r, out, ahead);
        }
        if V::QUANT_ROWS >= 8 {
            r = tiles::<V, F, 8>(panel, x, place, r, out, ahead);
        }
        if V::QUANT_ROWS >= 4 {
            r = tiles::<V, F, 4>(panel, x, place, r, out, ahead);
        }
        if V::QUANT_ROWS >= 2 {
            r = tiles::<V, F, 2>(panel, x, place, r, out, ahead);
        }
        tiles::<V, F, 1>(panel, x, place, r, out, ahead);
    }
}

/// As many tiles of `M` rows as there are from row `from` on; returns the first row that is left. The first rows' passes
/// ask for what comes next.
#[inline(always)]
unsafe fn tiles<V: WordProducts, F: Form, const M: usize>(
    panel: Panel,
    x: InputRows,
    (first, rows): (usize, usize),
    from: usize,
    (out, stride): (*mut f32, usize),
    ahead: &mut Ahead,
) -> usize {
    let passes = (rows - from) / M;
    for i in 0..passes {
        let mut panel = panel.pass(i, passes);
        if from > 0 {
            panel.next = std::ptr::null();
        }
        let r = from + i * M;
        // SAFETY: each tile covers rows below `rows`.
        unsafe {
            let out = (out.add(r * stride), stride, 0);
            tile::<V, F, M, 1>([panel], x, first + r, out, ahead);
        }
    }
    from + passes * M
}

/// The products of `M` rows from `first` on with panels of one layout; `out` comes with the distances of its rows and of the
/// panels' results.
///
/// # Safety
/// The panels and the input rows are whole; `out` holds 16 values per row and panel.
#[inline(always)]
pub(super) unsafe fn tile<V: WordProducts, F: Form, const M: usize, const P: usize>(
    panels: [Panel; P],
    x: InputRows,
    first: usize,
    (out, stride, step): (*mut f32, usize, usize),
    ahead: &mut Ahead,
) {
    let mut rows = Inputs::<M> {
        codes: [std::ptr::null(); M],
        scales: [std::ptr::null(); M],
        starts: [std::ptr::null(); M],
    };
    for m in 0..M {
        // SAFETY: the input rows are whole.
        let row = unsafe { x.taken(first + m) };
        rows.codes[m] = x.codes.wrapping_add(row * x.code_stride).cast_const();
        rows.scales[m] = x.scales.wrapping_add(row * x.groups).cast_const();
        rows.starts[m] = x.start_row(row, panels[0].start).cast_const();
    }
    // SAFETY: the caller's duty.
    unsafe {
        let sums = sums::<V, F, M, P>(&panels, &rows, ahead);
        for n in 0..P {
            for m in 0..M {
                V::store(out.add(m * stride + n * step), sums[n][m]);
            }
        }
    }
}
