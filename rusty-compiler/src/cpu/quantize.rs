//! Input rows of a contraction: in single precision, and as bytes for block-quantized weights.
//!
//! Each group of 32 values becomes signed bytes with one scale, `x = scale * q`, `scale = max|x| / 127`, once
//! per row, whatever the number of products that share it. Where some weights have scales of blocks, the inputs of a block
//! share one scale, as with K-quants elsewhere (`block_q8_K` in ggml): products are added up within a block before they are
//! scaled. Of normally distributed inputs that costs less than half a bit: the largest of 256 is 1.3 times that of 32 on average.
//! Beside the bytes lie the *starts* that the kernel's panels need: what the zero point of the weights' codes makes of the group's
//! (or half group's) sum.

use super::kind::{Kind, Start};
use super::memory::Buffer;
use super::panel::GROUP;
use super::simd::byte_products::ByteProducts;
use super::simd::{LANES, per_isa};
use super::tile::TILE_ROWS;

/// Which forms of the input a kernel's parts need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InputForms {
    /// Starts, each once and whether it is per half of a group; the first `None` ends them.
    starts: [Option<(Start, bool)>; MAX_STARTS],
    /// Groups that share a scale; 0: as 1.
    span: usize,
    /// Single precision.
    pub(super) floats: bool,
    /// Rounded to brain floats.
    pub(super) brains: bool,
}

/// Values of which the brain floats of the first and the second half take turns.
const PAIRED: usize = 2 * LANES;

/// Different starts that a kernel's parts may need.
const MAX_STARTS: usize = 8;

impl InputForms {
    /// Adds what panels of a kind are multiplied with: the position of its start, or `None` where there are too many.
    pub(super) fn add_panels(&mut self, kind: &Kind) -> Option<usize> {
        let span = self.span();
        self.span = (1..)
            .map(|n| n * span)
            .find(|n| n.is_multiple_of(kind.span))?;
        self.add(kind.start())
    }

    /// Adds a start; its position, or `None` where there are too many.
    pub(super) fn add(&mut self, start: (Start, bool)) -> Option<usize> {
        let free = |s: &Option<_>| s.is_none_or(|s| s == start);
        let at = self.starts.iter().position(free)?;
        self.starts[at] = Some(start);
        Some(at)
    }

    /// Adds floats as a matrix is multiplied with: rounded to brain floats, or not.
    pub(super) fn add_floats(&mut self, brains: bool) {
        match brains {
            true => self.brains = true,
            false => self.floats = true,
        }
    }

    /// The same starts, with or without single precision.
    pub(super) fn with_floats(self, floats: bool) -> Self {
        Self { floats, ..self }
    }

    /// Groups that share a scale.
    fn span(&self) -> usize {
        self.span.max(1)
    }

    /// Number of starts.
    pub(super) fn starts(&self) -> usize {
        self.starts.iter().flatten().count()
    }

    /// Whether any panel is multiplied.
    pub(super) fn quantized(&self) -> bool {
        self.starts[0].is_some()
    }
}

/// Rows of inputs `[rows, k]`.
pub(super) struct Inputs {
    floats: Buffer,
    brains: Buffer,
    codes: Buffer,
    scales: Buffer,
    starts: Buffer,
}

/// The inputs of one kernel: pointers and strides for its `k`.
#[derive(Clone, Copy)]
pub(super) struct InputRows {
    /// `[rows, float_stride]`, zero past `k`.
    pub(super) floats: *mut f32,
    pub(super) float_stride: usize,
    /// `[rows, brain_stride]`: of each 32 values, `i` and `16 + i` beside each other; null where they are not filled.
    pub(super) brains: *mut u16,
    brain_stride: usize,
    pub(super) codes: *mut i8,
    pub(super) code_stride: usize,
    /// `[rows, groups]`.
    pub(super) scales: *mut f32,
    /// `[rows, start_count, 2 groups]` words: integers, floats for [`Start::Sums`], half as many for [`Start::CodeSums`].
    starts: *mut i32,
    start_count: usize,
    pub(super) groups: usize,
    /// Whether codes and scales are filled.
    pub(super) quantized: bool,
    /// Which row each row of a product takes; null: its own.
    pub(super) taken: *const u32,
}

impl Inputs {
    /// Room for `rows` rows of up to `k` values and `starts` starts, and for brain floats, of which tiles may be read that
    /// begin at any row.
    pub(super) fn new(rows: usize, k: usize, starts: usize, brains: bool) -> Self {
        let groups = k.div_ceil(GROUP);
        Self {
            floats: Buffer::words(rows * float_stride(k)),
            brains: Buffer::new(if brains {
                (rows + TILE_ROWS - 1) * brain_stride(k) * 2
            } else {
                0
            }),
            codes: Buffer::new(rows * code_stride(k)),
            scales: Buffer::words(rows * groups),
            starts: Buffer::words(rows * groups * 2 * starts),
        }
    }

