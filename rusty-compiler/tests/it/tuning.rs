//! Choices among kernels: all of them compute the same, and what is measured is kept.

use crate::golden_paths::golden;
use crate::reference::{SELECTED, all_logits, assert_close, gpu_device, mean_kl};
use rusty_backend::Device;
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::gpu::tuner::{Effort, kept, tune};
use rusty_compiler::plan::{ContractionFamily, Teams, Tuning};
use rusty_compiler::{BindOptions, KvFormat, Plan, compile};
use rusty_loader::ModelFile;
use std::cell::Cell;
use std::time::Duration;

/// Pages for contexts of which the deep one has keys to split.
const OPTIONS: BindOptions = BindOptions {
    pages: 64,
    kv: KvFormat::F32,
    slots: 0,
};

fn plan(file: &dyn ModelFile, device: &Device) -> Plan {
    let graph = rusty_graph::arch::build(file).expect("graph");
    compile(&graph, device.target()).expect("plan")
}

fn bound(plan: Plan, file: &dyn ModelFile, device: &Device) -> GpuExecutable {
    let gpu = device.gpu().expect("a GPU").clone();
    GpuExecutable::bind(plan, file, gpu, OPTIONS).expect("bind")
}

fn logits(exe: &mut GpuExecutable) -> Vec<Vec<f32>> {
    let ids: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 250).collect();
    let pages: Vec<u32> = (0..16).collect();
    let each = [1, 3, 13, SELECTED].map(|chunk| all_logits(exe, &ids, chunk, &pages));
    each.concat()
}

#[test]
fn every_cut_computes_the_same() {
    let device = gpu_device();
    let folder = "models/qwen3-tied";
    let file = rusty_loader::open(golden(folder)).expect(folder);
    let plan = plan(&*file, &device);
    let mut exe = bound(plan.clone(), &*file, &device);
    let want = logits(&mut exe).concat();
    let families = plan
        .kernels
        .iter()
        .filter_map(|k| ContractionFamily::of(&plan, &k.anchor));
    for (units, lanes, gemv_rows, small_tile_rows) in
        [(64, 1, 1, 0), (256, 8, 13, 39), (128, 4, u32::MAX, 64)]
    {
        let all = families.clone().fold(Tuning::default(), |all, family| {
            let teams = Teams {
                units,
                lanes,
                bytes: false,
                ahead: false,
            };
            all.with(&family, teams)
        });
        let tuning = Tuning {
            gemv_rows,
            small_tile_rows,
            ..all
        };
        exe.retune(tuning).expect("tuned");
        let name = format!("{units} units, {lanes} lanes");
        assert_close(&name, &logits(&mut exe), &want, 1e-3);
    }
}

#[test]
fn what_is_measured_is_kept_and_computes_the_same() {
    let device = gpu_device();
    let file = rusty_loader::random::model("qwen3-tiny", "q8_0").expect("random");
    let plan = plan(&*file, &device);
    // Of its five products those of most bytes, gate and up, then down; and attention.
    let effort = Effort {
        least_bytes: 256 << 10,
        fewest_cubes: 1,
        repetitions: 1,
        limit: Duration::from_secs(3600),
    };
    let mut exe = bound(plan.clone(), &*file, &device);
    let told = Cell::new((0, 0));
    let progress = |done, total| {
        assert!(done <= total && done >= told.get().0);
        told.set((done, total));
    };
    tune(&mut exe, &effort, &progress).expect("tuned");
    let (done, total) = told.get();
    assert!(done == total && total > 15, "{done} of {total}");
    let tuned = exe.plan().tuning.clone();
    assert_eq!(kept(&plan, &OPTIONS, &effort).as_ref(), Some(&tuned));
    // Other keys and values are read in other times.
    let halves = BindOptions {
        kv: KvFormat::F16,
        ..OPTIONS
    };
    assert_eq!(kept(&plan, &halves, &effort), None);
    let have = logits(&mut exe);
    // Bytes for the same rows and weights in the same precision, or they would be rounded otherwise; all else as guessed.
    let guessed = |family: &ContractionFamily, teams: &Teams| Teams {
        bytes: teams.bytes,
        ..Teams::guess(family)
    };
    let teams = tuned.teams.iter();
    let teams = teams.map(|(family, teams)| (family.clone(), guessed(family, teams)));
    let same_products = Tuning {
        gemv_rows: tuned.gemv_rows,
        half_tiles: tuned.half_tiles,
        teams: teams.collect(),
        ..Tuning::default()
    };
    exe.retune(same_products).expect("as guessed");
    let want = logits(&mut exe);
    let kl = mean_kl(&have.concat(), &want.concat(), want.len());
    // Products of bytes: sums in another order may round an input to the next one.
    assert!(kl < 1e-4, "tuned: mean KL {kl}");
    // So few bytes are not worth it.
    let mut exe = bound(plan.clone(), &*file, &device);
    let never = |_, _| panic!("measures");
    tune(&mut exe, &Effort::default(), &never).expect("as guessed");
    assert_eq!(exe.plan().tuning, plan.tuning);
    assert_eq!(kept(&plan, &OPTIONS, &Effort::default()), None);
}
