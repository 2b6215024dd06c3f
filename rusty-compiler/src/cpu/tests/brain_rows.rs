//! BF16 times inputs rounded to BF16: sums of the rounded inputs' products, the same to the bit for plain rows and for those in twelve
//! bits, and for a row beside others and alone.

use super::short_rows::{bits, extent, packed, weights};
use super::{Noise, levels};
use crate::cpu::brain_tile::{self, BrainRows, Plain};
use crate::cpu::prefetch::{Ahead, Ask};
use crate::cpu::quantize::{InputForms, InputRows, Inputs, fill_row};
use crate::cpu::short_rows::CHUNK;
use crate::cpu::short_tile::{Short, word_bytes};
use crate::cpu::simd::Level;
use half::bf16;

/// Levels that multiply brain floats, and portable code, which no machine takes.
fn multiplying() -> Vec<Level> {
    #[cfg(target_arch = "x86_64")]
    let lacks = |level: &Level| {
        !std::arch::is_x86_feature_detected!("avx512bf16")
            && matches!(level, Level::Avx512 | Level::Amx)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let lacks = |_: &Level| false;
    levels().into_iter().filter(|level| !lacks(level)).collect()
}

fn rounded(level: Level, x: &[f32], (rows, k): (usize, usize)) -> (Inputs, InputRows) {
    let inputs = Inputs::new(rows, k, 0, true);
    let mut forms = InputForms::default();
    forms.add_floats(true);
    let view = inputs.rows(k, forms);
    for row in 0..rows {
        // SAFETY: the buffers hold `rows` rows of `k`.
        unsafe { fill_row(level, view, row, x[row * k..].as_ptr(), k, forms) };
    }
    (inputs, view)
}

#[test]
fn products_are_those_of_rounded_inputs() {
    for (n, k) in [(64, 1024), (91, 5 * CHUNK)] {
        check_products(&weights(n, k), (37, n, k));
    }
}

fn check_products(stored: &[u8], (rows, n, k): (usize, usize, usize)) {
    let x = Noise(3).floats(rows * k);
    let (want, size) = reference(stored, &x, (rows, n, k));
    for level in multiplying() {
        let (short, bytes) = packed(level, (n, k), stored).expect("few exceptions");
        let (_inputs, view) = rounded(level, &x, (rows, k));
        let mut words = vec![0; word_bytes(k)];
        let mut product = |(is_short, ask), view, rows: (usize, usize), (column, columns)| {
            let at = stored[column * k * 2..].as_ptr();
            let w = match is_short {
                true => BrainRows::Short(Short {
                    matrix: &short,
                    at: short.row(bytes.as_ptr(), column),
                    words: words.as_mut_ptr(),
                    row: column,
                    ask,
                }),
                false => BrainRows::Plain(Plain { at, k, ask }),
            };
            let mut out = vec![f32::NAN; rows.1 * columns];
            let e = extent(rows, columns, &mut out);
            // SAFETY: weights, rows and results are whole, and the machine multiplies brain floats.
            unsafe { brain_tile::multiply(level, w, view, e, &mut Ahead::default()) };
            out
        };
        let whole = product((false, Ask::Along), view, (0, rows), (0, n));
        let asks = [Ask::Along, Ask::LeftToCores];
        let ways = asks.map(|ask| [(false, ask), (true, ask)]).concat();
        for ((have, want), size) in whole.iter().zip(&want).zip(&size) {
            let apart = (f64::from(*have) - want).abs();
            assert!(apart <= 1e-6 * size, "{level:?}: {have} is not {want}");
        }
        for (first, count) in [(0, rows), (0, 1), (4, 2), (9, 5), (3, 7), (1, 35)] {
            // Columns from anywhere on.
            for (column, columns) in [(0, n), (5, 35), (n - 3, 3)] {
                let result = |r: usize| whole[r * n + column..][..columns].iter().copied();
                let taken: Vec<u32> = (0..rows as u32)
                    .map(|r| (r * 7 + 3) % rows as u32)
                    .collect();
                let mut listed = view;
                listed.taken = taken.as_ptr();
                let places = first..first + count;
                let own: Vec<f32> = places.clone().flat_map(result).collect();
                let of_list: Vec<f32> = places.flat_map(|r| result(taken[r] as usize)).collect();
                for (view, want) in [(view, own), (listed, of_list)] {
                    for &way in &ways {
                        let have = product(way, view, (first, count), (column, columns));
                        assert_eq!(bits(&have), bits(&want), "{level:?} {first} {column}");
                    }
                }
            }
        }
    }
}

/// `[rows, n]` sums of the products of rounded inputs, and of their sizes.
fn reference(
    stored: &[u8],
    x: &[f32],
    (rows, n, k): (usize, usize, usize),
) -> (Vec<f64>, Vec<f64>) {
    let weight = |c: usize, i: usize| {
        let at = (c * k + i) * 2;
        bf16::from_le_bytes([stored[at], stored[at + 1]]).to_f64()
    };
    let input = |r: usize, i: usize| bf16::from_f32(x[r * k + i]).to_f64();
    let places = || (0..rows * n).map(|at| (at / n, at % n));
    let sum = |size: fn(f64) -> f64| {
        let of = move |(r, c)| (0..k).map(|i| size(input(r, i) * weight(c, i))).sum();
        places().map(of).collect()
    };
    (sum(|v| v), sum(f64::abs))
}
