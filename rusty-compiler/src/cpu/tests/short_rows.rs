//! BF16 in twelve bits: nothing is lost, and products are those of plain rows.

use super::{Noise, filled, levels};
use crate::cpu::float::{self, FloatKind, FloatRows, RowKind};
use crate::cpu::prefetch::{Ahead, Ask};
use crate::cpu::quantize::{InputForms, InputRows};
use crate::cpu::row_tiles::Extent;
use crate::cpu::short_rows::{CHUNK, ShortRows, matrix_bytes};
use crate::cpu::short_tile::{self, Short};
use crate::cpu::simd::Level;
use half::bf16;

/// Weights as training leaves them, with zeros, denormals, numbers far too small and far too large among them.
pub(super) fn weights(n: usize, k: usize) -> Vec<u8> {
    let mut noise = Noise(n as u64 + k as u64);
    let mut values: Vec<bf16> = (0..n * k)
        .map(|_| bf16::from_f32((0..6).map(|_| noise.unit()).sum::<f32>() * 0.02))
        .collect();
    let odd = [
        0x0000, 0x8000, 0x0001, 0x8003, 0x1234, 0x9234, 0x7e01, 0xfe03,
    ];
    for (i, bits) in odd.into_iter().enumerate() {
        // Some beside each other, some at the ends of chunks and rows.
        values[i * 700 % (n * k)] = bf16::from_bits(bits);
        values[(n / 2) * k + i] = bf16::from_bits(bits);
        values[(n / 3 + 1) * k - 1 - i] = bf16::from_bits(bits);
    }
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(super) fn packed(
    level: Level,
    (n, k): (usize, usize),
    stored: &[u8],
) -> Option<(ShortRows, Vec<u8>)> {
    let mut rows = vec![0; matrix_bytes(n, k)];
    let short = ShortRows::pack(level, (n, k), stored, 0, &mut rows)?;
    Some((short, rows))
}

#[test]
fn nothing_is_lost() {
    for (n, k) in [(64, 1024), (37, 6 * CHUNK)] {
        let stored = weights(n, k);
        for level in levels() {
            let (short, rows) = packed(level, (n, k), &stored).expect("few exceptions");
            assert!(short.bytes() < n * k * 8 / 5, "a fifth is saved at least");
            let mut out = vec![0.0; k];
            for (row, want) in stored.chunks_exact(2 * k).enumerate() {
                short.unpack_row(&rows, row, &mut out);
                for (i, (have, want)) in out.iter().zip(want.as_chunks::<2>().0).enumerate() {
                    let want = bf16::from_le_bytes(*want).to_f32();
                    assert_eq!(have.to_bits(), want.to_bits(), "{level:?} {row} {i}");
                }
            }
        }
    }
}

#[test]
fn products_are_those_of_plain_rows() {
    for (n, k) in [(64, 1024), (91, 5 * CHUNK)] {
        check_products(&weights(n, k), (15, n, k));
    }
}

fn check_products(stored: &[u8], (rows, n, k): (usize, usize, usize)) {
    let x = Noise(3).floats(rows * k);
    for level in levels() {
        let (short, bytes) = packed(level, (n, k), stored).expect("few exceptions");
        let (_inputs, view) = filled(level, &x, rows, k, InputForms::default());
        let mut words = vec![0; short_tile::word_bytes(k)];
        for (first, count) in [(0, rows), (0, 1), (4, 2), (9, 5), (3, 7)] {
            // Columns from anywhere on.
            for (column, columns) in [(0, n), (5, 35), (n - 3, 3)] {
                let want = plain(level, stored, view, (first, count), (column, columns), k);
                for ask in [Ask::Along, Ask::LeftToCores] {
                    let mut have = vec![f32::NAN; count * columns];
                    let w = Short {
                        matrix: &short,
                        at: short.row(bytes.as_ptr(), column),
                        words: words.as_mut_ptr(),
                        row: column,
                        ask,
                    };
                    let e = extent((first, count), columns, &mut have);
                    // SAFETY: weights, rows and results are whole.
                    unsafe { short_tile::multiply(level, w, view, e, &mut Ahead::default()) };
                    assert_eq!(bits(&have), bits(&want), "{level:?} {first} {column}");
                }
            }
        }
    }
}

fn plain(
    level: Level,
    stored: &[u8],
    view: InputRows,
    rows: (usize, usize),
    (column, columns): (usize, usize),
    k: usize,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows.1 * columns];
    let w = FloatRows {
        kind: RowKind::Plain(FloatKind::Bf16),
        at: stored[column * k * 2..].as_ptr(),
        k,
        ask: Ask::Nothing,
    };
    let e = extent(rows, columns, &mut out);
    // SAFETY: weights, rows and results are whole.
    unsafe { float::multiply(level, w, view, e, &mut Ahead::default()) };
    out
}

pub(super) fn extent((first, rows): (usize, usize), columns: usize, out: &mut [f32]) -> Extent {
    Extent {
        first,
        rows,
        columns,
        out: out.as_mut_ptr(),
        stride: columns,
    }
}

/// Numbers that are none are compared, too.
pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn what_would_not_be_shorter_stays_as_it_is() {
    let (n, k) = (32, 1024);
    let mut noise = Noise(9);
    let any: Vec<u8> = (0..n * k * 2).map(|_| noise.bits() as u8).collect();
    assert!(packed(Level::Scalar, (n, k), &any).is_none());
    // The sample sees the first row and the seventeenth alone.
    let mut late = weights(n, k);
    late[k * 2..16 * k * 2].copy_from_slice(&any[k * 2..16 * k * 2]);
    assert!(packed(Level::Scalar, (n, k), &late).is_none());
    let zeros = vec![0; n * k * 2];
    let (short, rows) = packed(Level::Scalar, (n, k), &zeros).expect("zeros have a code");
    let mut out = vec![1.0; k];
    short.unpack_row(&rows, 0, &mut out);
    assert!(out.iter().all(|v| v.to_bits() == 0));
}
