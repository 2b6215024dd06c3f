//! The inner loops of integer tiles: one for all formats, by the planes of their codes and their scaling.

use super::block_scales::add_block;
use super::forms::Form;
use super::kind::{Decoding, Scaling};
use super::panel::GROUP;
use super::prefetch::Ahead;
use super::quads::Codes;
use super::simd::byte_products::ByteProducts;
use super::simd::word_products::WordProducts;
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
    unsafe fn start<V: Vector>(&self, m: usize, i: usize) -> V::I {
        // SAFETY: `i` is inside the row.
        unsafe { V::splat_i(*self.starts[m].add(i)) }
    }
}

/// The products `sums[n][m]` of the rows with panels of one layout, group by group in turn.
///
/// # Safety
/// The panels and the input rows are whole.
#[inline(always)]
pub(super) unsafe fn sums<V: WordProducts, F: Form, const M: usize, const P: usize>(
    panels: &[Panel; P],
    x: &Inputs<M>,
    ahead: &mut Ahead,
) -> [[V::F; M]; P] {
    let Panel {
        kind,
        groups,
        stretch,
        ..
    } = panels[0];
    // SAFETY: the caller's duty.
    unsafe {
        let mut sums = [[V::splat(0.0); M]; P];
        let table = V::table(kind.table.as_ptr());
        let mut at = 0;
        for first in (0..groups).step_by(stretch) {
            ahead.step();
            let block = at;
            at += F::SCALING.block_bytes();
            let mut steps = [[V::splat(0.0); M]; P];
            for g in first..(first + stretch).min(groups) {
                for n in 0..P {
                    let (p, at) = (&panels[n], panels[n].at.add(at));
                    p.ask(g);
                    let sums = match F::SCALING.has_blocks() {
                        true => &mut steps[n],
                        false => &mut sums[n],
                    };
                    group::<V, F, M>(sums, (at, table), x, g);
                }
                at += F::BYTES;
            }
            if F::SCALING.has_blocks() {
                for n in 0..P {
                    let block = (panels[n].at.add(block), kind.factor);
                    add_block::<V, F, M>(&mut sums[n], &steps[n], block, x, (first, stretch));
                }
            }
        }
        sums
    }
}

/// Adds the products of group `g`, which lies at `at`; where scales are steps, in these.
#[inline(always)]
unsafe fn group<V: ByteProducts, F: Form, const M: usize>(
    sums: &mut [V::F; M],
    (at, table): (*const u8, V::B),
    x: &Inputs<M>,
    g: usize,
) {
    // SAFETY: the caller's duty.
    unsafe {
        let scales = at.add(F::Codes::BYTES);
        if F::SCALING.halves() {
            let mut dots = starts::<V, F, M>(x, 2 * g);
            quads::<V, F, M, 0>(&mut dots, at, table, x, g);
            quads::<V, F, M, 1>(&mut dots, at, table, x, g);
            add::<V, F, M>(sums, &mut dots, scales, x, (g, 2 * g));
            let mut dots = starts::<V, F, M>(x, 2 * g + 1);
            quads::<V, F, M, 2>(&mut dots, at, table, x, g);
            quads::<V, F, M, 3>(&mut dots, at, table, x, g);
            let scales = scales.add(F::SCALING.group_bytes() / 2);
            add::<V, F, M>(sums, &mut dots, scales, x, (g, 2 * g + 1));
        } else {
            let mut dots = starts::<V, F, M>(x, g);
            quads::<V, F, M, 0>(&mut dots, at, table, x, g);
            quads::<V, F, M, 1>(&mut dots, at, table, x, g);
            quads::<V, F, M, 2>(&mut dots, at, table, x, g);
            quads::<V, F, M, 3>(&mut dots, at, table, x, g);
            add::<V, F, M>(sums, &mut dots, scales, x, (g, g));
        }
    }
}

