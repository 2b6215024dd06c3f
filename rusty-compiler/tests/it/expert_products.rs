//! Products with experts on GPUs: of long rows equal to the oracle's, and as bytes near those of floats.

use crate::byte_products::{OUTPUTS, TOKENS, encoded, inputs, numbers, takes};
use crate::expected::Expected;
use crate::golden_paths::golden;
use crate::reference::{
    On, all_logits, assert_close, bound_graph, distance, gpu, gpu_by_bytes, plain,
};
use rusty_compiler::plan::Implementation;
use rusty_graph::{Graph, GraphBuilder, Interpreter, RouteScore, RouteSpec};
use rusty_loader::formats::{Q4_K, Q8_0};
use rusty_loader::quantize::{Target, quantize};
use rusty_loader::{Format, LoadedModel};
use std::collections::HashMap;

/// Input width: more than a cube holds at a time.
const K: u32 = 4608;
const EXPERTS: u32 = 3;
const USED: u32 = 2;

/// Logits by experts of a row of a table, which has an input for all experts or one for each, whose products are summed.
fn of_experts(format: Format, combine: bool) -> (Graph, LoadedModel) {
    let (width, lanes) = match combine {
        true => (USED * K, OUTPUTS),
        false => (K, OUTPUTS / USED),
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
    let router: Vec<f32> = numbers((EXPERTS * width) as usize, 5)
        .map(|n| n as f32 / 1000.0 - 0.12)
        .collect();
    let router = weight("router", [EXPERTS, width], Format::F32, &router);
    let weights: Vec<_> = (0..EXPERTS)
        .map(|e| {
            let values: Vec<f32> = numbers((lanes * K) as usize, 99 + e)
                .map(|n| n as f32 / 100.0 - 1.3)
                .collect();
            weight(&format!("expert.{e}"), [lanes, K], format, &values)
        })
        .collect();
    let x = builder.gather("x", table, ids).expect("x");
    let x = builder.select_rows("selected", x).expect("selected");
    let scores = builder.matmul("scores", x, router, None).expect("scores");
    let spec = RouteSpec {
        experts: EXPERTS,
        used: USED,
        score: RouteScore::Softmax,
        groups: None,
        normalize: true,
        scale: 1.0,
    };
    let routes = builder.route("routes", scores, None, spec).expect("routes");
    let logits = builder.experts("logits", x, routes, &weights, combine);
    let logits = logits.expect("logits");
    let graph = builder.finish(logits, x).expect("graph");
    let file = LoadedModel::new("experts", "experts", HashMap::new(), tensors);
    (graph, file)
}

/// Inputs that are bytes lose nothing, one row at a time and several; summed or not, and with plain floats as they are stored.
#[test]
fn long_rows_agree_with_the_oracle() {
    for (format, combine) in [Format::Blocks(&Q8_0), Format::Blocks(&Q4_K), Format::F16]
        .into_iter()
        .flat_map(|f| [(f, false), (f, true)])
    {
        let (graph, file) = of_experts(format, combine);
        let ids = [3, 1, 7, 0, 5, 2];
        let oracle = Interpreter::new(&graph, &file).expect("oracle");
        let want = oracle.run(&ids, &[]).expect("values");
        let want = &want.logits().data;
        let near = 2e-5 * want.iter().fold(0.0, |most: f32, v| most.max(v.abs()));
        let by_bytes = [gpu_by_bytes(true), gpu_by_bytes(false)];
        for on in [gpu()].into_iter().chain(by_bytes) {
            let bytes = matches!(on, On::GpuAs(..)) && format != Format::F16;
            assert_eq!(takes(&graph, &on, &[Implementation::ExpertsBytes]), bytes);
            let mut exe = bound_graph(&graph, &file, &on);
            for chunk in [1, 3] {
                let name = format!("{} {combine} {on:?}, by {chunk}", format.name());
                assert_close(&name, &all_logits(&mut *exe, &ids, chunk, &[0]), want, near);
            }
        }
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
