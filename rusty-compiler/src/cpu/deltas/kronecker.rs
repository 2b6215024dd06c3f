//! The two products of factors that act on blocks of inputs and outputs, see [`Kron`](crate::slots::Kron).
//!
//! A row is as many short rows as it has blocks of inputs. They are reduced as any rows are, some ranks at a time; what comes
//! of that is mixed into values of `u` for each block of outputs, which is expanded as any output is. A block's factors are
//! read once for each block and stay in the first cache.

use super::low_rank::{self, Columns, expand_columns};
use super::site_tables::{KronTable, SiteTables, Table};
use crate::cpu::quantize::InputRows;
use crate::cpu::row_tiles::Extent;
use crate::cpu::simd::{LANES, Level, Vector, per_isa};
use crate::delta_table::PANEL;
use crate::slots::Kron;
use std::mem::MaybeUninit;

/// `u[row * stride + i * rank + r] = scale[r] * (sum_j mix[i, j] A[r] . x_j)` for ranks `from .. to` and all blocks `i` of outputs.
///
/// # Safety
/// As [`low_rank::reduce`]; a row of `u` holds `rank` values for each block of outputs.
pub(super) unsafe fn reduce(
    level: Level,
    (delta, kron): (&SiteTables, KronTable),
    x: InputRows,
    (first, rows): (usize, usize),
    (from, to): (usize, usize),
    (u, stride): (*mut f32, usize),
) {
    let Some(a) = delta.a else {
        return;
    };
    let mut products = [const { MaybeUninit::<f32>::uninit() }; Kron::COLUMNS * LANES];
    // The last ranks may fill no vector.
    products[..kron.columns * LANES].fill(MaybeUninit::new(0.0));
    let products: *mut f32 = products.as_mut_ptr().cast();
    for row in first..first + rows {
        // SAFETY: the caller's duty.
        let blocks = x.blocks_of(unsafe { x.taken(row) }, delta.k);
        let u = u.wrapping_add((row - first) * stride);
        for r in (from..to).step_by(LANES) {
            let count = LANES.min(to - r);
            let extent = Extent {
                first: 0,
                rows: kron.columns,
                columns: count,
                out: products,
                stride: LANES,
            };
            let at = a.at.wrapping_add(r * a.row_bytes);
            // SAFETY: a row of inputs is as many blocks of the factor's width, by the check of the delta, and so are products;
            // the rest is the caller's duty.
            unsafe {
                low_rank::multiply(level, (Table { at, ..a }, delta.k), blocks, extent, None);
                let scale = delta.scale.add(r);
                mix(
                    level,
                    kron,
                    products.cast_const(),
                    (scale, count),
                    (u.add(r), delta.rank),
                );
            }
        }
    }
}

per_isa! {
    fn mix(
        kron: KronTable,
        products: *const f32,
        scale: (*const f32, usize),
        u: (*mut f32, usize),
    ) = mix_with
}

/// Up to sixteen ranks of `u` for every block of outputs, which lie `rank` apart.
#[inline(always)]
unsafe fn mix_with<V: Vector>(
    kron: KronTable,
    products: *const f32,
    (scale, count): (*const f32, usize),
    (u, rank): (*mut f32, usize),
) {
    // SAFETY: the caller's duty.
    unsafe {
        let scale = V::load_part(scale, count);
        let mut lanes = [0.0; LANES];
        for i in 0..kron.rows {
            let mut sum = V::splat(0.0);
            for j in 0..kron.columns {
                let by = V::splat(*kron.mix.add(i * kron.columns + j));
                sum = V::fma(by, V::load(products.add(j * LANES)), sum);
            }
            V::store(lanes.as_mut_ptr(), V::mul(sum, scale));
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), u.add(i * rank), count);
        }
    }
}

/// Adds the delta to a strip, block by block.
///
/// # Safety
/// As [`low_rank::expand`]; blocks of outputs are whole panels.
pub(super) unsafe fn expand(
    level: Level,
    strip: Columns,
    (kron, b): (KronTable, Table),
    (u, u_stride): (*const f32, usize),
    (y, y_stride): (*mut f32, usize),
) {
    let end = strip.first + strip.count;
    let mut first = strip.first;
    while first < end {
        let block = first / kron.height;
        let next = end.min((block + 1) * kron.height);
        // Panels are counted from the matrix's first.
        let before = block * kron.height / PANEL * strip.rank * b.row_bytes;
        let columns = Columns {
            b: strip.b.wrapping_sub(before),
            first,
            count: next - first,
            ..strip
        };
        // SAFETY: the caller's duty; of the panels those of this block are read, which are the factor's.
        unsafe {
            let u = u.add(block * strip.rank);
            let y = y.add(first - strip.first);
            expand_columns(level, columns, (u, u_stride), (y, y_stride));
        }
        first = next;
    }
}
