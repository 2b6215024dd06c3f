//! The two products of an adapter.

use super::{Noise, decoded_input, filled, levels, with_sums};
use crate::cpu::deltas::low_rank;
use crate::cpu::deltas::site_tables::SiteTables;
use crate::cpu::quantize::InputRows;
use crate::cpu::simd::Level;
use crate::delta_table::DeltaTable;
use crate::slots::SiteDelta;
use rusty_loader::SharedBytes;

/// Widths of inputs, outputs and rows; ranks.
const SHAPES: [(usize, usize, usize, usize); 4] = [
    (64, 32, 1, 16),
    (96, 80, 7, 5),
    (32, 48, 9, 1),
    (1024, 160, 5, 37),
];

#[test]
fn both_products_match_double_precision() {
    for (k, n, rows, rank) in SHAPES {
        let mut noise = Noise(k as u64 + rank as u64);
        let (a, b) = (noise.floats(rank * k), noise.floats(rank * n));
        for format in DeltaTable::FORMATS {
            let delta = SiteDelta {
                rank: rank as u32,
                a: DeltaTable::ranks(format, rank, k, &a),
                b: DeltaTable::panels(format, n, rank, |c, r| b[c * rank + r]),
                scale: (0..rank).map(|r| 0.5 + r as f32).collect(),
                ..SiteDelta::default()
            };
            let x = noise.floats(rows * k);
            for level in levels() {
                let (_inputs, view) = filled(level, &x, rows, k, with_sums(k));
                let at = format!("{} {level:?} rank {rank} k {k}", format.name());
                let u = check_reduce(level, &delta, view, (rows, k), &at);
                check_expand(level, &delta, &u, (rows, n), &at);
            }
        }
    }
}

/// `u`, after comparing it with the decoded table times the inputs that the kernel reads.
fn check_reduce(
    level: Level,
    delta: &SiteDelta,
    view: InputRows,
    (rows, k): (usize, usize),
    at: &str,
) -> Vec<f32> {
    let rank = delta.rank as usize;
    let a = delta.a.as_ref().expect("A");
    let tables = SiteTables::new(delta, k);
    let table = a.values();
    let run = |first: usize, count: usize| {
        let mut u = vec![f32::NAN; count * rank];
        let to = (u.as_mut_ptr(), rank);
        // SAFETY: inputs, table and results are whole.
        unsafe {
            // Two threads' shares.
            let half = rank / 8 * 4;
            for ranks in [(0, half), (half, rank)] {
                low_rank::reduce(level, &tables, view, (first, count), ranks, to, None);
            }
        }
        u
    };
    let u = run(0, rows);
    let quantized = view.quantized && a.format().name() == "q8_0";
    for row in 0..rows {
        // SAFETY: the row was filled.
        let floats = unsafe { std::slice::from_raw_parts(view.float_row(row), k) };
        let input = match quantized {
            true => decoded_input(&view, row, k),
            false => floats.iter().map(|x| f64::from(*x)).collect(),
        };
        for r in 0..rank {
            let products = table[r * k..][..k].iter().zip(&input);
            let products = products.map(|(a, x)| f64::from(*a) * x * f64::from(delta.scale[r]));
            let size: f64 = products.clone().map(f64::abs).sum();
            let (want, have) = (products.sum::<f64>(), f64::from(u[row * rank + r]));
            let error = (want - have).abs();
            assert!(
                error <= 2e-6 * size,
                "{at} row {row} {r}: {have}, not {want}"
            );
        }
        assert_eq!(run(row, 1), u[row * rank..][..rank], "{at} row {row} alone");
    }
    u
}

