//! Decoding on a GPU: rows of sequences of very different lengths, whose keys are split among cubes, against the CPU: together, each
//! alone, and beside a prompt.

use crate::golden_paths::golden;
use crate::reference::{
    On, SELECTED, assert_close, bound_with, gpu, gpu_device, gpu_without_order, gpu_without_planes,
    in_floats, instruction_sets,
};
use rusty_backend::Target;
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::plan::{AttentionCut, Tuning};
use rusty_compiler::{
    BindOptions, Executable, KvFormat, RowResult, Sequence, SlotId, Step, Want, compile,
};

/// Tokens in the cache before the first step: nothing to split, one key more than a split, many splits; and a prompt that is read
/// beside those.
const LENGTHS: [usize; 4] = [1, 128, 601, 0];
/// Which of them is the prompt.
const PROMPT: usize = 3;
/// Steps: as many tokens of each other sequence are decoded.
const STEPS: usize = 3;
/// Tokens of the prompt in a step: tiles, of which the last is not full.
const CHUNK: usize = 20;

fn token(sequence: usize, position: usize) -> u32 {
    (sequence * 71 + position * 37 + 11) as u32 % 250
}

/// Tokens of a sequence after all steps.
fn length(sequence: usize) -> usize {
    let more = if sequence == PROMPT { CHUNK } else { 1 };
    LENGTHS[sequence] + STEPS * more
}

/// Pages of a sequence, in no order.
fn pages(sequence: usize) -> Vec<u32> {
    let first = [0, 1, 11, 50][sequence];
    let count = length(sequence).div_ceil(16) as u32;
    (first..first + count).rev().collect()
}

/// Runs some rows, each of a sequence and position, and gives the logits of those that want them.
fn run(exe: &mut dyn Executable, rows: &[(usize, usize)], want: Want) -> Vec<Vec<f32>> {
    let tables: Vec<Vec<u32>> = (0..LENGTHS.len()).map(pages).collect();
    let sequences: Vec<Sequence<'_>> = tables
        .iter()
        .enumerate()
        .map(|(sequence, pages)| Sequence {
            pages,
            rope_length: length(sequence) as u32,
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

/// With whom a row is decoded.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Nobody,
    Others,
    Prompt,
}

/// Pages for all of it.
pub(crate) const PAGES: u32 = 64;

/// Brings into the cache what is there before the first step.
pub(crate) fn fill(exe: &mut dyn Executable) {
    for (sequence, length) in LENGTHS.into_iter().enumerate() {
        let rows: Vec<_> = (0..length).map(|position| (sequence, position)).collect();
        for chunk in rows.chunks(SELECTED) {
            run(exe, chunk, Want::Nothing);
        }
    }
}

/// Logits of the decoded rows, and of the prompt's where there are such, step by step.
fn decoded(exe: &mut dyn Executable, beside: Beside) -> Vec<Vec<f32>> {
    let mut all = vec![];
    for step in 0..STEPS {
        let [few, some, many] = [0, 1, 2].map(|s| (s, LENGTHS[s] + step));
        let prompt = (step * CHUNK..(step + 1) * CHUNK).map(|position| (PROMPT, position));
        match beside {
            Beside::Nobody => {
                let rows = [few, some, many].into_iter();
                all.extend(rows.map(|row| run(exe, &[row], Want::Logits).remove(0)));
            }
            Beside::Others => all.extend(run(exe, &[few, some, many], Want::Logits)),
            Beside::Prompt => {
                let rows: Vec<_> = [few, some]
                    .into_iter()
                    .chain(prompt)
                    .chain([many])
                    .collect();
                all.extend(run(exe, &rows, Want::Logits));
            }
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
            pages: PAGES,
            kv,
            slots: 0,
        };
        let filled = |on: &On| {
            let mut exe = bound_with(&*file, on, 2, options);
            fill(&mut *exe);
            exe
        };
        let mut cpu = filled(&instruction_sets().remove(0));
        let want = decoded(&mut *cpu, Beside::Others).concat();
        let want_beside_prompt = decoded(&mut *cpu, Beside::Prompt).concat();
        // The last of a row's splits adds them up, or a launch does, whatever keys and values are stored in.
        let apart = (kv == KvFormat::F32).then(gpu_without_order);
        for on in [gpu()].into_iter().chain(apart) {
            let mut gpu = filled(&on);
            // Steps write what steps before them wrote.
            for (name, beside, want) in [
                ("together", Beside::Others, &want),
                ("alone", Beside::Nobody, &want),
                ("by a prompt", Beside::Prompt, &want_beside_prompt),
            ] {
                let said = format!("{folder}, {kv:?} {on:?}, {name}");
                assert_close(&said, &decoded(&mut *gpu, beside), want, tolerance);
            }
        }
        // What others are without planes, `fallbacks` has.
        if kv != KvFormat::F32 || folder != "models/qwen3-tied" {
            continue;
        }
        // There keys are not split: a row is a tile of one.
        let mut planeless = filled(&gpu_without_planes());
        let have = decoded(&mut *planeless, Beside::Others);
        assert_close("without planes", &have, &want, tolerance);
    }
}

/// Logits of runs of a few rows of each sequence, in one step.
fn short_runs(exe: &mut dyn Executable) -> Vec<Vec<f32>> {
    let runs = [(0, 1), (1, 3), (2, 5)].into_iter();
    let rows = runs.flat_map(|(sequence, count)| {
        let end = LENGTHS[sequence] + 1;
        (end - count..end).map(move |position| (sequence, position))
    });
    run(exe, &rows.collect::<Vec<_>>(), Want::Logits)
}

/// Logits of steps of all kinds.
pub(crate) fn all_steps(exe: &mut dyn Executable) -> Vec<Vec<f32>> {
    let mut all = decoded(exe, Beside::Others);
    all.extend(decoded(exe, Beside::Prompt));
    all.extend(short_runs(exe));
    all
}

/// How rows are cut into splits and tiles changes no result, and takes no kernel of its own.
#[test]
fn however_attention_is_cut_it_computes_the_same() {
    let folder = "models/qwen3-tied";
    let file = rusty_loader::open(golden(folder)).expect(folder);
    let options = BindOptions {
        pages: PAGES,
        kv: KvFormat::F32,
        slots: 0,
    };
    let mut cpu = bound_with(&*file, &instruction_sets().remove(0), 2, options);
    fill(&mut *cpu);
    let want = all_steps(&mut *cpu).concat();
    let device = gpu_device();
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let has_order = device.target().orders_groups;
    for orders_groups in [has_order, false] {
        let target = Target {
            orders_groups,
            ..in_floats(&device)
        };
        let plan = compile(&graph, &target).expect("plan");
        let gpu = device.gpu().expect("a GPU").clone();
        let mut exe = GpuExecutable::bind(plan, &*file, gpu, options).expect("bind");
        let kernels = exe.compiled_kernels();
        fill(&mut exe);
        for (split_keys, most_splits, alone_rows) in [
            (64, 16, 1),
            (64, 64, 8),
            (128, 32, 4),
            (256, 64, 2),
            // More splits than there is room for, also of a prompt's rows; none.
            (16, 64, u32::MAX),
            (1024, 1, 0),
        ] {
            let attention = AttentionCut {
                split_keys,
                most_splits,
                alone_rows,
            };
            let tuning = Tuning {
                attention,
                ..Tuning::default()
            };
            exe.retune(tuning).expect("tuned");
            let said = format!("{attention:?}, {orders_groups}");
            assert_eq!(exe.compiled_kernels(), kernels, "{said}");
            assert_close(&said, &all_steps(&mut exe), &want, 1e-3);
        }
    }
}
