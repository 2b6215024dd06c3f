//! Tiles of contractions in single precision, of all sizes, for numbers of rows on both sides of theirs; and half precision,
//! whose conversions lose nothing and whose tiles round weights.

use crate::adapted_rows::{PAGES, attach, logits};
use crate::expected::Expected;
use crate::golden_paths::golden;
use crate::reference::{PLAIN, all_logits, assert_close, distance, gpu_device, in_floats, mean_kl};
use crate::self_tests::has_halves;
use rusty_backend::Target;
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::plan::Tuning;
use rusty_compiler::{
    BindOptions, Executable, KvFormat, RowResult, Sequence, SlotId, Step, Want, compile,
};
use rusty_loader::ModelFile;

/// Less than half a small tile, half of it, all but one of it, all of it, all but one of a middle one, and a cut one, behind whole
/// smaller ones.
const ROWS: [usize; 6] = [5, 8, 15, 16, 31, 60];

/// A model on the tests' GPU, with half precision or as if it had none.
fn bound(file: &dyn ModelFile, f16: bool, options: BindOptions) -> GpuExecutable {
    let device = gpu_device();
    let graph = rusty_graph::arch::build(file).expect("graph");
    let target = Target {
        f16,
        ..in_floats(&device)
    };
    let plan = compile(&graph, &target).expect("plan");
    let device = device.gpu().expect("a GPU").clone();
    let mut exe = GpuExecutable::bind(plan, file, device, options).expect("bind");
    attach(&mut exe, &graph, options.slots);
    exe
}

/// Tunings whose steps of more than one row take small tiles, middle ones and tall ones.
fn tilings() -> [(&'static str, Tuning); 3] {
    let of = |small_tile_rows, middle_tile_rows| Tuning {
        gemv_rows: 1,
        small_tile_rows,
        middle_tile_rows,
        large_tile_lanes: 0,
        ..Tuning::default()
    };
    [
        ("small tiles", of(u32::MAX, u32::MAX)),
        ("middle tiles", of(0, u32::MAX)),
        ("tall tiles", of(0, 0)),
    ]
}

/// Norms in front, residuals and gates behind, projections side by side; floats, and blocks of all kinds.
#[test]
fn tiles_of_all_sizes_match_the_reference() {
    for (folder, path, ids, want) in [
        ("models/qwen3-tied", "", "ids.2", "logits.2"),
        (
            "gguf/llama",
            "/mix-Q4_K_M.gguf",
            "ids",
            "mix-Q4_K_M.logits_dequant",
        ),
        ("gguf/qwen3-zoo", "/zoo.gguf", "ids", "zoo.logits_dequant"),
    ] {
        let file = rusty_loader::open(golden(&format!("{folder}{path}"))).expect(folder);
        let expected = Expected::read(folder);
        let (ids, want) = (expected.ids(ids).expect("ids"), expected.floats(want));
        let pages: Vec<u32> = (0..24).rev().collect();
        let mut exe = bound(&*file, false, PLAIN);
        for (tiles, tuning) in tilings() {
            exe.retune(tuning).expect("tuned");
            for rows in ROWS {
                let have = all_logits(&mut exe, &ids, rows, &pages);
                assert_close(&format!("{folder}, {tiles}, by {rows}"), &have, &want, 1e-3);
            }
        }
    }
}

/// Rows with an adapter, whose inputs differ from part to part, beside rows without.
#[test]
fn adapters_do_the_same_in_tiles_of_all_sizes() {
    let folder = "models/qwen3-tied";
    let file = rusty_loader::open(golden(folder)).expect(folder);
    let options = BindOptions {
        pages: PAGES,
        kv: KvFormat::F32,
        slots: 1,
    };
    let mut exe = bound(&*file, false, options);
    let want = logits(&mut exe, 1, 1);
    for (tiles, tuning) in tilings() {
        exe.retune(tuning).expect("tuned");
        for rows in [8, 62] {
            let have = logits(&mut exe, rows, 1);
            assert_close(&format!("{tiles}, by {rows}"), &[have], &want, 1e-3);
        }
    }
}

/// Logits of every seventh row of a prompt of two whole tall tiles and a cut one, in one step.
fn of_many_rows(exe: &mut dyn Executable) -> Vec<f32> {
    let rows = 0..150u32;
    let tokens: Vec<u32> = rows.clone().map(|i| (i * 37 + 11) % 250).collect();
    let wants = rows.clone().map(|i| match i % 7 {
        2 => Want::Logits,
        _ => Want::Nothing,
    });
    let step = Step {
        tokens: &tokens,
        positions: &rows.collect::<Vec<_>>(),
        sequence_of: &vec![0; tokens.len()],
        sequences: &[Sequence {
            pages: &(0..24).collect::<Vec<_>>(),
            rope_length: 150,
        }],
        slots: &vec![SlotId::BASE; tokens.len()],
        wants: &wants.collect::<Vec<_>>(),
    };
    let results = exe.run(&step).expect("step").results.into_iter();
    let logits = results.flat_map(|(_, result)| match result {
        RowResult::Logits(logits) => logits,
        other => panic!("asked for logits, got {other:?}"),
    });
    logits.collect()
}

#[test]
fn tiles_of_all_sizes_agree_on_many_rows() {
    for path in ["models/qwen3-tied", "gguf/llama/mix-Q4_K_M.gguf"] {
        let file = rusty_loader::open(golden(path)).expect(path);
        let mut exe = bound(&*file, false, PLAIN);
        let [(_, want), others @ ..] = tilings().map(|(tiles, tuning)| {
            exe.retune(tuning).expect("tuned");
            (tiles, of_many_rows(&mut exe))
        });
        for (tiles, have) in others {
            assert_close(&format!("{path}, {tiles}"), &[have], &want, 1e-4);
        }
    }
}

/// Scales, weights, keys and values in half precision are what they are without an instruction that converts them.
#[test]
fn converting_halves_loses_nothing() {
    if !has_halves() {
        return;
    }
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 250).collect();
    let pages: Vec<u32> = (0..24).collect();
    let options = BindOptions {
        kv: KvFormat::F16,
        ..PLAIN
    };
    for path in [
        "gguf/qwen3-float/F16.gguf",
        "gguf/llama/mix-Q4_K_M.gguf",
        "gguf/qwen3-zoo/zoo.gguf",
    ] {
        let file = rusty_loader::open(golden(path)).expect(path);
        let all = |f16| {
            let mut exe = bound(&*file, f16, options);
            let tuning = Tuning {
                half_tiles: false,
                ..Tuning::default()
            };
            exe.retune(tuning).expect("tuned");
            [1, 3, 40].map(|chunk| all_logits(&mut exe, &ids, chunk, &pages))
        };
        for (have, want) in all(true).iter().zip(all(false)) {
            // Compilers may contract sums of products otherwise.
            assert_close(path, have, &want.concat(), 1e-4);
        }
    }
}