/// `y + B u` in strips of 128 columns, compared with the decoded table times `u`.
fn check_expand(level: Level, delta: &SiteDelta, u: &[f32], (rows, n): (usize, usize), at: &str) {
    let rank = delta.rank as usize;
    let b = delta.b.as_ref().expect("B");
    let tables = SiteTables::new(delta, 0);
    let run = |first: usize, count: usize| {
        let mut y = vec![1.0f32; count * n];
        for column in (0..n).step_by(128) {
            let columns = (column, 128.min(n - column));
            let u = (u[first * rank..].as_ptr(), rank);
            let y = (y[column..].as_mut_ptr(), n);
            // SAFETY: `n` is a multiple of 16; rows and results are whole.
            unsafe { low_rank::expand(level, &tables, count, u, columns, y) };
        }
        y
    };
    let y = run(0, rows);
    // Words of `u` are rounded by half of the largest's 2^-15; values of `B` are at most 1.
    let words = b.format().name() == "q8_0";
    let step = if words { 1.6e-5 * rank as f64 } else { 0.0 };
    let mut row_of_b = vec![0.0; rank];
    for c in 0..n {
        b.read_panel_row(c, rank, &mut row_of_b);
        for row in 0..rows {
            let u = &u[row * rank..][..rank];
            let largest = f64::from(u.iter().fold(0f32, |m, u| m.max(u.abs())));
            let products = row_of_b.iter().zip(u);
            let products = products.map(|(b, u)| f64::from(*b) * f64::from(*u));
            let size: f64 = products.clone().map(f64::abs).sum();
            let (want, have) = (1.0 + products.sum::<f64>(), f64::from(y[row * n + c]));
            let bound = step * largest + 1e-6 * (size + 1.0);
            assert!(
                (want - have).abs() <= bound,
                "{at} row {row} {c}: {have}, not {want}"
            );
        }
    }
    for row in 0..rows {
        assert_eq!(run(row, 1), y[row * n..][..n], "{at} row {row} alone");
    }
}

/// Tables lie anywhere in a mapped file.
#[test]
fn tables_need_no_alignment() {
    let (k, n, rank) = (64, 64, 37);
    let mut noise = Noise(7);
    let (a, b) = (noise.floats(rank * k), noise.floats(rank * n));
    let x = noise.floats(k);
    for format in DeltaTable::FORMATS {
        let moved = |table: DeltaTable, by: usize| {
            let mut bytes = vec![0; by];
            bytes.extend_from_slice(table.bytes());
            let all = SharedBytes::from_vec(bytes);
            table.moved(all.slice(by..all.len())?)
        };
        let at = |by: usize| {
            let a = DeltaTable::ranks(format, rank, k, &a)?;
            let b = DeltaTable::panels(format, n, rank, |c, r| b[c * rank + r])?;
            Some(SiteDelta {
                rank: rank as u32,
                a: moved(a, by),
                b: moved(b, by),
                scale: vec![1.0; rank].into(),
                ..SiteDelta::default()
            })
        };
        for level in levels() {
            let (_inputs, view) = filled(level, &x, 1, k, with_sums(k));
            let text = format!("{} {level:?}", format.name());
            let results = [0, 1].map(|by| {
                let delta = at(by).expect("tables");
                let u = check_reduce(level, &delta, view, (1, k), &text);
                check_expand(level, &delta, &u, (1, n), &text);
                u
            });
            assert_eq!(results[0], results[1], "{text}");
        }
    }
}

#[test]
fn gains_and_biases_act_without_ranks() {
    for format in DeltaTable::FORMATS {
        let delta = SiteDelta {
            b: DeltaTable::panels(format, 0, 0, |_, _| 0.0),
            gain_out: Some(vec![2.0; 32].into()),
            bias: Some(vec![0.5; 32].into()),
            ..SiteDelta::default()
        };
        let tables = SiteTables::new(&delta, 32);
        for level in levels() {
            let mut y = vec![1.0f32; 32];
            let u = [0.0f32; 1];
            // SAFETY: there are no ranks, and `y` is whole.
            unsafe {
                let y = (y.as_mut_ptr(), 32);
                low_rank::expand(level, &tables, 1, (u.as_ptr(), 1), (0, 32), y);
            }
            assert_eq!(y, [2.5; 32], "{} {level:?}", format.name());
        }
    }
}