/// Where integer sums go out from; 0 where the format has minima.
#[inline(always)]
unsafe fn starts<V: ByteProducts, F: Form, const M: usize>(
    x: &Inputs<M>,
    i: usize,
) -> [V::Dots; M] {
    // SAFETY: the caller's duty.
    unsafe {
        let mut dots = [V::dots(V::splat_i(0)); M];
        if !F::SCALING.has_min() {
            for (m, dots) in dots.iter_mut().enumerate() {
                *dots = V::dots(x.start::<V>(m, i));
            }
        }
        dots
    }
}

/// Adds the products of two quads of codes.
#[inline(always)]
unsafe fn quads<V: ByteProducts, F: Form, const M: usize, const J: usize>(
    dots: &mut [V::Dots; M],
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
        let wide = const { matches!(F::DECODING, Decoding::Wide | Decoding::LookupWide) };
        let every = const { carries::<V, F>() };
        for (m, dots) in dots.iter_mut().enumerate() {
            for (i, codes) in [a, b].into_iter().enumerate() {
                let x = x.quad(m, g, 2 * J + i);
                if wide {
                    let carried = V::carried(dots);
                    *carried = V::dot_wide(*carried, codes, x);
                    continue;
                }
                *dots = V::dot(*dots, codes, x);
                if every == 1 {
                    *dots = V::carry(*dots);
                }
            }
            match (M > 1, wide || every == 1) {
                (true, true) => V::settle(V::carried(dots)),
                (true, false) => V::settle_dots(dots),
                (false, _) => {}
            }
        }
        if !wide && every > 1 && (2 * J + 2).is_multiple_of(every) {
            for dots in dots {
                *dots = V::carry(*dots);
            }
        }
    }
}

/// Quads from one carry to the next, of the eight of a group or the four of a half.
const fn carries<V: ByteProducts, F: Form>() -> usize {
    let quads = if F::SCALING.halves() { 4 } else { 8 };
    // Two products of each quad go to one sum.
    let quad = 2 * 127 * F::LARGEST as i64;
    assert!(quad <= V::CARRY as i64, "a quad's products are too large");
    let mut every = 1;
    while every < quads && 2 * every as i64 * quad <= V::CARRY as i64 {
        every *= 2;
    }
    every
}

/// Scales of a group or half; steps of the block's.
#[inline(always)]
pub(super) unsafe fn scale_of<V: Vector, F: Form>(scales: *const u8) -> V::F {
    // SAFETY: the caller's duty.
    unsafe {
        match F::SCALING {
            Scaling::Half | Scaling::HalfMin | Scaling::Half16 => V::load_f16(scales.cast()),
            Scaling::Brain => V::load_bf16(scales.cast()),
            Scaling::Byte | Scaling::Byte16 | Scaling::ByteMin | Scaling::ByteMin16 => {
                V::load_i8(scales.cast())
            }
        }
    }
}

/// Minima of a group that has no block.
#[inline(always)]
pub(super) unsafe fn min_of<V: Vector>(scales: *const u8) -> V::F {
    // SAFETY: the caller's duty.
    unsafe { V::load_f16(scales.add(2 * LANES).cast()) }
}

/// `sums[m] += dots[m] * (scale * row scale)`, less the minimum times the sum of the inputs, for group `g` whose starts
/// are at `start`; where groups have steps, `sums[m] += dots[m] * step`.
#[inline(always)]
unsafe fn add<V: ByteProducts, F: Form, const M: usize>(
    sums: &mut [V::F; M],
    dots: &mut [V::Dots; M],
    scales: *const u8,
    x: &Inputs<M>,
    (g, start): (usize, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let scale = scale_of::<V, F>(scales);
        for m in 0..M {
            let by = match F::SCALING.has_blocks() {
                true => scale,
                false => V::mul(scale, V::splat(*x.scales[m].add(g))),
            };
            sums[m] = V::fma(V::to_f(*V::carried(&mut dots[m])), by, sums[m]);
        }
        if F::SCALING.has_min() && !F::SCALING.has_blocks() {
            let min = min_of::<V>(scales);
            for (m, sum) in sums.iter_mut().enumerate() {
                let inputs = V::splat(*x.starts[m].cast::<f32>().add(start));
                *sum = V::fnma(min, inputs, *sum);
            }
        }
    }
}