/// Weights that are halves lose nothing in tiles of halves; blocks lose what eleven bits round, an eighth of what bf16 does.
#[test]
fn tiles_of_halves_round_weights_alone() {
    if !has_halves() {
        return;
    }
    for (folder, stem, rounds) in [
        ("gguf/qwen3-float", "F16", false),
        ("gguf/llama", "mix-Q4_K_M", true),
        ("gguf/qwen3-zoo", "zoo", true),
    ] {
        let file = rusty_loader::open(golden(&format!("{folder}/{stem}.gguf"))).expect(stem);
        let ids: Vec<u32> = (0..60).map(|i| (i * 37 + 11) % 250).collect();
        let pages: Vec<u32> = (0..24).collect();
        let mut exe = bound(&*file, true, PLAIN);
        for (tiles, tuning) in tilings() {
            let mut by = |half_tiles, rows| {
                let tuning = Tuning {
                    half_tiles,
                    ..tuning.clone()
                };
                exe.retune(tuning).expect("tuned");
                all_logits(&mut exe, &ids, rows, &pages).concat()
            };
            let want = by(false, 60);
            for rows in [8, 60] {
                let have = by(true, rows);
                let (rms, apart) = distance(&have, &want);
                let kl = mean_kl(&have, &want, ids.len());
                let said = format!(
                    "{stem}, {tiles}, by {rows}: rms {rms}, 1 - cosine {apart}, mean KL {kl}"
                );
                println!("{said}");
                let (least, most) = if rounds { (1e-5, 0.006) } else { (0.0, 1e-4) };
                assert!(rms >= least && rms < most && apart < 4e-6, "{said}");
                assert!(kl < 1e-4, "{said}");
            }
        }
    }
}
