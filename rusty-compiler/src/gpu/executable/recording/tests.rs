//! How long recordings are kept, and that steps launch what plans count.

use super::*;
use crate::gpu::executable::self_test::adapters;
use crate::gpu::kernels::experts::Summing;
use crate::gpu::text::Kind;
use crate::slots::SlotData;
use crate::{BindOptions, Executable, KvFormat, SlotId};
use rusty_backend::{DescribedDevice, Target};
use std::sync::Arc;

/// Steps of so many rows of different sequences that all want an output.
fn shape(rows: u32, adapted: bool) -> Shape {
    Shape {
        rows,
        selected: rows,
        tiles: 0,
        splits: rows,
        adds_splits: false,
        decode: true,
        adapted,
        argmax: true,
        hidden: false,
    }
}

#[test]
fn the_recording_that_was_used_longest_ago_makes_room() {
    let most = RECORDINGS as u32;
    let empty = || Recording::new(Box::new(()), &[]);
    let mut recordings = Recordings::default();
    for rows in 0..most {
        recordings.keep(shape(rows, false), empty());
    }
    assert!(recordings.of(shape(0, false)).is_some());
    for rows in [most, most + 1] {
        recordings.keep(shape(rows, false), empty());
    }
    let gone = (0..most + 2).filter(|rows| recordings.of(shape(*rows, false)).is_none());
    assert_eq!(gone.collect::<Vec<_>>(), [1, 2]);
}

/// What EXPLAIN counts is what is launched, with adapters and without.
#[test]
fn steps_launch_what_the_plan_counts() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/goldens/models/gemma3"
    );
    // One with norms behind sublayers.
    let norms = rusty_loader::open(path).expect("golden");
    let file = rusty_loader::random::model("qwen3-tiny", "q4_0").expect("random");
    counts_agree(&*file);
    counts_agree(&*norms);
}

/// Experts too, whose adapters take launches of their own where they change something.
#[test]
fn steps_launch_what_the_plan_counts_of_experts() {
    for model in ["mixtral", "deepseek-v3"] {
        let path = format!(
            "{}/../tests/goldens/models/{model}",
            env!("CARGO_MANIFEST_DIR")
        );
        let file = rusty_loader::open(&path).expect("golden");
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        for name in ["llvmpipe", "h200", "m2"] {
            let target = Target::named(name).expect(name);
            let mut exe = bound(&graph, &*file, target);
            let mut all = SlotData::default();
            for kernel in &exe.plan.kernels {
                let of = adapters::random(&exe.plan, kernel, 1).expect("an adapter");
                all.sites.extend(of[0].sites.clone());
            }
            all.sites.sort_by_key(|(id, _)| *id);
            exe.attach(SlotId(1), Arc::new(all)).expect("attach");
            for rows in [1, 40] {
                launches_as_counted(&exe, rows, &format!("{model} on {name}"));
            }
        }
    }
}

/// A team has two of the eight experts of a row, whose inputs are in shared memory together, as bytes and as floats.
#[test]
fn experts_of_real_models_are_summed_side_by_side() {
    for format in ["q4_0", "bf16"] {
        let file = rusty_loader::random::outline("qwen3-30b-a3b", format).expect("shapes");
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let exe = bound(&graph, &*file, Target::named("h200").expect("h200"));
        let choices = exe.stages.iter().flat_map(|stage| &stage.plain);
        let templates = choices.flat_map(|choice| &choice.templates);
        let sums = templates.filter_map(|t| match &t.spec.kind {
            Kind::Experts(config) if config.experts.combine => Some(config.sums),
            _ => None,
        });
        let sums: Vec<Summing> = sums.collect();
        assert_eq!(sums, [Summing::SideBySide; 48], "{format}");
    }
}

/// Launches of a step of some rows without adapters and with, which are those that the plan counts.
fn launches_as_counted(exe: &GpuExecutable, rows: u32, of: &str) -> [usize; 2] {
    let launched = [false, true].map(|adapted| launches(exe, shape(rows, adapted)));
    let counted = [
        exe.plan.dispatches(rows),
        exe.plan.dispatches_with_adapters(rows),
    ];
    let counted = counted.map(|launches| launches as usize);
    assert_eq!(launched, counted, "{of}, {rows} rows");
    launched
}

/// Launches of a step.
fn launches(exe: &GpuExecutable, shape: Shape) -> usize {
    let segments = exe.segments(shape).expect("launches");
    segments.iter().map(|s| s.launches.len()).sum()
}

/// A model on a described device, with a slot for an adapter.
fn bound(
    graph: &rusty_graph::Graph,
    file: &dyn rusty_loader::ModelFile,
    target: Target,
) -> GpuExecutable {
    let plan = crate::compile(graph, &target).expect("plan");
    let options = BindOptions {
        pages: 1,
        kv: KvFormat::F16,
        slots: 1,
    };
    let device = Arc::new(DescribedDevice::new(target));
    GpuExecutable::bind(plan, file, device, options).expect("bound")
}

/// Heads too wide for narrow planes are made by a kernel of their own.
#[test]
fn heads_that_planes_do_not_hold_are_counted() {
    let file = rusty_loader::random::outline("gemma-3-1b", "q4_0").expect("shapes");
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let vulkan = Target::named("vulkan").expect("vulkan");
    // The embedding in one launch.
    let target = Target {
        max_binding_bytes: vulkan.max_buffer_bytes,
        ..vulkan
    };
    let exe = bound(&graph, &*file, target);
    let tiles = Shape {
        tiles: 1,
        splits: 0,
        ..shape(1, false)
    };
    assert_eq!(launches(&exe, tiles), exe.plan.dispatches(1) as usize);
}

fn counts_agree(file: &dyn rusty_loader::ModelFile) {
    let graph = rusty_graph::arch::build(file).expect("graph");
    for name in ["llvmpipe", "h200", "m2"] {
        let target = Target::named(name).expect(name);
        let exe = bound(&graph, file, target);
        for rows in [1, 40] {
            let launched = launches_as_counted(&exe, rows, name);
            // Where cubes may wait for each other few rows cost no launch more, and others where inputs are packed.
            let free = name == "h200";
            assert_eq!(launched[0] == launched[1], free, "{rows} on {name}");
        }
        // Rows that see each other's keys cost a launch per layer for heads; rows alone beside tiles one more.
        let layers = exe.plan.kv.len();
        let launched = |tiles, splits| {
            let shape = Shape {
                tiles,
                splits,
                decode: false,
                ..shape(40, false)
            };
            launches(&exe, shape)
        };
        let decoding = exe.plan.dispatches(40) as usize;
        assert_eq!(launched(5, 0), decoding + layers, "tiles on {name}");
        assert_eq!(launched(0, 8), decoding + layers, "rows alone on {name}");
        assert_eq!(launched(5, 8), decoding + 2 * layers, "both on {name}");
        // Where keys are split and cubes do not see what others leave, one that adds splits up.
        let split = Shape {
            adds_splits: exe.room.behind,
            ..shape(1, false)
        };
        let behind = if name == "m2" { layers } else { 0 };
        let counted = exe.plan.dispatches(1) as usize;
        assert_eq!(
            launches(&exe, split),
            counted + behind,
            "split keys on {name}"
        );
    }
}
