//! Rotary scaling chosen by the user, and what a file says that is not known.

use super::open;
use rusty_graph::{RopeScaling, RopeSpec};
use rusty_loader::ModelFile;
use rusty_loader::meta::keys;
use rusty_loader::rope_override::{RopeKind, RopeOverride};

fn chosen(kind: RopeKind, factor: Option<f64>) -> RopeOverride {
    RopeOverride {
        kind,
        factor,
        original: None,
    }
}

fn scaling(file: &dyn ModelFile) -> RopeScaling {
    let graph = rusty_graph::arch::build(file).expect("graph");
    graph.ropes[0].scaling.clone()
}

/// Choosing what the file states changes nothing.
#[test]
fn the_same_kind_again_is_the_same() {
    for (model, kind) in [
        ("qwen3-yarn", RopeKind::Yarn),
        ("llama-linear", RopeKind::Linear),
        ("llama-dynamic", RopeKind::Ntk),
        ("llama-llama3rope-sharded", RopeKind::Llama3),
        ("phi3-longrope", RopeKind::LongRope),
        ("qwen3-tied", RopeKind::None),
    ] {
        let folder = format!("models/{model}");
        let own = scaling(&*open(&folder));
        let again = chosen(kind, None).apply(open(&folder)).expect(model);
        assert_eq!(scaling(&*again), own, "{model}");
    }
}

#[test]
fn every_kind_stretches_a_plain_model() {
    let context = |file: &dyn ModelFile| file.meta(keys::CONTEXT_LENGTH).and_then(|m| m.as_u64());
    let plain = context(&*open("models/qwen3-tied")).expect("a context");
    for kind in [
        RopeKind::Linear,
        RopeKind::Ntk,
        RopeKind::Yarn,
        RopeKind::Llama3,
    ] {
        let file = chosen(kind, Some(4.0))
            .apply(open("models/qwen3-tied"))
            .expect("scaled");
        assert_eq!(context(&*file), Some(4 * plain), "{kind:?}");
        let found = scaling(&*file);
        let stretch = match (&found, kind) {
            (RopeScaling::Linear { factor }, RopeKind::Linear)
            | (RopeScaling::Dynamic { factor, .. }, RopeKind::Ntk)
            | (RopeScaling::Yarn { factor, .. }, RopeKind::Yarn)
            | (RopeScaling::Llama3 { factor, .. }, RopeKind::Llama3) => *factor,
            other => panic!("{other:?}"),
        };
        assert_eq!(stretch, 4.0);
        // Without a factor there is nothing to stretch by.
        let error = chosen(kind, None)
            .apply(open("models/qwen3-tied"))
            .map(|_| ());
        assert!(error.unwrap_err().to_string().contains("--rope-factor"));
    }
    let file = RopeOverride::YARN_128K
        .apply(open("models/qwen3-tied"))
        .expect("scaled");
    assert_eq!(context(&*file), Some(131_072));
    assert!(matches!(
        scaling(&*file),
        RopeScaling::Yarn {
            factor: 4.0,
            original: 32_768,
            ..
        }
    ));
}

/// Divisors that a GGUF stores as a tensor belong to the kind that is replaced.
#[test]
fn stored_divisors_give_way() {
    let file = open("gguf/llama/mix-Q4_K_M.gguf");
    assert!(matches!(scaling(&*file), RopeScaling::Divisors(_)));
    let file = chosen(RopeKind::Linear, Some(2.0))
        .apply(file)
        .expect("scaled");
    assert_eq!(scaling(&*file), RopeScaling::Linear { factor: 2.0 });
    assert!(!file.tensor_names().iter().any(|n| n.starts_with("rope_f")));
}

/// A copy of a golden folder whose configuration is changed.
fn edited(model: &str, edit: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    let from = super::golden(&format!("models/{model}"));
    std::fs::copy(
        from.join("model.safetensors"),
        folder.path().join("model.safetensors"),
    )
    .expect("copied");
    let text = std::fs::read(from.join("config.json")).expect("config");
    let mut config = serde_json::from_slice(&text).expect("JSON");
    edit(&mut config);
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    folder
}

#[test]
fn an_unknown_kind_is_refused_unless_another_is_chosen() {
    let folder = edited("qwen3-yarn", |c| {
        c["rope_parameters"]["rope_type"] = "spiral".into()
    });
    let error = rusty_loader::open(folder.path()).map(|_| ()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("spiral") && error.contains("--rope-scaling"),
        "{error}"
    );
    let file = rusty_loader::open_any_rope(folder.path()).expect("opens");
    assert!(rusty_graph::arch::build(&*file).is_err());
    let file = chosen(RopeKind::Yarn, None).apply(file).expect("scaled");
    assert!(matches!(scaling(&*file), RopeScaling::Yarn { .. }));
}

#[test]
fn yarn_without_its_context_becomes_ntk() {
    let folder = edited("qwen3-yarn", |c| {
        let parameters = c["rope_parameters"].as_object_mut().expect("parameters");
        parameters.remove("original_max_position_embeddings");
    });
    let file = rusty_loader::open(folder.path()).expect("opens");
    let spec: RopeSpec = rusty_graph::arch::build(&*file).expect("graph").ropes[0].clone();
    assert!(
        matches!(spec.scaling, RopeScaling::Dynamic { .. }),
        "{spec:?}"
    );
}
