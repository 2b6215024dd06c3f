//! Products with experts on GPUs: of long rows equal to the oracle's, and as bytes near those of floats.

use crate::byte_products::{OUTPUTS, TOKENS, encoded, inputs, numbers, takes};
use crate::expected::Expected;
use crate::golden_paths::golden;
use crate::reference::{
    On, all_logits, assert_close, bound_graph, distance, gpu, gpu_by_bytes, gpu_without_planes,
    instruction_sets, plain,
};
use rusty_compiler::plan::Implementation;
use rusty_graph::{Graph, GraphBuilder, Interpreter, RouteScore, RouteSpec, UnaryOp};
use rusty_loader::formats::{Q4_K, Q8_0};
use rusty_loader::quantize::{Target, quantize};
use rusty_loader::{Format, LoadedModel};
use std::collections::HashMap;

/// Input widths, experts, and those that a row takes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    k: u32,
    experts: u32,
    used: u32,
}

/// Inputs that are longer than a cube holds at a time.
const LONG: Sizes = Sizes {
    k: 4608,
    experts: 3,
    used: 2,
};
/// Inputs of which a cube holds all of a row's, two or one for each of its four teams: as bytes of some blocks of a team's, of which the
/// last is half empty, and as floats of one.
const BESIDE: [Sizes; 2] = [beside(1280), beside(512)];

const fn beside(k: u32) -> Sizes {
    Sizes {
        k,
        experts: 7,
        used: 6,
    }
}

/// What becomes of a row's products with experts.
#[derive(Clone, Copy, Debug)]
enum Products {
    /// They lie one behind the other.
    Joined(Format),
    /// Each has an input of its own, and they are summed.
    Summed(Format),
    /// Gate and up, one tail of both.
    Gated(Format, Format),
}

impl Products {
    /// Formats of the parts.
    fn formats(self) -> Vec<Format> {
        match self {
            Products::Joined(format) | Products::Summed(format) => vec![format],
            Products::Gated(gate, up) => vec![gate, up],
        }
    }

    fn sums(self) -> bool {
        matches!(self, Products::Summed(_))
    }
}

/// Logits by experts of a row of a table.
fn of_experts(products: Products, sizes: Sizes) -> (Graph, LoadedModel) {
    let Sizes { k, experts, used } = sizes;
    let (width, lanes) = match products.sums() {
        true => (used * k, OUTPUTS),
        false => (k, OUTPUTS / used),
    };
    let mut builder = GraphBuilder::new("experts", 64, OUTPUTS);
    let mut tensors = Vec::new();
    let ids = builder.tokens().expect("tokens");
    let mut weight = |name: &str, shape: [u32; 2], format, values: &[f32]| {
        let view = encoded(values, &shape, format);
        tensors.push((name.to_owned(), view));
        builder.weight(name, &shape, format).expect("weight")
    };
    let table = weight("table", [TOKENS, width], Format::F32, &inputs(width));
    let router: Vec<f32> = numbers((experts * width) as usize, 5)
        .map(|n| n as f32 / 1000.0 - 0.12)
        .collect();
    let router = weight("router", [experts, width], Format::F32, &router);
    let mut part = |(p, format): (u32, Format)| -> Vec<_> {
        let expert = |e| {
            let values: Vec<f32> = numbers((lanes * k) as usize, 99 + 100 * p + e)
                .map(|n| n as f32 / 100.0 - 1.3)
                .collect();
            weight(&format!("expert.{p}.{e}"), [lanes, k], format, &values)
        };
        (0..experts).map(expert).collect()
    };
    let parts: Vec<_> = (0..).zip(products.formats()).map(&mut part).collect();
    let x = builder.gather("x", table, ids).expect("x");
    let x = builder.select_rows("selected", x).expect("selected");
    let scores = builder.matmul("scores", x, router, None).expect("scores");
    let spec = RouteSpec {
        experts,
        used,
        score: RouteScore::Softmax,
        groups: None,
        normalize: true,
        scale: 1.0,
    };
    let routes = builder.route("routes", scores, None, spec).expect("routes");
    let made: Vec<_> = (parts.iter().enumerate())
        .map(|(p, weights)| {
            builder.experts(&format!("part.{p}"), x, routes, weights, products.sums())
        })
        .collect::<Result<_, _>>()
        .expect("products");
    let logits = match made[..] {
        [gate, up] => {
            let act = builder.unary("act", UnaryOp::Silu, gate).expect("act");
            builder.mul("logits", act, up).expect("gated")
        }
        _ => made[0],
    };
    let graph = builder.finish(logits, x).expect("graph");
    let file = LoadedModel::new("experts", "experts", HashMap::new(), tensors);
    (graph, file)
}

