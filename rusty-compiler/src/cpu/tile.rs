//! Integer tiles: some input rows times one panel of sixteen outputs.
//!
//! Per group of 32 inputs the bytes are multiplied and summed as integers, then scaled once into the float
//! accumulator. The order of additions of an output does not depend on how many rows share the tile, so a
//! row's result is bit-equal alone and in any batch. The weight's decode is shared by the rows of a tile.

use super::panel::{GROUP, Kind, PanelLayout};
use super::prefetch::{Ahead, ask_stream};
use super::quantize::InputRows;
use super::simd::{LANES, Vector, per_isa};

/// Groups between two looks ahead: in the loop over groups they would take its registers.
const SEGMENT: usize = 4;

/// One panel to multiply.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub(super) kind: Kind,
    pub(super) groups: usize,
    codes: *const u8,
    scales: *const u8,
    supers: *const u8,
    /// Groups per block of the format.
    per_block: usize,
    /// Bytes of the whole panel per group.
    group_bytes: usize,
    /// Whether to ask for what follows the panel.
    streams: bool,
}

impl Panel {
    /// The panel whose bytes start at `at`.
    pub(super) fn new(layout: &PanelLayout, at: *const u8) -> Self {
        Self {
            kind: layout.kind,
            groups: layout.groups(),
            codes: at,
            scales: at.wrapping_add(layout.scales_at()),
            supers: at.wrapping_add(layout.supers_at()),
            per_block: layout.codec.block_len / GROUP,
            group_bytes: layout.panel_bytes() / layout.groups(),
            streams: true,
        }
    }

    /// A panel that the matrix's other panels do not follow.
    pub(super) fn alone(self) -> Self {
        Self {
            streams: false,
            ..self
        }
    }

    /// Asks for the `LINES` lines that come where group `g` is now. All parts of a panel lie in one run, so the
    /// groups together ask for whole panels.
    #[inline(always)]
    fn ask<const LINES: usize>(&self, g: usize) {
        if self.streams {
            ask_stream::<LINES>(self.codes.wrapping_add(g * self.group_bytes));
        }
    }
}

/// Steps at which [`multiply`] asks for memory ahead, about, for one panel and `rows` rows.
pub(super) fn steps(layout: &PanelLayout, rows: usize) -> usize {
    rows.div_ceil(8) * layout.groups().div_ceil(SEGMENT)
}

per_isa! {
    /// `out[r * stride ..][..16] = x[first + r] W^T` for `rows` rows over the panel's sixteen columns; `place` is `(first,
    /// rows)`.
    ///
    /// # Safety
    /// The panel and the input rows are whole; `out` holds 16 values per row.
    pub(super) fn multiply(panel: Panel, x: InputRows, place: (usize, usize), out: *mut f32, stride: usize, ahead: &mut Ahead) = multiply_with
}

