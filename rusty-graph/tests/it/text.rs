//! The text form: reading it back, and reading what is not quite it.

use super::{MODELS, graph};
use proptest::prelude::*;
use rusty_graph::{Graph, RopeScaling};

#[test]
fn text_reads_back_as_the_same_graph() {
    for model in MODELS {
        let graph = graph(&format!("models/{model}"));
        let text = graph.to_string();
        let read = Graph::parse(&text).unwrap_or_else(|e| panic!("{model}: {e}\n{text}"));
        assert_eq!(read, graph, "{model}");
        assert_eq!(read.to_string(), text);
    }
    let gguf = graph("gguf/llama/mix-Q4_K_M.gguf");
    assert!(
        gguf.ropes
            .iter()
            .any(|r| matches!(r.scaling, RopeScaling::Divisors(_)))
    );
    assert_eq!(Graph::parse(&gguf.to_string()).expect("gguf"), gguf);
}

#[test]
fn a_small_graph_as_text() {
    insta::assert_snapshot!(graph("models/qwen3-tied"));
}

#[test]
fn errors_name_the_line() {
    let text = graph("models/qwen2-bias").to_string();
    let with = |from: &str, to: &str| {
        let error = Graph::parse(&text.replacen(from, to, 1)).expect_err(from);
        error.to_string()
    };
    assert!(with("symbol L", "simbol L").contains("line 3"));
    assert!(with(" = gather", " = gathers").contains("no op"));
    assert!(with("eps=", "epsilon=").contains("eps= is missing"));
    assert!(with("max=64", "max=64 min=1").contains("'min=' does not belong here"));
    assert!(with("heads=", "heads=-").contains("is not a value"));
    assert!(with("%0 ", "%7 ").contains("%0 is next"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is done to the text, reading ends with a verified graph or an error.
    #[test]
    fn broken_text_never_panics(
        cut in 0.0..1.0f64,
        edits in prop::collection::vec((0.0..1.0f64, "[ %=\\[\\],a-z0-9.-]{0,6}"), 0..6),
    ) {
        let mut text = graph("models/mistral-window").to_string();
        for (at, new) in edits {
            let at = (at * text.len() as f64) as usize;
            let end = (at + 3).min(text.len());
            text.replace_range(at..end, &new);
        }
        text.truncate((cut * text.len() as f64) as usize);
        if let Ok(graph) = Graph::parse(&text) {
            prop_assert_eq!(Graph::parse(&graph.to_string()).unwrap(), graph);
        }
    }
}
