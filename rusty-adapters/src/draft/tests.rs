//! Factors that act in blocks, where what is done to them keeps blocks and where it cannot.

use super::*;

const ROWS: usize = 4;
const COLUMNS: usize = 2;
const HEIGHT: usize = 32;
const WIDTH: usize = 16;
const RANK: usize = 3;
const N: usize = ROWS * HEIGHT;
const K: usize = COLUMNS * WIDTH;

fn numbers(seed: usize, count: usize) -> Vec<f32> {
    let number = |i| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0;
    (0..count).map(number).collect()
}

fn draft() -> Draft {
    let (a, b) = (numbers(1, RANK * WIDTH), numbers(2, HEIGHT * RANK));
    Draft {
        kron: Some(Kron {
            rows: ROWS as u32,
            columns: COLUMNS as u32,
            mix: numbers(3, ROWS * COLUMNS).into(),
        }),
        scale: numbers(4, RANK),
        gain_low: Some(numbers(5, N)),
        ..Draft::low_rank(RANK, a, b, 1.0, Format::F32)
    }
}

/// What a draft's factors amount to, `[n, k]`.
fn matrix(draft: &Draft) -> Vec<f32> {
    let a = draft.a.as_ref().expect("a factor");
    let rows = draft.kron.as_ref().map_or(1, |kron| kron.rows as usize);
    let columns = draft.kron.as_ref().map_or(1, |kron| kron.columns as usize);
    let (height, width) = (draft.b.len() / draft.rank, a.len() / draft.rank);
    let value = |i: usize| {
        let (row, column) = (i / (width * columns), i % (width * columns));
        let terms = (0..draft.rank).map(|r| {
            let b = draft.b[row % height * draft.rank + r];
            b * draft.scale[r] * a[r * width + column % width]
        });
        let mix = draft.kron.as_ref().map_or(1.0, |kron| {
            kron.mix[row / height * columns + column / width]
        });
        let gain = draft.gain_low.as_ref().map_or(1.0, |gain| gain[row]);
        gain * mix * terms.sum::<f32>()
    };
    (0..rows * height * columns * width).map(value).collect()
}

fn assert_same(have: &[f32], want: &[f32]) {
    assert_eq!(have.len(), want.len());
    let apart = have.iter().zip(want).map(|(a, b)| (a - b).abs());
    assert!(apart.fold(0.0, f32::max) < 1e-4);
}

#[test]
fn without_blocks_it_amounts_to_the_same() {
    let whole = draft().without_blocks();
    assert!(whole.kron.is_none());
    assert_same(&matrix(&whole), &matrix(&draft()));
    let mut product = whole;
    product.multiply_out(K);
    assert!(product.a.is_none() && product.gain_low.is_none());
    assert_same(&product.b, &matrix(&draft()));
}

/// Blocks stay where they are whole heads.
#[test]
fn rotary_pairs_are_moved_in_blocks_and_across_them() {
    for (head_dim, stays) in [(16, true), (32, true), (64, false)] {
        let moved = draft().interleaved(N, head_dim);
        assert_eq!(moved.kron.is_some(), stays, "{head_dim}");
        let mut want = matrix(&draft());
        interleave(&mut want, K, head_dim);
        assert_same(&matrix(&moved), &want);
    }
}

#[test]
fn parts_of_a_module_are_rows_of_it() {
    let all = matrix(&draft());
    let parts = draft().cut(&[24, N - 24]);
    let joined: Vec<f32> = parts.iter().flat_map(matrix).collect();
    assert_same(&joined, &all);
    let ratio = numbers(6, K);
    let mut scaled = draft().without_blocks();
    scaled.scale_input(&ratio);
    let want: Vec<f32> = all
        .iter()
        .zip(ratio.iter().cycle())
        .map(|(v, r)| v * r)
        .collect();
    assert_same(&matrix(&scaled), &want);
}
