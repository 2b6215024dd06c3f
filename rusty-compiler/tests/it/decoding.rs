//! Decoding on a GPU: rows of sequences of very different lengths, whose keys are split among cubes, against the CPU and
//! against the same rows alone.

use crate::golden_paths::golden;
use crate::reference::{
    On, SELECTED, assert_close, bound_with, gpu, gpu_without_planes, instruction_sets,
};
use rusty_compiler::{BindOptions, Executable, KvFormat, RowResult, Sequence, SlotId, Step, Want};

/// Tokens in the cache before the first decoded one: nothing to split, one key more than a split, many splits.
const LENGTHS: [usize; 3] = [1, 128, 601];
/// Decoded tokens.
const STEPS: usize = 3;

fn token(sequence: usize, position: usize) -> u32 {
    (sequence * 71 + position * 37 + 11) as u32 % 250
}

/// Pages of a sequence, in no order.
fn pages(sequence: usize) -> Vec<u32> {
    let first = [0, 1, 11][sequence];
    let count = (LENGTHS[sequence] + STEPS).div_ceil(16) as u32;
    (first..first + count).rev().collect()
}

/// Runs some rows, each of a sequence and position, and gives the logits of those that want them.
fn run(exe: &mut dyn Executable, rows: &[(usize, usize)], want: Want) -> Vec<Vec<f32>> {
    let tables: Vec<Vec<u32>> = (0..LENGTHS.len()).map(pages).collect();
    let sequences: Vec<Sequence<'_>> = tables
        .iter()
        .zip(LENGTHS)
        .map(|(pages, length)| Sequence {
            pages,
            rope_length: (length + STEPS) as u32,
        })
        .collect();
    let of = |f: fn(&(usize, usize)) -> u32| rows.iter().map(f).collect::<Vec<_>>();
    let step = Step {
        tokens: &of(|(s, p)| token(*s, *p)),
        positions: &of(|(_, p)| *p as u32),
        sequence_of: &of(|(s, _)| *s as u32),
        sequences: &sequences,
        slots: &vec![SlotId::BASE; rows.len()],
        wants: &vec![want; rows.len()],
    };
    let results = exe.run(&step).expect("step").results;
    let logits = results.into_iter().map(|(_, result)| match result {
        RowResult::Logits(logits) => logits,
        other => panic!("asked for logits, got {other:?}"),
    });
    logits.collect()
}

/// Logits of [`STEPS`] decoded rows of each sequence, step by step: together, or (also) each alone.
fn decoded(exe: &mut dyn Executable, alone: bool) -> Vec<Vec<f32>> {
    for (sequence, length) in LENGTHS.into_iter().enumerate() {
        let rows: Vec<_> = (0..length).map(|position| (sequence, position)).collect();
        for chunk in rows.chunks(SELECTED) {
            run(exe, chunk, Want::Nothing);
        }
    }
    let mut all = vec![];
    for step in 0..STEPS {
        let rows = [0, 1, 2].map(|s| (s, LENGTHS[s] + step));
        match alone {
            true => all.extend(rows.map(|row| run(exe, &[row], Want::Logits).remove(0))),
            false => all.extend(run(exe, &rows, Want::Logits)),
        }
    }
    all
}

#[test]
fn split_keys_give_what_whole_ones_give() {
    for (folder, kv, tolerance) in [
        ("models/qwen3-tied", KvFormat::F32, 1e-3),
        // Keys of one device are rounded from slightly other ones than the other's.
        ("models/qwen3-tied", KvFormat::F16, 2e-2),
        // Both devices round to eight bits, each in its way; the largest difference of thousands.
        ("models/qwen3-tied", KvFormat::Q8_0, 0.4),
        ("models/gemma2", KvFormat::F32, 1e-3),
        ("models/mistral-window", KvFormat::F32, 1e-3),
        ("models/deepseek-v3", KvFormat::F32, 1e-3),
    ] {
        let file = rusty_loader::open(golden(folder)).expect(folder);
        let options = BindOptions {
            pages: 64,
            kv,
            slots: 0,
        };
        let on = |on: &On, alone: bool| {
            let mut exe = bound_with(&*file, on, 2, options);
            decoded(&mut *exe, alone)
        };
        let want = on(&instruction_sets().remove(0), false).concat();
        let gpu = gpu();
        assert_close(folder, &on(&gpu, false), &want, tolerance);
        assert_close(
            &format!("{folder}, alone"),
            &on(&gpu, true),
            &want,
            tolerance,
        );
        // There keys are not split: a row is a tile of one.
        assert_close(
            &format!("{folder}, without planes"),
            &on(&gpu_without_planes(), false),
            &want,
            tolerance,
        );
    }
}