/// Inputs that are bytes lose nothing, one row at a time and several; summed or not, gate and up of different formats, and with plain
/// floats as they are stored.
#[test]
fn long_rows_agree_with_the_oracle() {
    let blocks = [Format::Blocks(&Q8_0), Format::Blocks(&Q4_K)];
    let formats = [blocks[0], blocks[1], Format::F16];
    let alone = formats.map(|f| [Products::Joined(f), Products::Summed(f)]);
    let gated = [
        Products::Gated(blocks[0], blocks[1]),
        Products::Gated(blocks[1], Format::F16),
    ];
    for products in alone.concat().into_iter().chain(gated) {
        let devices = [
            (gpu(), false),
            (gpu_by_bytes(true), true),
            (gpu_by_bytes(false), true),
        ];
        agree(products, LONG, &devices);
    }
}

/// Where units have no planes, a cube has four teams.
#[test]
fn experts_that_have_teams_of_their_own_agree_with_the_oracle() {
    let [bytes, floats] = BESIDE;
    let of_blocks = Products::Summed(Format::Blocks(&Q4_K));
    agree(of_blocks, bytes, &[(gpu_by_bytes(false), true)]);
    let of_floats = Products::Summed(Format::F16);
    agree(of_floats, floats, &[(gpu_without_planes(), false)]);
}

/// Whether logits on some devices, which multiply blocks as bytes or not, and on CPUs are the oracle's.
fn agree(products: Products, sizes: Sizes, devices: &[(On, bool)]) {
    let (graph, file) = of_experts(products, sizes);
    let ids = [3, 1, 7, 0, 5, 2];
    let oracle = Interpreter::new(&graph, &file).expect("oracle");
    let want = oracle.run(&ids, &[]).expect("values");
    let want = &want.logits().data;
    let near = 2e-5 * want.iter().fold(0.0, |most: f32, v| most.max(v.abs()));
    let coded = !products.formats().contains(&Format::F16);
    for (on, bytes) in devices {
        let takes = takes(&graph, on, &[Implementation::ExpertsBytes]);
        assert_eq!(takes, coded && *bytes, "{products:?} {on:?}");
        let mut exe = bound_graph(&graph, &file, on);
        for chunk in [1, 3] {
            let name = format!("{products:?} {sizes:?} {on:?}, by {chunk}");
            assert_close(&name, &all_logits(&mut *exe, &ids, chunk, &[0]), want, near);
        }
    }
    // CPUs round inputs by other scales.
    for on in instruction_sets() {
        let mut exe = bound_graph(&graph, &file, &on);
        let have = all_logits(&mut *exe, &ids, 3, &[0]).concat();
        let (_, away) = distance(&have, want);
        assert!(away < 5e-3, "{products:?} {sizes:?} {on:?}: {away}");
    }
}

/// Routed and shared experts, and the matrices of latent attention's heads: as near to products of floats as rounding allows.
#[test]
fn experts_by_bytes_stay_near_those_of_floats() {
    for (model, sums) in [("deepseek-v2", &[true][..]), ("qwen3-moe", &[true, false])] {
        let folder = format!("models/{model}");
        let ids = Expected::read(&folder).ids("ids.2").expect("ids");
        let floats = rusty_loader::open(golden(&folder)).expect(model);
        let file = quantize(floats, Target::Int8, &|_, _| {}).expect(model);
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let pages: Vec<u32> = (0..24).collect();
        let logits = |on: &On| all_logits(&mut *plain(&*file, on), &ids, 3, &pages).concat();
        let exact = logits(&gpu());
        for planes in sums.iter().copied() {
            let on = gpu_by_bytes(planes);
            assert!(
                takes(&graph, &on, &[Implementation::ExpertsBytes]),
                "{model}"
            );
            let (_, away) = distance(&logits(&on), &exact);
            assert!(
                away > 0.0 && away < 5e-3,
                "{model}, planes {planes}: {away}"
            );
        }
    }
}
