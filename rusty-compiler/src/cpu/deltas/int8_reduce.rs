//! `A x` of an adapter whose `A` is [interleaved](crate::interleaving) bytes, four ranks at a time: in integers where
//! the inputs were quantized for the weights, else decoded in registers.
//!
//! The order of additions of a result does not depend on how many rows share a tile.

use crate::cpu::prefetch::{LINE, ask_for};
use crate::cpu::quantize::InputRows;
use crate::cpu::row_tiles::Extent;
use crate::cpu::simd::byte_products::ByteProducts;
use crate::cpu::simd::{LANES, Vector, per_isa};
use crate::delta_table::PANEL;
use crate::interleaving::{CODES, QUARTET, SCALES};

/// Ranks of an `A`, whole quartets.
#[derive(Clone, Copy)]
pub(super) struct Quartets {
    pub(super) at: *const u8,
    pub(super) k: usize,
    /// Bytes to what is asked for meanwhile; none: nothing.
    pub(super) distance: Option<isize>,
}

impl Quartets {
    fn blocks(&self) -> usize {
        self.k / PANEL
    }

    /// The codes of quartet `q`; its scales are behind them.
    #[inline(always)]
    unsafe fn codes(&self, q: usize) -> *const u8 {
        // SAFETY: the caller's duty.
        unsafe { self.at.add(q * self.blocks() * (CODES + SCALES)) }
    }

    /// Asks for block `block` of the quartet that comes where `codes` is now.
    #[inline(always)]
    fn ask(&self, codes: *const u8, block: usize) {
        if let Some(distance) = self.distance {
            let next = codes.wrapping_offset(distance).addr();
            for line in 0..CODES / LINE {
                ask_for(next + block * CODES + line * LINE);
            }
            if block.is_multiple_of(LINE / SCALES) {
                ask_for(next + self.blocks() * CODES + block * SCALES);
            }
        }
    }
}

per_isa! {
    /// `out[r * stride + c] = x[taken(first + r)] . a[c]`.
    ///
    /// # Safety
    /// `a` holds the extent's columns; the inputs are filled.
    pub(super) fn multiply(a: Quartets, x: InputRows, extent: Extent) = products multiply_with
}

#[inline(always)]
unsafe fn multiply_with<V: ByteProducts>(a: Quartets, x: InputRows, e: Extent) {
    let mut r = 0;
    // SAFETY: the caller's duty; rows and quartets stay inside the extent.
    unsafe {
        while e.rows - r >= 4 {
            quartets::<V, 4, 2>(a, x, e, r);
            r += 4;
        }
        while r < e.rows {
            quartets::<V, 1, 4>(a, x, e, r);
            r += 1;
        }
    }
}

/// All quartets with `M` input rows from `r` on, `N` at a time.
#[inline(always)]
unsafe fn quartets<V: ByteProducts, const M: usize, const N: usize>(
    mut a: Quartets,
    x: InputRows,
    e: Extent,
    r: usize,
) {
    if r > 0 {
        a.distance = None;
    }
    let (mut q, all) = (0, e.columns.div_ceil(QUARTET));
    // SAFETY: the caller's duty.
    unsafe {
        if !x.quantized {
            for q in 0..all {
                decoded::<V, M>(a, x, e, (r, q));
            }
            return;
        }
        while all - q >= N {
            integers::<V, M, N>(a, x, e, (r, q));
            q += N;
        }
        while q < all {
            integers::<V, M, 1>(a, x, e, (r, q));
            q += 1;
        }
    }
}

/// Lanes `4 i ..` hold the sums of rank `i`.
#[inline(always)]
unsafe fn integers<V: ByteProducts, const M: usize, const N: usize>(
    a: Quartets,
    x: InputRows,
    e: Extent,
    (r, q): (usize, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let row = |m: usize| x.taken(e.first + r + m);
        let codes: [*const i8; M] =
            std::array::from_fn(|m| x.codes.wrapping_add(row(m) * x.code_stride).cast_const());
        let scales: [*const f32; M] =
            std::array::from_fn(|m| x.scales.wrapping_add(row(m) * x.groups).cast_const());
        let ranks: [*const u8; N] = std::array::from_fn(|n| a.codes(q + n));
        let mut sums = [[V::splat(0.0); M]; N];
        for block in 0..a.blocks() {
            let mut xs = [(
                V::repeat_bytes(codes[0].cast()),
                V::repeat_bytes(codes[0].cast()),
            ); M];
            let mut starts = [V::splat_i(0); M];
            for m in 0..M {
                let p: *const u8 = codes[m].add(block * PANEL).cast();
                xs[m] = (V::repeat_bytes(p), V::repeat_bytes(p.add(LANES)));
                starts[m] = V::dot_start(V::dot_start(V::splat_i(0), xs[m].0), xs[m].1);
            }
            for n in 0..N {
                a.ask(ranks[n], block);
                let p = ranks[n].add(block * CODES);
                let (first, second) = (V::load_bytes(p), V::load_bytes(p.add(CODES / 2)));
                let scale = V::half_quads(ranks[n].add(a.blocks() * CODES + block * SCALES));
                for m in 0..M {
                    let dot = V::dot_signed(starts[m], first, xs[m].0);
                    let dot = V::to_f(V::dot_signed(dot, second, xs[m].1));
                    let by = V::mul(scale, V::splat(*scales[m].add(block)));
                    sums[n][m] = V::fma(dot, by, sums[n][m]);
                }
            }
        }
        for n in 0..N {
            for m in 0..M {
                let mut lanes = [0.0; LANES];
                V::store(lanes.as_mut_ptr(), sums[n][m]);
                let (quads, _) = lanes.as_chunks::<QUARTET>();
                for (i, quad) in quads.iter().enumerate() {
                    store(e, r + m, (q + n) * QUARTET + i, quad.iter().sum());
                }
            }
        }
    }
}

/// A block is decoded once for all input rows.
#[inline(always)]
unsafe fn decoded<V: Vector, const M: usize>(
    a: Quartets,
    x: InputRows,
    e: Extent,
    (r, q): (usize, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let codes = a.codes(q);
        let mut sums = [[V::splat(0.0); M]; QUARTET];
        for block in 0..a.blocks() {
            a.ask(codes, block);
            for (i, sums) in sums.iter_mut().enumerate() {
                let p: *const i8 = codes.add(block * CODES + i * LANES).cast();
                let (low, high) = (V::load_i8(p), V::load_i8(p.add(CODES / 2)));
                let scale = codes.add(a.blocks() * CODES + block * SCALES + i * 2);
                let scale = V::splat(V::half(scale.cast()));
                for (m, sum) in sums.iter_mut().enumerate() {
                    let x = x.float_row(x.taken(e.first + r + m)).add(block * PANEL);
                    let first = V::mul(low, V::load(x));
                    let both = V::fma(high, V::load(x.add(LANES)), first);
                    *sum = V::fma(both, scale, *sum);
                }
            }
        }
        for i in 0..QUARTET {
            for m in 0..M {
                store(e, r + m, q * QUARTET + i, V::sum(sums[i][m]));
            }
        }
    }
}

/// Stores a result, unless its rank only fills the quartet.
#[inline(always)]
unsafe fn store(e: Extent, row: usize, rank: usize, value: f32) {
    if rank < e.columns {
        // SAFETY: the caller's duty.
        unsafe { *e.out.add(row * e.stride + rank) = value };
    }
}
