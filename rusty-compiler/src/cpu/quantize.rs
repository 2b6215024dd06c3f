//! Input rows of a contraction: in single precision, and as bytes for block-quantized weights.
//!
//! Each group of 32 values becomes signed bytes with one scale, `x = scale * q`, `scale = max|x| / 127`, once
//! per row, whatever the number of products that share it. Beside the bytes lie, per kind of panel in use,
//! the *starts*: what the zero point of the weight's codes makes of the group's sum.

use super::memory::Buffer;
use super::panel::{GROUP, Kind};
use super::simd::{LANES, Vector, per_isa};

/// Which forms of the input a kernel's parts need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Forms {
    /// Kinds of panels.
    pub(super) kinds: [bool; 4],
    /// Single precision.
    pub(super) floats: bool,
}

impl Forms {
    /// Whether any panel is multiplied.
    pub(super) fn quantized(&self) -> bool {
        self.kinds.contains(&true)
    }
}

/// Rows of inputs `[rows, k]`.
pub(super) struct Inputs {
    floats: Buffer,
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
    pub(super) codes: *mut i8,
    pub(super) code_stride: usize,
    /// `[rows, groups]`.
    pub(super) scales: *mut f32,
    /// `[rows, Kind::ALL, 2 groups]` words: integers, or floats for [`Kind::Min4`].
    pub(super) starts: *mut i32,
    pub(super) groups: usize,
    /// Whether codes and scales are filled.
    pub(super) quantized: bool,
}

impl Inputs {
    /// Room for `rows` rows of up to `k` values.
    pub(super) fn new(rows: usize, k: usize) -> Self {
        let groups = k.div_ceil(GROUP);
        Self {
            floats: Buffer::words(rows * float_stride(k)),
            codes: Buffer::new(rows * code_stride(k)),
            scales: Buffer::words(rows * groups),
            starts: Buffer::words(rows * groups * 2 * Kind::ALL.len()),
        }
    }

    /// The rows as a kernel of input width `k` uses them, which has these forms filled.
    pub(super) fn rows(&self, k: usize, forms: Forms) -> InputRows {
        InputRows {
            floats: self.floats.floats(),
            float_stride: float_stride(k),
            codes: self.codes.ptr().cast(),
            code_stride: code_stride(k),
            scales: self.scales.floats(),
            starts: self.starts.ptr().cast(),
            groups: k / GROUP,
            quantized: forms.quantized(),
        }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.floats.bytes() + self.codes.bytes() + self.scales.bytes() + self.starts.bytes()
    }
}

fn float_stride(k: usize) -> usize {
    k.next_multiple_of(LANES) + LANES
}

/// One cache line more than the row, so that rows of a tile do not fall into the same cache sets.
fn code_stride(k: usize) -> usize {
    k.next_multiple_of(64) + 64
}

impl InputRows {
    /// Single-precision row.
    pub(super) fn float_row(&self, row: usize) -> *mut f32 {
        self.floats.wrapping_add(row * self.float_stride)
    }

    /// Starts of a row for a kind.
    pub(super) fn start_row(&self, row: usize, kind: Kind) -> *mut i32 {
        self.starts
            .wrapping_add((row * Kind::ALL.len() + kind.index()) * 2 * self.groups)
    }
}

per_isa! {
    /// Fills row `row` from `x` (`k` values).
    ///
    /// # Safety
    /// The buffers behind `rows` hold the row; `x` holds `k` values.
    pub(super) fn fill_row(rows: InputRows, row: usize, x: *const f32, k: usize, forms: Forms) = fill_row_with
}

#[inline(always)]
unsafe fn fill_row_with<V: Vector>(
    rows: InputRows,
    row: usize,
    x: *const f32,
    k: usize,
    forms: Forms,
) {
    // SAFETY: the caller's duty.
    unsafe {
        if forms.floats {
            let to = rows.float_row(row);
            std::ptr::copy_nonoverlapping(x, to, k);
            std::ptr::write_bytes(to.add(k), 0, k.next_multiple_of(LANES) - k);
        }
        if !forms.quantized() {
            return;
        }
        let codes = rows.codes.add(row * rows.code_stride);
        let scales = rows.scales.add(row * rows.groups);
        for g in 0..rows.groups {
            let x = x.add(g * GROUP);
            let (a, b) = (V::load(x), V::load(x.add(LANES)));
            let largest = V::largest(V::max(V::abs(a), V::abs(b)));
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let by = V::splat(inverse);
            let codes = codes.add(g * GROUP);
            let lo = V::sum_i(V::store_i8(codes, V::round(V::mul(a, by))));
            let hi = V::sum_i(V::store_i8(codes.add(LANES), V::round(V::mul(b, by))));
            let scale = largest / 127.0;
            *scales.add(g) = scale;
            if forms.kinds[Kind::Block4.index()] {
                *rows.start_row(row, Kind::Block4).add(g) = -8 * (lo + hi);
            }
            if forms.kinds[Kind::Block8.index()] {
                *rows.start_row(row, Kind::Block8).add(g) = -V::WIDE_OFFSET * (lo + hi);
            }
            if forms.kinds[Kind::Min4.index()] {
                let sum = rows.start_row(row, Kind::Min4).cast::<f32>();
                *sum.add(g) = scale * (lo + hi) as f32;
            }
            if forms.kinds[Kind::Half6.index()] {
                *rows.start_row(row, Kind::Half6).add(2 * g) = -32 * lo;
                *rows.start_row(row, Kind::Half6).add(2 * g + 1) = -32 * hi;
            }
        }
    }
}
