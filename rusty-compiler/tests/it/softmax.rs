//! The softmax of rows and of groups of their lanes, wherever plans put it: equal to the oracle's on every device.

use crate::byte_products::{TOKENS, encoded, numbers};
use crate::reference::{all_logits, assert_close, bound_graph, everywhere, gpu_without_planes};
use rusty_backend::Target;
use rusty_compiler::compile;
use rusty_compiler::gpu::kernels::body::{Place, Program, Source};
use rusty_compiler::plan::{Anchor, Body, F32, Inst, Kernel};
use rusty_graph::{Graph, GraphBuilder, Interpreter, ValueId};
use rusty_loader::{Format, LoadedModel};
use std::collections::HashMap;

/// Scaled lanes of a row and their softmax.
pub(crate) fn softmax_program() -> Program {
    Program {
        insts: vec![
            Inst::Load(0),
            Inst::Scale(F32::new(0.5), 0),
            Inst::Softmax { x: 1, group: 512 },
        ],
        places: vec![Place::Arena { arg: 0, width: 512 }],
        source: Source::None,
        segment: 512,
    }
}

/// What stands before a softmax.
#[derive(Clone, Copy, Debug)]
enum Behind {
    /// The rows of a table.
    Gather,
    /// The rows that want an output.
    Selection,
    /// An activation that callers may ask for.
    Output,
    /// A product.
    Product,
}

const PLACES: [Behind; 4] = [
    Behind::Gather,
    Behind::Selection,
    Behind::Output,
    Behind::Product,
];

/// A row's lanes, its groups and what lanes are multiplied by before.
#[derive(Clone, Copy, Debug)]
struct Shares {
    width: u32,
    group: u32,
    scale: f32,
}

impl Shares {
    fn of(&self, builder: &mut GraphBuilder, x: ValueId) -> ValueId {
        let scaled = builder.scale("scaled", x, self.scale).expect("scaled");
        let shares = builder.softmax("shares", scaled, self.group);
        shares.expect("shares")
    }

    /// A graph whose logits are the shares, through a product that changes nothing: no contraction may take a softmax in.
    fn graph(&self, behind: Behind) -> (Graph, LoadedModel) {
        let width = self.width;
        let mut builder = GraphBuilder::new("shares", 64, width);
        let mut tensors = Vec::new();
        let ids = builder.tokens().expect("tokens");
        let mut weight = |name: &str, rows: u32, values: &[f32]| {
            let shape = [rows, width];
            tensors.push((name.to_owned(), encoded(values, &shape, Format::F32)));
            builder.weight(name, &shape, Format::F32).expect("weight")
        };
        let table: Vec<f32> = numbers((TOKENS * width) as usize, 7)
            .map(|n| n as f32 / 127.0 - 1.0)
            .collect();
        let table = weight("table", TOKENS, &table);
        let lanes = 0..width * width;
        let identity: Vec<f32> = lanes
            .map(|i| if i / width == i % width { 1.0 } else { 0.0 })
            .collect();
        let identity = weight("identity", width, &identity);
        let x = builder.gather("x", table, ids).expect("x");
        let (x, hidden) = match behind {
            Behind::Gather => {
                let shares = self.of(&mut builder, x);
                let rows = builder.select_rows("selected", shares).expect("rows");
                (rows, rows)
            }
            Behind::Selection => {
                let rows = builder.select_rows("selected", x).expect("rows");
                let shares = self.of(&mut builder, rows);
                (shares, shares)
            }
            Behind::Output => {
                let rows = builder.select_rows("selected", x).expect("rows");
                (self.of(&mut builder, rows), rows)
            }
            Behind::Product => {
                let rows = builder.select_rows("selected", x).expect("rows");
                let product = builder.matmul("product", rows, identity, None);
                (self.of(&mut builder, product.expect("product")), rows)
            }
        };
        let logits = builder.matmul("logits", x, identity, None).expect("logits");
        let graph = builder.finish(logits, hidden).expect("graph");
        let file = LoadedModel::new("shares", "shares", HashMap::new(), tensors);
        (graph, file)
    }
}

