//! Each invariant of the verifier, broken once.

use super::graph;
use rusty_graph::{Dim, Graph, Op, RopeScaling, ValueId};

fn position(graph: &Graph, wanted: impl Fn(&Op) -> bool) -> usize {
    graph
        .nodes
        .iter()
        .position(|n| wanted(&n.op))
        .expect("such a node")
}

#[test]
fn broken_invariants_are_found() {
    let whole = graph("models/qwen3-tied");
    rusty_graph::verify(&whole).expect("valid");
    let last = ValueId(whole.values.len() as u32 - 1);
    let matmul = position(&whole, |op| matches!(op, Op::MatMul { site: Some(_) }));
    let attention = position(&whole, |op| matches!(op, Op::Attention(_)));
    type Break = (&'static str, Box<dyn Fn(&mut Graph)>);
    let breaks: Vec<Break> = vec![
        (
            "a symbol without a maximum",
            Box::new(|g| g.symbols[0].max = 0),
        ),
        (
            "symbols in another order",
            Box::new(|g| g.symbols.swap(0, 1)),
        ),
        (
            "an operand from below",
            Box::new(move |g| g.nodes[matmul].inputs[0] = last),
        ),
        (
            "two definitions of a value",
            Box::new(|g| g.nodes[2].output = ValueId(1)),
        ),
        (
            "a name twice",
            Box::new(|g| g.values[3].name = g.values[2].name.clone()),
        ),
        (
            "a name that does not print",
            Box::new(|g| g.values[3].name = "a b".into()),
        ),
        (
            "another shape",
            Box::new(move |g| g.values[matmul].shape[1] = Dim::Const(7)),
        ),
        ("an empty weight", Box::new(|g| g.weights[0].shape[0] = 0)),
        ("a site of another width", Box::new(|g| g.sites[0].k += 1)),
        (
            "a site that no product has",
            Box::new(|g| g.sites.push(g.sites[0].clone())),
        ),
        (
            "a cache of other heads",
            Box::new(|g| g.kv[0].kv_heads += 1),
        ),
        (
            "a layer that is not there",
            Box::new(move |g| {
                if let Op::Attention(spec) = &mut g.nodes[attention].op {
                    spec.layer = 99;
                }
            }),
        ),
        (
            "an odd number of rotated lanes",
            Box::new(|g| g.ropes[0].dims -= 1),
        ),
        (
            "too few divisors",
            Box::new(|g| g.ropes[0].scaling = RopeScaling::Divisors(vec![1.0])),
        ),
        (
            "outputs in turn",
            Box::new(|g| std::mem::swap(&mut g.logits, &mut g.hidden)),
        ),
        (
            "an output that is not there",
            Box::new(|g| g.hidden = ValueId(u32::MAX)),
        ),
    ];
    for (what, damage) in breaks {
        let mut graph = whole.clone();
        damage(&mut graph);
        assert!(rusty_graph::verify(&graph).is_err(), "{what} was not found");
    }
}