    /// The rows as a kernel of input width `k` uses them, which has these forms filled.
    pub(super) fn rows(&self, k: usize, forms: InputForms) -> InputRows {
        InputRows {
            floats: self.floats.floats(),
            float_stride: float_stride(k),
            brains: match forms.brains {
                true => self.brains.ptr().cast(),
                false => std::ptr::null_mut(),
            },
            brain_stride: brain_stride(k),
            codes: self.codes.ptr().cast(),
            code_stride: code_stride(k),
            scales: self.scales.floats(),
            starts: self.starts.ptr().cast(),
            start_count: forms.starts(),
            groups: k / GROUP,
            quantized: forms.quantized(),
            taken: std::ptr::null(),
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.floats.bytes()
            + self.brains.bytes()
            + self.codes.bytes()
            + self.scales.bytes()
            + self.starts.bytes()
    }
}

fn float_stride(k: usize) -> usize {
    k.next_multiple_of(LANES) + LANES
}

/// As [`code_stride`].
fn brain_stride(k: usize) -> usize {
    k.next_multiple_of(PAIRED) + PAIRED
}

/// One cache line more than the row, so that rows of a tile do not fall into the same cache sets.
fn code_stride(k: usize) -> usize {
    k.next_multiple_of(64) + 64
}

impl InputRows {
    /// The row that row `row` of a product takes.
    ///
    /// # Safety
    /// The list of rows, where there is one, holds it.
    #[inline(always)]
    pub(super) unsafe fn taken(&self, row: usize) -> usize {
        match self.taken.is_null() {
            true => row,
            // SAFETY: the caller's duty.
            false => unsafe { *self.taken.add(row) as usize },
        }
    }

    /// A single-precision row as rows of `width` each, which lie one behind the other.
    pub(super) fn blocks_of(&self, row: usize, width: usize) -> Self {
        Self {
            floats: self.float_row(row),
            float_stride: width,
            taken: std::ptr::null(),
            ..*self
        }
    }

    /// Single-precision row.
    pub(super) fn float_row(&self, row: usize) -> *mut f32 {
        self.floats.wrapping_add(row * self.float_stride)
    }

    /// Row of brain floats.
    pub(super) fn brain_row(&self, row: usize) -> *mut u16 {
        self.brains.wrapping_add(row * self.brain_stride)
    }

    /// The row's starts at a position of its [`InputForms`].
    pub(super) fn start_row(&self, row: usize, at: usize) -> *mut i32 {
        self.starts
            .wrapping_add((row * self.start_count + at) * 2 * self.groups)
    }
}

/// Rounds to the nearest brain floats, ties to even.
///
/// # Safety
/// `x` holds `k` values, whole [`PAIRED`]s, and `to` has room for them.
#[inline(always)]
unsafe fn fill_brains(to: *mut u16, x: *const f32, k: usize) {
    let round = |bits: u32| match bits & 0x7fff_ffff > 0x7f80_0000 {
        // No number: it stays none.
        true => bits >> 16 | 0x40,
        false => bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16,
    };
    for first in (0..k).step_by(PAIRED) {
        // SAFETY: the caller's duty.
        unsafe {
            let (x, to) = (x.add(first), to.add(first).cast::<u32>());
            for i in 0..LANES {
                let (low, high) = (*x.add(i), *x.add(LANES + i));
                let both = round(low.to_bits()) | round(high.to_bits()) << 16;
                to.add(i).write_unaligned(both);
            }
        }
    }
}

per_isa! {
    /// Fills row `row` from `x` (`k` values).
    ///
    /// # Safety
    /// The buffers behind `rows` hold the row; `x` holds `k` values.
    pub(super) fn fill_row(rows: InputRows, row: usize, x: *const f32, k: usize, forms: InputForms) = products fill_row_with
}

/// [`fill_row`] inside a kernel.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn fill_row_with<V: ByteProducts>(
    rows: InputRows,
    row: usize,
    x: *const f32,
    k: usize,
    forms: InputForms,
) {
    // SAFETY: the caller's duty.
    unsafe {
        if forms.floats {
            let to = rows.float_row(row);
            std::ptr::copy_nonoverlapping(x, to, k);
            std::ptr::write_bytes(to.add(k), 0, k.next_multiple_of(LANES) - k);
        }
        if forms.brains {
            fill_brains(rows.brain_row(row), x, k);
        }
        if !forms.quantized() {
            return;
        }
        for first in (0..rows.groups).step_by(forms.span()) {
            let last = (first + forms.span()).min(rows.groups);
            let mut largest = V::splat(0.0);
            for g in first..last {
                let x = x.add(g * GROUP);
                let of_group = V::max(V::abs(V::load(x)), V::abs(V::load(x.add(LANES))));
                largest = V::max(largest, of_group);
            }
            let largest = V::largest(largest);
            for g in first..last {
                fill_group::<V>(rows, (row, g), x, largest, &forms);
            }
        }
    }
}

/// Fills group `g` of a row of `x`, whose scale is that of `largest`.
#[inline(always)]
unsafe fn fill_group<V: ByteProducts>(
    rows: InputRows,
    (row, g): (usize, usize),
    x: *const f32,
    largest: f32,
    forms: &InputForms,
) {
    // SAFETY: the caller's duty.
    unsafe {
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let by = V::splat(inverse);
        let x = x.add(g * GROUP);
        let codes = rows.codes.add(row * rows.code_stride + g * GROUP);
        let lo = V::sum_i(V::store_i8(codes, V::round(V::mul(V::load(x), by))));
        let high = V::round(V::mul(V::load(x.add(LANES)), by));
        let hi = V::sum_i(V::store_i8(codes.add(LANES), high));
        let scale = largest / 127.0;
        *rows.scales.add(row * rows.groups + g) = scale;
        for (at, (start, halves)) in forms.starts.iter().flatten().enumerate() {
            let to = rows.start_row(row, at);
            let put = |i: usize, sum: i32| match start {
                Start::Zero(zero) => *to.add(i) = -zero * sum,
                Start::Wide => *to.add(i) = -V::WIDE_OFFSET * sum,
                Start::Sums => *to.add(i).cast::<f32>() = scale * sum as f32,
                Start::CodeSums => *to.cast::<i16>().add(i) = sum as i16,
            };
            if *halves {
                put(2 * g, lo);
                put(2 * g + 1, hi);
            } else {
                put(g, lo + hi);
            }
        }
    }
}