#[inline(always)]
unsafe fn multiply_with<V: Vector>(
    mut panel: Panel,
    x: InputRows,
    (first, rows): (usize, usize),
    out: *mut f32,
    stride: usize,
    ahead: &mut Ahead,
) {
    let mut r = 0;
    // SAFETY: the caller's duty; each call covers rows below `rows`.
    unsafe {
        while V::QUANT_ROWS >= 8 && rows - r >= 8 {
            tile::<V, 8>(panel, x, first + r, out.add(r * stride), stride, ahead);
            r += 8;
            panel.streams = false;
        }
        while V::QUANT_ROWS >= 4 && rows - r >= 4 {
            tile::<V, 4>(panel, x, first + r, out.add(r * stride), stride, ahead);
            r += 4;
            panel.streams = false;
        }
        while V::QUANT_ROWS >= 2 && rows - r >= 2 {
            tile::<V, 2>(panel, x, first + r, out.add(r * stride), stride, ahead);
            r += 2;
            panel.streams = false;
        }
        while r < rows {
            tile::<V, 1>(panel, x, first + r, out.add(r * stride), stride, ahead);
            r += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<V: Vector, const M: usize>(
    panel: Panel,
    x: InputRows,
    first: usize,
    out: *mut f32,
    stride: usize,
    ahead: &mut Ahead,
) {
    let rows = Rows::<M> {
        codes: std::array::from_fn(|m| {
            x.codes
                .wrapping_add((first + m) * x.code_stride)
                .cast_const()
        }),
        scales: std::array::from_fn(|m| x.scales.wrapping_add((first + m) * x.groups).cast_const()),
        starts: std::array::from_fn(|m| x.start_row(first + m, panel.kind).cast_const()),
    };
    // SAFETY: the caller's duty.
    unsafe {
        let sums = match panel.kind {
            Kind::Block4 => block4::<V, M>(panel, &rows, ahead),
            Kind::Block8 => block8::<V, M>(panel, &rows, ahead),
            Kind::Min4 => min4::<V, M>(panel, &rows, ahead),
            Kind::Half6 => half6::<V, M>(panel, &rows, ahead),
        };
        for (m, sum) in sums.iter().enumerate() {
            V::store(out.add(m * stride), *sum);
        }
    }
}

struct Rows<const M: usize> {
    codes: [*const i8; M],
    scales: [*const f32; M],
    starts: [*const i32; M],
}

impl<const M: usize> Rows<M> {
    /// Four inputs of quad `q` of group `g`.
    #[inline(always)]
    unsafe fn quad(&self, m: usize, g: usize, q: usize) -> i32 {
        // SAFETY: `g` and `q` are inside the row.
        unsafe {
            self.codes[m]
                .add(g * GROUP + 4 * q)
                .cast::<i32>()
                .read_unaligned()
        }
    }

    #[inline(always)]
    unsafe fn start<V: Vector>(&self, g: usize) -> [V::I; M] {
        // SAFETY: `g` is inside the row.
        std::array::from_fn(|m| unsafe { V::splat_i(*self.starts[m].add(g)) })
    }

    /// `sums[m] += dots[m] * (scale * row scale)`.
    #[inline(always)]
    unsafe fn scale<V: Vector>(
        &self,
        sums: &mut [V::F; M],
        dots: &[V::I; M],
        scale: V::F,
        g: usize,
    ) {
        // SAFETY: `g` is inside the row.
        unsafe {
            for m in 0..M {
                let by = V::mul(scale, V::splat(*self.scales[m].add(g)));
                sums[m] = V::fma(V::to_f(dots[m]), by, sums[m]);
            }
        }
    }
}

/// Adds the 4-bit codes of a group: four vectors, two quads in each.
#[inline(always)]
unsafe fn nibbles<V: Vector, const M: usize>(
    dots: &mut [V::I; M],
    codes: *const u8,
    rows: &Rows<M>,
    g: usize,
) {
    // SAFETY: the caller's duty.
    unsafe {
        for j in 0..4 {
            let bytes = V::load_bytes(codes.add(j * 64));
            let (low, high) = (V::low4(bytes), V::high4(bytes));
            for (m, dot) in dots.iter_mut().enumerate() {
                *dot = V::dot(*dot, low, rows.quad(m, g, 2 * j));
                *dot = V::dot(*dot, high, rows.quad(m, g, 2 * j + 1));
            }
        }
    }
}

#[inline(always)]
unsafe fn block4<V: Vector, const M: usize>(
    p: Panel,
    rows: &Rows<M>,
    ahead: &mut Ahead,
) -> [V::F; M] {
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = [V::splat(0.0); M];
        for first in (0..p.groups).step_by(SEGMENT) {
            ahead.step();
            for g in first..(first + SEGMENT).min(p.groups) {
                p.ask::<5>(g);
                let mut dots = rows.start::<V>(g);
                nibbles::<V, M>(&mut dots, p.codes.add(g * 256), rows, g);
                let scale = V::load_f16(p.scales.add(g * 2 * LANES).cast());
                rows.scale::<V>(&mut sums, &dots, scale, g);
            }
        }
        sums
    }
}

#[inline(always)]
unsafe fn block8<V: Vector, const M: usize>(
    p: Panel,
    rows: &Rows<M>,
    ahead: &mut Ahead,
) -> [V::F; M] {
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = [V::splat(0.0); M];
        for first in (0..p.groups).step_by(SEGMENT) {
            ahead.step();
            for g in first..(first + SEGMENT).min(p.groups) {
                p.ask::<9>(g);
                let mut dots = rows.start::<V>(g);
                for q in 0..8 {
                    let bytes = V::load_bytes(p.codes.add(g * 512 + q * 64));
                    for (m, dot) in dots.iter_mut().enumerate() {
                        *dot = V::dot_wide(*dot, bytes, rows.quad(m, g, q));
                    }
                }
                let scale = V::load_f16(p.scales.add(g * 2 * LANES).cast());
                rows.scale::<V>(&mut sums, &dots, scale, g);
            }
        }
        sums
    }
}

#[inline(always)]
unsafe fn min4<V: Vector, const M: usize>(
    p: Panel,
    rows: &Rows<M>,
    ahead: &mut Ahead,
) -> [V::F; M] {
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = [V::splat(0.0); M];
        for block in 0..p.groups / p.per_block {
            ahead.step();
            let at = p.supers.add(block * 4 * LANES);
            let d = V::load_f16(at.cast());
            let dmin = V::load_f16(at.add(2 * LANES).cast());
            for g in block * p.per_block..(block + 1) * p.per_block {
                p.ask::<5>(g);
                let mut dots = [V::splat_i(0); M];
                nibbles::<V, M>(&mut dots, p.codes.add(g * 256), rows, g);
                let at = p.scales.add(g * 2 * LANES);
                let scale = V::mul(d, V::load_u8(at));
                let min = V::mul(dmin, V::load_u8(at.add(LANES)));
                rows.scale::<V>(&mut sums, &dots, scale, g);
                for (m, sum) in sums.iter_mut().enumerate() {
                    let inputs = V::splat(*rows.starts[m].cast::<f32>().add(g));
                    *sum = V::fnma(min, inputs, *sum);
                }
            }
        }
        sums
    }
}