/// One row at a time and several; groups of a few lanes, of a cube's and of more; numbers whose exponentials are far beyond what
/// single precision holds.
#[test]
fn shares_agree_with_the_oracle_and_sum_to_one() {
    let ids = [3, 1, 7, 0, 5, 2];
    for (width, group, scale) in [
        (512, 512, 2.0),
        (512, 64, 1e4),
        (192, 3, 2.0),
        (1088, 1088, 1e4),
    ] {
        let shares = Shares {
            width,
            group,
            scale,
        };
        for behind in PLACES {
            let (graph, file) = shares.graph(behind);
            let oracle = Interpreter::new(&graph, &file).expect("oracle");
            let want = oracle.run(&ids, &[]).expect("values");
            // A device may scale and subtract at once, where the oracle rounds in between.
            let near = 2e-6 + 2e-7 * scale;
            for on in everywhere().into_iter().chain([gpu_without_planes()]) {
                let mut exe = bound_graph(&graph, &file, &on);
                for chunk in [1, 3] {
                    let name = format!("{shares:?} behind {behind:?}, {on:?}, by {chunk}");
                    let have = all_logits(&mut *exe, &ids, chunk, &[0]);
                    for lanes in have.iter().flat_map(|row| row.chunks(group as usize)) {
                        let sum: f64 = lanes.iter().map(|v| f64::from(*v)).sum();
                        assert!((sum - 1.0).abs() < 1e-5, "{name}: {sum}");
                    }
                    assert_close(&name, &have, &want.logits().data, near);
                }
            }
        }
    }
}

fn has_softmax(body: &Body) -> bool {
    let is = |i: &Inst| matches!(i, Inst::Softmax { .. });
    body.insts.iter().any(is)
}

/// Kernels whose tails have a softmax.
fn taking(kernels: &[Kernel]) -> Vec<&Kernel> {
    let takes = |k: &&Kernel| k.tails.iter().any(|t| has_softmax(&t.body));
    kernels.iter().filter(takes).collect()
}

#[test]
fn a_softmax_is_in_kernels_of_whole_rows() {
    let shares = Shares {
        width: 512,
        group: 512,
        scale: 2.0,
    };
    for (name, behind) in ["avx512", "llvmpipe", "h200"]
        .into_iter()
        .flat_map(|name| PLACES.map(|p| (name, p)))
    {
        let said = format!("{name}, behind {behind:?}");
        let target = Target::named(name).expect(name);
        let plan = compile(&shares.graph(behind).0, &target).expect("plan");
        assert!(
            !plan.kernels.iter().any(|k| has_softmax(&k.prologue)),
            "{said}"
        );
        let [kernel] = taking(&plan.kernels)[..] else {
            panic!("{said}:\n{plan}");
        };
        let own = matches!(
            (behind, &kernel.anchor),
            (Behind::Gather, Anchor::Gather { .. })
                | (Behind::Selection, Anchor::SelectRows { .. })
                | (Behind::Output | Behind::Product, Anchor::Map)
        );
        // A product's tail scales it.
        let with_scale = kernel.tails[0].body.insts.len() == 3;
        let scales = with_scale != matches!(behind, Behind::Product);
        assert!(own && scales, "{said}:\n{plan}");
    }
}

/// Of a norm and a softmax behind it those over groups of one size are one kernel, others are not.
#[test]
fn reductions_over_other_groups_stay_apart() {
    for (group, together) in [(64, true), (512, false)] {
        let mut builder = GraphBuilder::new("shares", 64, 512);
        let ids = builder.tokens().expect("tokens");
        let mut weight = |name: &str, shape: &[u32]| {
            let weight = builder.weight(name, shape, Format::F32);
            weight.expect("weight")
        };
        let table = weight("table", &[TOKENS, 512]);
        let gain = weight("gain", &[64]);
        let identity = weight("identity", &[512, 512]);
        let x = builder.gather("x", table, ids).expect("x");
        let normed = builder.head_norm("normed", x, gain, 1e-6, 64);
        let shares = builder.softmax("shares", normed.expect("normed"), group);
        let rows = builder.select_rows("selected", shares.expect("shares"));
        let rows = rows.expect("rows");
        let logits = builder.matmul("logits", rows, identity, None);
        let graph = builder
            .finish(logits.expect("logits"), rows)
            .expect("graph");
        let target = Target::named("h200").expect("target");
        let plan = compile(&graph, &target).expect("plan");
        let norm = |i: &Inst| matches!(i, Inst::RmsNorm { .. });
        let [kernel] = taking(&plan.kernels)[..] else {
            panic!("{plan}");
        };
        let normed = kernel.tails.iter().any(|t| t.body.insts.iter().any(norm));
        assert_eq!(normed, together, "{plan}");
    }
}
