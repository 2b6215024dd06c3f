//! The softmax as an op: its shape, its text and what the interpreter makes of it.

use rusty_graph::{Error, Graph, GraphBuilder, Interpreter, Op, Result};
use rusty_loader::{Format, LoadedModel, SharedBytes, WeightView};
use std::collections::HashMap;

/// Lanes of a row.
const WIDTH: u32 = 6;
/// Rows of the table, of which the last two are far apart and far from zero.
const ROWS: [[f32; WIDTH as usize]; 4] = [
    [0.0, 0.5, -1.0, 2.0, 0.25, 1.0],
    [3.0, 3.0, 3.0, -3.0, -3.0, -3.0],
    [1e4, 9.999e3, -1e4, 0.0, 1e4, 1.0],
    [-1e4, -1e4, -1.0001e4, -2e4, -3e4, -1e4],
];

/// Rows of a table, each group of whose lanes becomes shares.
fn shares(group: u32) -> Result<Graph> {
    let mut builder = GraphBuilder::new("shares", 16, ROWS.len() as u32);
    let ids = builder.tokens()?;
    let [table, output] = ["table", "output"].map(|name| {
        let shape = [ROWS.len() as u32, WIDTH];
        builder.weight(name, &shape, Format::F32)
    });
    let x = builder.gather("x", table?, ids)?;
    let shares = builder.softmax("shares", x, group)?;
    let rows = builder.select_rows("selected", shares)?;
    let logits = builder.matmul("logits", rows, output?, None)?;
    builder.finish(logits, rows)
}

fn file() -> LoadedModel {
    let tensors = ["table", "output"].map(|name| {
        let values = ROWS.as_flattened().iter();
        let view = WeightView {
            bytes: SharedBytes::from_vec(values.flat_map(|v| v.to_le_bytes()).collect()),
            format: Format::F32,
            shape: vec![ROWS.len(), WIDTH as usize],
        };
        (name.to_owned(), view)
    });
    LoadedModel::new("shares", "shares", HashMap::new(), tensors.into())
}

#[test]
fn groups_sum_to_one_and_keep_their_order() {
    for group in [1, 2, 3, 6] {
        let graph = shares(group).expect("graph");
        let file = file();
        let interpreter = Interpreter::new(&graph, &file).expect("interpreter");
        let ids: Vec<u32> = (0..ROWS.len() as u32).collect();
        let values = interpreter.run(&ids, &[]).expect("values");
        for (x, have) in ROWS.iter().zip(values.hidden().data.chunks(WIDTH as usize)) {
            let size = group as usize;
            for (x, have) in x.chunks(size).zip(have.chunks(size)) {
                let sum: f64 = have.iter().map(|v| f64::from(*v)).sum();
                assert!((sum - 1.0).abs() < 1e-6, "{have:?} of {x:?}");
                for (i, j) in (0..size).flat_map(|i| (0..size).map(move |j| (i, j))) {
                    // Ratios are exponentials of differences, as far as there are numbers for them.
                    let ratio = f64::from(x[i] - x[j]).exp();
                    let apart = f64::from(have[i]) - ratio * f64::from(have[j]);
                    let known = ratio <= 1.0;
                    assert!(!known || apart.abs() < 1e-6, "{have:?} of {x:?}");
                }
            }
        }
    }
}

#[test]
fn text_reads_back_as_the_same_graph() {
    let graph = shares(3).expect("graph");
    let text = graph.to_string();
    assert!(text.contains(" shares [T,6] = softmax %"), "{text}");
    assert_eq!(Graph::parse(&text).expect("a graph"), graph);
    let without = text.replacen(" group=3", "", 1);
    let error = Graph::parse(&without).expect_err("no group").to_string();
    assert!(error.contains("group= is missing"), "{error}");
}

#[test]
fn groups_divide_the_row() {
    for group in [0, 4, 7, 12] {
        let error = shares(group).expect_err("no whole groups");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    let mut graph = shares(3).expect("graph");
    let is_softmax = |op: &Op| matches!(op, Op::Softmax { .. });
    let at = graph.nodes.iter().position(|n| is_softmax(&n.op));
    graph.nodes[at.expect("a softmax")].op = Op::Softmax { group: 4 };
    assert!(rusty_graph::verify(&graph).is_err());
}
