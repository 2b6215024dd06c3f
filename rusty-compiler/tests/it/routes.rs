//! The choice of experts on every device: the oracle's, the first among equals too.

use crate::byte_products::{floats, numbers};
use crate::reference::{all_logits, bound_graph, everywhere};
use rusty_graph::{
    Graph, GraphBuilder, GroupScore, Interpreter, RouteGroups, RouteScore, RouteSpec,
};
use rusty_loader::{Format, LoadedModel};
use std::collections::HashMap;

const TOKENS: u32 = 6;

/// Logits are the routes by a row of a table, and by biases where there are groups: few numbers, so that many ranks are equal and no two
/// are nearly so.
fn of_routes(spec: RouteSpec) -> (Graph, LoadedModel) {
    let mut builder = GraphBuilder::new("routes", 64, 2 * spec.used);
    let mut tensors = Vec::new();
    let mut weight = |name: &str, shape: &[u32], values: &[f32]| {
        let view = floats(values, shape);
        tensors.push((name.to_owned(), view));
        builder.weight(name, shape, Format::F32).expect("weight")
    };
    let few = |count: u32, seed: u32, of: u32, by: f32| -> Vec<f32> {
        let all = numbers(count as usize, seed);
        all.map(|n| (n % of) as f32 * by - 2.0).collect()
    };
    let logits = few(TOKENS * spec.experts, 17, 19, 0.25);
    let table = weight("table", &[TOKENS, spec.experts], &logits);
    let bias = spec.groups.map(|_| {
        let values = few(spec.experts, 23, 2, 4.0);
        weight("bias", &[spec.experts], &values)
    });
    let ids = builder.tokens().expect("tokens");
    let x = builder.gather("x", table, ids).expect("x");
    let x = builder.select_rows("selected", x).expect("selected");
    let routes = builder.route("routes", x, bias, spec).expect("routes");
    let graph = builder.finish(routes, x).expect("graph");
    let file = LoadedModel::new("routes", "routes", HashMap::new(), tensors);
    (graph, file)
}

#[test]
fn experts_are_chosen_as_by_the_oracle() {
    let softmax = RouteSpec {
        experts: 200,
        used: 8,
        score: RouteScore::Softmax,
        groups: None,
        normalize: true,
        scale: 1.0,
    };
    let shares = RouteSpec {
        experts: 5,
        used: 2,
        normalize: false,
        ..softmax
    };
    let grouped = |score| RouteSpec {
        experts: 64,
        used: 6,
        score: RouteScore::Sigmoid,
        groups: Some(RouteGroups {
            count: 8,
            used: 3,
            score,
        }),
        scale: 2.5,
        ..softmax
    };
    let all = [
        softmax,
        shares,
        grouped(GroupScore::Best),
        grouped(GroupScore::BestTwo),
    ];
    for spec in all {
        let (graph, file) = of_routes(spec);
        let ids = [3, 1, 0, 2];
        let oracle = Interpreter::new(&graph, &file).expect("oracle");
        let want = oracle.run(&ids, &[]).expect("values");
        let want = &want.logits().data;
        for on in everywhere() {
            let mut exe = bound_graph(&graph, &file, &on);
            let have = all_logits(&mut *exe, &ids, 3, &[0]);
            let rows = want.chunks(2 * spec.used as usize).zip(&have);
            for (row, (want, have)) in rows.enumerate() {
                let (chosen, weights) = want.split_at(spec.used as usize);
                let (have_chosen, have_weights) = have.split_at(spec.used as usize);
                assert_eq!(have_chosen, chosen, "{spec:?}, {on:?}, row {row}");
                for (a, b) in have_weights.iter().zip(weights) {
                    assert!(
                        (a - b).abs() <= 1e-6,
                        "{spec:?}, {on:?}, row {row}: {a}, not {b}"
                    );
                }
            }
        }
    }
}
