//! Plans as text for several targets. `INSTA_UPDATE=always cargo test -p rusty-compiler` blesses a change.

use crate::golden_models::MODELS;
use crate::golden_paths::golden;
use crate::shape_only::ShapeOnly;
use rusty_backend::{DescribedDevice, Target};
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::plan::Anchor;
use rusty_compiler::{BindOptions, KvFormat, Plan, compile, explain};
use rusty_graph::{Graph, arch};
use rusty_loader::ModelFile;
use std::collections::BTreeMap;
use std::sync::Arc;

fn graph(id: &'static str) -> Graph {
    arch::build(&ShapeOnly::new(id)).expect("graph")
}

fn plan(id: &'static str, target: &str) -> Plan {
    compile(&graph(id), &Target::named(target).expect("target")).expect("plan")
}

/// Of a model that needs more than a file's shapes to be built.
fn golden_plan(model: &str, target: &str) -> Plan {
    let file = rusty_loader::open(golden(&format!("models/{model}"))).expect(model);
    let graph = arch::build(&*file).expect(model);
    compile(&graph, &Target::named(target).expect("target")).expect(model)
}

#[test]
fn plans_of_every_architecture() {
    for id in ["llama", "mistral", "qwen2", "qwen3"] {
        insta::assert_snapshot!(format!("{id}-avx512"), plan(id, "avx512"));
    }
}

#[test]
fn plans_of_golden_models() {
    for model in ["gemma3", "mixtral", "deepseek-v3"] {
        let plan = golden_plan(model, "avx512");
        insta::assert_snapshot!(format!("{model}-avx512"), plan);
    }
}

#[test]
fn plans_of_every_family_of_targets() {
    for target in ["llvmpipe", "rdna3", "m2", "h200"] {
        insta::assert_snapshot!(format!("qwen3-{target}"), plan("qwen3", target));
    }
    // Norms behind sublayers.
    insta::assert_snapshot!("gemma3-h200", golden_plan("gemma3", "h200"));
}

#[test]
fn explain_shows_every_pass() {
    let report =
        explain(&graph("qwen3"), &Target::named("avx512").expect("target")).expect("report");
    insta::assert_snapshot!(report.text());
}

/// What real models move per token and launch, and how fast that should be: a pass that loses bytes shows here.
#[test]
fn totals_of_real_models() {
    let mut lines = String::new();
    for (shape, format) in [
        ("qwen3-0.6b", "q4_0"),
        ("qwen3-0.6b", "bf16"),
        ("gemma-3-1b", "q4_0"),
        ("llama-3.2-1b", "q4_0"),
        ("llama-3.2-1b", "bf16"),
        ("llama-3-8b", "q4_0"),
        ("llama-3-8b", "bf16"),
        ("qwen3-30b-a3b", "q4_0"),
    ] {
        let file = rusty_loader::random::outline(shape, format).expect("shapes");
        let graph = arch::build(&*file).expect("graph");
        for name in ["h200", "rtx4090", "rdna3", "m2"] {
            let report = explain(&graph, &Target::named(name).expect(name)).expect(name);
            let prediction = report.prediction.expect("a bandwidth");
            let activations = report.activation_bytes;
            lines.push_str(&format!(
                "{shape} in {format} on {name}: {} dispatches ({} with adapters), {} bytes of weights, \
                 {activations} of activations; {:.1} tok/s ({:.3} ms for bytes, {:.3} ms for launches)\n",
                report.dispatches_per_token,
                report.dispatches_with_adapters,
                report.bytes_per_token - activations,
                prediction.tokens_per_second(),
                prediction.bytes_seconds * 1e3,
                prediction.launch_seconds * 1e3,
            ));
        }
    }
    insta::assert_snapshot!(lines);
}

#[test]
fn a_layer_is_few_dispatches() {
    for id in ["llama", "mistral", "qwen2", "qwen3"] {
        for target in Target::names() {
            let plan = plan(id, &target);
            // Embedding, output head with the last norm, argmax; CPUs, for which a launch costs little, norm apart. Without planes
            // attention makes no heads.
            let facts = Target::named(&target).expect("target");
            let (outside, most) = match (facts.is_cpu(), facts.plane_ops) {
                (true, _) => (4, 6),
                (false, true) => (3, 5),
                (false, false) => (3, 6),
            };
            assert_eq!(
                plan.dispatches(1),
                outside + most * plan.kv.len() as u32,
                "{id} on {target}"
            );
        }
    }
    // Norms behind sublayers are made by what reads their sums; behind the last layer's nothing does but the choice of rows.
    for model in ["gemma2", "gemma3"] {
        for target in ["h200", "rtx4090", "m2"] {
            let plan = golden_plan(model, target);
            let layers = plan.kv.len() as u32;
            assert_eq!(plan.dispatches(1), 4 + 5 * layers, "{model} on {target}");
        }
    }
    let plan = plan("qwen3", "avx512");
    assert!(
        (plan.unfused_kernels - 4) / 2 > 18,
        "unfused: {} kernels",
        plan.unfused_kernels
    );
}