#[inline(always)]
unsafe fn half6<V: Vector, const M: usize>(
    p: Panel,
    rows: &Rows<M>,
    ahead: &mut Ahead,
) -> [V::F; M] {
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = [V::splat(0.0); M];
        for block in 0..p.groups / p.per_block {
            ahead.step();
            let d = V::load_f16(p.supers.add(block * 2 * LANES).cast());
            for g in block * p.per_block..(block + 1) * p.per_block {
                p.ask::<7>(g);
                for half in 0..2 {
                    let codes = p.codes.add(g * 384);
                    let pairs = V::load_bytes(codes.add(256 + half * 64));
                    let mut dots = rows.start::<V>(2 * g + half);
                    let a = V::load_bytes(codes.add(half * 128));
                    let b = V::load_bytes(codes.add(half * 128 + 64));
                    let quads = [
                        V::with_pair::<0>(V::low4(a), pairs),
                        V::with_pair::<2>(V::high4(a), pairs),
                        V::with_pair::<4>(V::low4(b), pairs),
                        V::with_pair::<6>(V::high4(b), pairs),
                    ];
                    for (m, dot) in dots.iter_mut().enumerate() {
                        for (t, codes) in quads.iter().enumerate() {
                            *dot = V::dot(*dot, *codes, rows.quad(m, g, 4 * half + t));
                        }
                    }
                    let scale = V::load_i8(p.scales.add((2 * g + half) * LANES).cast());
                    rows.scale::<V>(&mut sums, &dots, V::mul(d, scale), g);
                }
            }
        }
        sums
    }
}
