//! The inner loops of integer tiles: one for all formats, by the planes of their codes and their scaling.

use super::forms::Form;
use super::kind::{Decoding, Scaling};
use super::panel::GROUP;
use super::prefetch::Ahead;
use super::quads::Codes;
use super::simd::{LANES, Vector};
use super::tile::Panel;

/// The input rows of a tile.
pub(super) struct Inputs<const M: usize> {
    pub(super) codes: [*const i8; M],
    pub(super) scales: [*const f32; M],
    pub(super) starts: [*const i32; M],
}

impl<const M: usize> Inputs<M> {
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

    /// Where the integer sums of group (or half) `i` go out from.
    #[inline(always)]
    unsafe fn start<V: Vector>(&self, i: usize) -> [V::I; M] {
        // SAFETY: `i` is inside the row.
        std::array::from_fn(|m| unsafe { V::splat_i(*self.starts[m].add(i)) })
    }
}

/// The products `sums[m]` of the rows with the panel.
///
/// # Safety
/// The panel and the input rows are whole.
#[inline(always)]
pub(super) unsafe fn sums<V: Vector, F: Form, const M: usize>(
    p: Panel,
    x: &Inputs<M>,
    ahead: &mut Ahead,
) -> [V::F; M] {
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = [V::splat(0.0); M];
        let table = V::table(p.kind.table.as_ptr());
        let mut block = p.supers;
        for first in (0..p.groups).step_by(p.stretch) {
            ahead.step();
            let supers = supers::<V, F>(block, p.kind.factor);
            block = block.wrapping_add(F::SCALING.block_bytes());
            for g in first..(first + p.stretch).min(p.groups) {
                p.ask(g);
                let at = p.codes.add(g * F::Codes::BYTES);
                let scales = p.scales.add(g * F::SCALING.group_bytes());
                if F::SCALING.halves() {
                    let mut dots = starts::<V, F, M>(x, 2 * g);
                    quads::<V, F, M, 0>(&mut dots, at, table, x, g);
                    quads::<V, F, M, 1>(&mut dots, at, table, x, g);
                    add::<V, F, M>(&mut sums, &dots, scales, supers, x, (g, 2 * g));
                    let mut dots = starts::<V, F, M>(x, 2 * g + 1);
                    quads::<V, F, M, 2>(&mut dots, at, table, x, g);
                    quads::<V, F, M, 3>(&mut dots, at, table, x, g);
                    let scales = scales.add(F::SCALING.group_bytes() / 2);
                    add::<V, F, M>(&mut sums, &dots, scales, supers, x, (g, 2 * g + 1));
                } else {
                    let mut dots = starts::<V, F, M>(x, g);
                    quads::<V, F, M, 0>(&mut dots, at, table, x, g);
                    quads::<V, F, M, 1>(&mut dots, at, table, x, g);
                    quads::<V, F, M, 2>(&mut dots, at, table, x, g);
                    quads::<V, F, M, 3>(&mut dots, at, table, x, g);
                    add::<V, F, M>(&mut sums, &dots, scales, supers, x, (g, g));
                }
            }
        }
        sums
    }
}

/// Where integer sums go out from; 0 where the format has minima.
#[inline(always)]
unsafe fn starts<V: Vector, F: Form, const M: usize>(x: &Inputs<M>, i: usize) -> [V::I; M] {
    // SAFETY: the caller's duty.
    unsafe {
        match F::SCALING.has_min() {
            true => [V::splat_i(0); M],
            false => x.start::<V>(i),
        }
    }
}

/// Adds the products of two quads of codes.
#[inline(always)]
unsafe fn quads<V: Vector, F: Form, const M: usize, const J: usize>(
    dots: &mut [V::I; M],
    codes: *const u8,
    table: V::B,
    x: &Inputs<M>,
    g: usize,
) {
    // SAFETY: the caller's duty.
    unsafe {
        let (mut a, mut b) = F::Codes::quads::<V, J>(codes);
        if matches!(F::DECODING, Decoding::Lookup | Decoding::LookupWide) {
            (a, b) = (V::lookup(table, a), V::lookup(table, b));
        }
        for (m, dot) in dots.iter_mut().enumerate() {
            let (first, second) = (x.quad(m, g, 2 * J), x.quad(m, g, 2 * J + 1));
            if matches!(F::DECODING, Decoding::Wide | Decoding::LookupWide) {
                *dot = V::dot_wide(*dot, a, first);
                *dot = V::dot_wide(*dot, b, second);
            } else {
                *dot = V::dot(*dot, a, first);
                *dot = V::dot(*dot, b, second);
            }
        }
    }
}

/// Scale and minimum of a block.
#[inline(always)]
pub(super) unsafe fn supers<V: Vector, F: Form>(block: *const u8, factor: f32) -> (V::F, V::F) {
    // SAFETY: the caller's duty.
    unsafe {
        match F::SCALING {
            Scaling::Byte | Scaling::Byte16 => (
                V::mul(V::load_f16(block.cast()), V::splat(factor)),
                V::splat(0.0),
            ),
            Scaling::ByteMin | Scaling::ByteMin16 => (
                V::load_f16(block.cast()),
                V::load_f16(block.add(2 * LANES).cast()),
            ),
            _ => (V::splat(0.0), V::splat(0.0)),
        }
    }
}

/// Scales of a group or half.
#[inline(always)]
pub(super) unsafe fn scale_of<V: Vector, F: Form>(scales: *const u8, d: V::F) -> V::F {
    // SAFETY: the caller's duty.
    unsafe {
        match F::SCALING {
            Scaling::Half | Scaling::HalfMin | Scaling::Half16 => V::load_f16(scales.cast()),
            Scaling::Brain => V::load_bf16(scales.cast()),
            _ => V::mul(d, V::load_i8(scales.cast())),
        }
    }
}

/// Minima of a group or half.
#[inline(always)]
pub(super) unsafe fn min_of<V: Vector, F: Form>(scales: *const u8, dmin: V::F) -> V::F {
    // SAFETY: the caller's duty.
    unsafe {
        match F::SCALING {
            Scaling::HalfMin => V::load_f16(scales.add(2 * LANES).cast()),
            _ => V::mul(dmin, V::load_i8(scales.add(LANES).cast())),
        }
    }
}

/// `sums[m] += dots[m] * (scale * row scale)`, less the minimum times the sum of the inputs, for group `g` whose starts
/// are at `start`.
#[inline(always)]
unsafe fn add<V: Vector, F: Form, const M: usize>(
    sums: &mut [V::F; M],
    dots: &[V::I; M],
    scales: *const u8,
    (d, dmin): (V::F, V::F),
    x: &Inputs<M>,
    (g, start): (usize, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let scale = scale_of::<V, F>(scales, d);
        for m in 0..M {
            let by = V::mul(scale, V::splat(*x.scales[m].add(g)));
            sums[m] = V::fma(V::to_f(dots[m]), by, sums[m]);
        }
        if F::SCALING.has_min() {
            let min = min_of::<V, F>(scales, dmin);
            for (m, sum) in sums.iter_mut().enumerate() {
                let inputs = V::splat(*x.starts[m].cast::<f32>().add(start));
                *sum = V::fnma(min, inputs, *sum);
            }
        }
    }
}