/// Launches of a token beside layers. A norm behind a block's last product needs all of its lanes: OLMo 2's of queries and keys take a
/// launch; so does each of routing, experts' gate and up, and the sum of what comes of those.
#[test]
fn launches_of_every_architecture() {
    let mut lines = String::new();
    for model in MODELS {
        let plans = ["h200", "m2", "rdna3"].map(|target| (target, golden_plan(model, target)));
        let layers = plans[0].1.kv.len();
        let launches = plans.map(|(target, plan)| format!("{} on {target}", plan.dispatches(1)));
        lines.push_str(&format!(
            "{model}, {layers} layers: {}\n",
            launches.join(", ")
        ));
    }
    insta::assert_snapshot!(lines);
}

/// What passes do to a layer hangs neither on where it stands nor on how many there are, and no layer adds to the arena.
#[test]
fn a_deep_plan_repeats_its_layers() {
    const LAYERS: u32 = 60;
    for id in ["llama", "qwen2", "qwen3"] {
        for name in ["avx512", "llvmpipe", "h200"] {
            let target = Target::named(name).expect(name);
            let planned = |layers| {
                let graph = arch::build(&ShapeOnly::deep(id, layers)).expect("graph");
                compile(&graph, &target).expect("plan")
            };
            let (deep, shallow) = (planned(LAYERS), planned(4));
            let second = layer_text(&deep, 1);
            assert!(second.lines().count() > 8, "{id} on {name}: {second}");
            for layer in 2..LAYERS - 1 {
                assert_eq!(
                    layer_text(&deep, layer),
                    second,
                    "{layer} of {id} on {name}"
                );
            }
            assert_eq!(layer_text(&shallow, 1), second, "{id} on {name}");
            assert_eq!(deep.arena_bytes, shallow.arena_bytes, "{id} on {name}");
            let kernels = |plan: &Plan| plan.kernels.len() as u32;
            let of_layer = deep.kernels.iter().filter(|k| k.name.starts_with("blk.1."));
            let more = of_layer.count() as u32 * (LAYERS - 4);
            assert_eq!(kernels(&deep), kernels(&shallow) + more, "{id} on {name}");
        }
    }
}

/// A layer's kernels as text, without its number and the places of its values.
fn layer_text(plan: &Plan, layer: u32) -> String {
    let own = format!("blk.{layer}.");
    let text = plan.to_string();
    let mut kept = String::new();
    let mut inside = false;
    for line in text.lines() {
        if !line.starts_with(' ') {
            inside = line.starts_with(&own);
        }
        let words = line.split(' ').filter(|word| !word.starts_with('@'));
        if inside {
            kept.extend(words.flat_map(|word| [word, " "]));
            kept.push('\n');
        }
    }
    let renamed = [
        (own, "own."),
        (format!("blk.{}.", layer - 1), "before."),
        (format!("keys[{layer}]"), "keys"),
        (format!("values[{layer}]"), "values"),
        (format!("layer {layer} "), "layer "),
    ];
    let rename = |text: String, (found, put): (String, &str)| text.replace(&found, put);
    renamed.into_iter().fold(kept, rename)
}

/// Each pipeline takes time at load, so layers share them: there are as many as ways to run what a layer has. Adapters need no more
/// than another of each product and their first factors; a mixture has other products for the layers that it keeps in more bits.
#[test]
fn a_model_needs_few_pipelines() {
    for (format, most, most_with_adapters) in
        [("q4_0", 25, 50), ("bf16", 25, 50), ("q4_k_m", 33, 66)]
    {
        let file = rusty_loader::random::outline("qwen3-0.6b", format).expect("shapes");
        // Matrix units have their inputs packed, which makes two more; with adapters that takes the place of first factors. Metal has a launch
        // that adds up splits of keys.
        for (name, more) in [("h200", [2, 0]), ("metal", [1, 1]), ("vulkan", [0, 0])] {
            let mut least = 11;
            for (slots, most) in [(0, most + more[0]), (1, most_with_adapters + more[1])] {
                let kinds = pipelines(&*file, name, slots);
                let count = kinds.values().sum::<u32>();
                let counts = (least..=most).contains(&count);
                assert!(counts, "{format}, {name}, {slots}: {count}, {kinds:?}");
                least = count + 1;
            }
        }
    }
}

