//! The interpreter against transformers' logits.

use super::expected::Expected;
use super::{MODELS, golden, open};
use rusty_graph::Interpreter;
use rusty_graph::interpret::Matrix;
use std::collections::BTreeSet;

pub fn assert_close(what: &str, have: &Matrix, want: &[f32]) {
    assert_eq!(have.data.len(), want.len(), "{what}");
    let apart = have
        .data
        .iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart <= 1e-3, "{what}: {apart}");
}

#[test]
fn every_golden_model_is_accounted_for() {
    let folders = [golden("models"), golden("../architectures")];
    let entries = folders
        .iter()
        .flat_map(|f| std::fs::read_dir(f).expect("models"));
    let models = entries
        .map(|e| e.expect("entry"))
        .filter(|e| e.path().is_dir());
    let found: BTreeSet<String> = models
        .map(|e| e.file_name().into_string().expect("name"))
        .collect();
    let listed = MODELS.iter().map(|m| m.to_string()).collect();
    assert_eq!(found, listed);
}

#[test]
fn logits_of_every_position_match() {
    for model in MODELS {
        let folder = format!("models/{model}");
        let file = open(&folder);
        let graph = rusty_graph::arch::build(&*file).expect(model);
        let interpreter = Interpreter::new(&graph, &*file).expect(model);
        let expected = Expected::read(&folder);
        for prompt in 0..3 {
            let ids = expected.ids(&format!("ids.{prompt}")).expect("ids");
            let values = interpreter.run(&ids, &[]).expect(model);
            let want = expected.floats(&format!("logits.{prompt}"));
            assert_close(&format!("{model} {prompt}"), values.logits(), &want);
            if prompt == 1 {
                let want = expected.floats("hidden.final_norm");
                assert_close(&format!("{model} hidden"), values.hidden(), &want);
            }
        }
    }
}

#[test]
fn greedy_tokens_match() {
    for model in MODELS {
        let folder = format!("models/{model}");
        let file = open(&folder);
        let graph = rusty_graph::arch::build(&*file).expect(model);
        let interpreter = Interpreter::new(&graph, &*file).expect(model);
        let expected = Expected::read(&folder);
        let mut ids = expected.ids("ids.0").expect("ids");
        for want in expected.ids("greedy.0").expect("greedy") {
            let values = interpreter.run(&ids, &[]).expect(model);
            let row = values.logits().row(ids.len() - 1);
            let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
            assert_eq!(
                best,
                Some(want as usize),
                "{model} after {} tokens",
                ids.len()
            );
            ids.push(want);
        }
    }
}

#[test]
fn gguf_files_match_on_decoded_weights() {
    for (folder, stems) in [
        ("gguf/qwen3-float", &["F32", "F16", "BF16"][..]),
        (
            "gguf/qwen3",
            &[
                "Q4_0", "Q3_K", "IQ1_M", "IQ2_S", "IQ3_XXS", "TQ1_0", "MXFP4",
            ],
        ),
        ("gguf/qwen3-zoo", &["zoo"]),
        ("gguf/llama", &["mix-Q4_K_M", "mix-Q2_K", "mix-Q5_K_M"]),
    ] {
        let expected = Expected::read(folder);
        let ids = expected.ids("ids").expect("ids");
        for stem in stems {
            let file = open(&format!("{folder}/{stem}.gguf"));
            let graph = rusty_graph::arch::build(&*file).expect(stem);
            let interpreter = Interpreter::new(&graph, &*file).expect(stem);
            let values = interpreter.run(&ids, &[]).expect(stem);
            let want = expected.floats(&format!("{stem}.logits_dequant"));
            assert_close(&format!("{folder} {stem}"), values.logits(), &want);
        }
    }
}

#[test]
fn bad_operands_are_refused() {
    let file = open("models/qwen3-tied");
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let interpreter = Interpreter::new(&graph, &*file).expect("interpreter");
    assert!(interpreter.run(&[graph.vocab], &[]).is_err());
    let delta = rusty_graph::interpret::SiteLora {
        site: rusty_graph::SiteId(0),
        a: vec![0.0; 3],
        b: vec![],
        scale: 1.0,
    };
    assert!(interpreter.run(&[1], &[delta]).is_err());
}