/// How many pipelines of each kind a model takes on a described GPU.
fn pipelines(file: &dyn ModelFile, target: &str, slots: u32) -> BTreeMap<String, u32> {
    let graph = arch::build(file).expect("graph");
    let target = Target::named(target).expect("target");
    let plan = compile(&graph, &target).expect("plan");
    let device = Arc::new(DescribedDevice::new(target));
    let options = BindOptions {
        pages: 1,
        kv: KvFormat::F16,
        slots,
    };
    GpuExecutable::bind(plan, file, device.clone(), options).expect("bound");
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for text in device.texts() {
        *kinds.entry(text.entry).or_default() += 1;
    }
    kinds
}

/// Adapters cost a launch for each fused projection (queries with keys and values, their output, gate with up, down, and
/// the head), and nothing elsewhere; none at all on CPUs, for few rows none where cubes may wait for each other, and none where
/// a launch packs inputs for matrix units.
#[test]
fn adapters_cost_a_launch_per_projection() {
    for id in ["llama", "mistral", "qwen2", "qwen3", "gemma2"] {
        for target in Target::names() {
            let plan = match id {
                "gemma2" => golden_plan(id, &target),
                _ => plan(id, &target),
            };
            let facts = Target::named(&target).expect("target");
            let all = 4 * plan.kv.len() as u32 + 1;
            let of = |launches| if launches { all } else { 0 };
            let few = of(!facts.is_cpu() && !facts.starts_in_order);
            let many = of(!facts.is_cpu() && !facts.multiplies_bf16());
            for (rows, more) in [(1, few), (32, many)] {
                let with = plan.dispatches_with_adapters(rows);
                assert_eq!(
                    with,
                    plan.dispatches(rows) + more,
                    "{rows}, {id} on {target}"
                );
                for kernel in &plan.kernels {
                    let adapted = kernel.adapter_dispatches(&facts, rows);
                    let contracts = matches!(kernel.anchor, Anchor::Contract { .. });
                    assert!(adapted <= u32::from(contracts), "{}", kernel.name);
                }
            }
        }
    }
}

/// Routed experts take a launch for adapters behind theirs where none sums them up already, and there the launch that sums
/// them is the one that adds.
#[test]
fn adapters_of_experts_cost_a_launch_where_nothing_sums_them() {
    let plan = |target: &Target| {
        let file = rusty_loader::random::model("qwen3moe-tiny", "f32").expect("random");
        let graph = arch::build(&*file).expect("graph");
        compile(&graph, target).expect("plan")
    };
    for name in Target::names() {
        let target = Target::named(&name).expect("target");
        let plan = plan(&target);
        let experts = plan.kernels.iter();
        let experts: Vec<_> = experts
            .filter(|k| matches!(k.anchor, Anchor::Experts { .. }))
            .collect();
        assert!(!experts.is_empty(), "{name}");
        for kernel in experts {
            let sums = kernel.variants.iter().any(|v| v.dispatches > 1);
            let most = u32::from(!target.is_cpu() && !sums);
            assert_eq!(kernel.adapter_dispatches(&target, 32), most, "{name}");
        }
    }
}

/// Values that are alive at the same time never overlap in the arena.
#[test]
fn arena_places_are_disjoint() {
    are_disjoint(&plan("qwen3", "avx512"));
    are_disjoint(&golden_plan("gemma3", "h200"));
}

fn are_disjoint(plan: &Plan) {
    let kernels = plan.kernels.len();
    let ranges: Vec<_> = (0..plan.values.len() as u32)
        .map(rusty_compiler::plan::PlanValueId)
        .filter_map(|v| live_range(plan, v, kernels).map(|range| (v, range)))
        .collect();
    for (i, (a, ra)) in ranges.iter().enumerate() {
        let (a0, a1) = (
            plan.value(*a).offset,
            plan.value(*a).offset + plan.bytes(*a),
        );
        assert_eq!(a0 % 256, 0);
        assert!(a1 <= plan.arena_bytes);
        for (b, rb) in &ranges[i + 1..] {
            let (b0, b1) = (
                plan.value(*b).offset,
                plan.value(*b).offset + plan.bytes(*b),
            );
            let together = ra.0 <= rb.1 && rb.0 <= ra.1;
            assert!(
                !together || a1 <= b0 || b1 <= a0,
                "{} over {}",
                plan.value(*a).name,
                plan.value(*b).name
            );
        }
    }
}

fn live_range(
    plan: &Plan,
    value: rusty_compiler::plan::PlanValueId,
    end: usize,
) -> Option<(usize, usize)> {
    use rusty_compiler::plan::{Operand, Sink};
    let uses = |k: &rusty_compiler::plan::Kernel| {
        k.operands.contains(&Operand::Value(value))
            || (k.first.iter().chain(&k.tails)).any(|t| t.sink == Sink::Value(value))
    };
    let first = plan.kernels.iter().position(uses)?;
    let is_output = [plan.logits, plan.hidden, plan.argmax].contains(&value);
    let last = if is_output {
        end
    } else {
        plan.kernels.iter().rposition(uses)?
    };
    Some((first, last))
}
