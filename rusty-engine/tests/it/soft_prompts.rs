//! Soft prompts stand for embeddings as the layers get them: one that holds what tokens are embedded as is those tokens.

use super::adapter_oddities::Adapter;
use super::{golden, open, tensors};
use rusty_adapters::Precision;
use serde_json::json;
use std::collections::BTreeMap;

/// Models, and whether what their checkpoints embed tokens with is scaled for tokens alone, by the root of its width.
const MODELS: [(&str, bool); 4] = [
    ("models/qwen3-tied", false),
    ("models/mistral-window", false),
    ("models/gemma2", true),
    ("models/gemma3", true),
];

#[test]
fn a_prompt_of_what_tokens_are_embedded_as_is_those_tokens() {
    let tokens: Vec<u32> = (0..12).map(|i| i * 13 % 200).collect();
    let (virtual_tokens, text) = tokens.split_at(5);
    for (model, scaled) in MODELS {
        let folder = tempfile::tempdir().expect("folder");
        let table = tensors(&golden(model).join("model.safetensors"))
            .remove("model.embed_tokens.weight")
            .expect("embeddings");
        let width = table.0[1];
        let scale = if scaled { (width as f32).sqrt() } else { 1.0 };
        let rows = virtual_tokens
            .iter()
            .flat_map(|t| &table.1[*t as usize * width..][..width]);
        let rows = rows.map(|v| v * scale).collect();
        let adapter = Adapter {
            config: json!({
                "peft_type": "PROMPT_TUNING", "num_virtual_tokens": virtual_tokens.len(),
            }),
            tensors: BTreeMap::from([(
                "prompt_embeddings".into(),
                (vec![virtual_tokens.len(), width], rows),
            )]),
        };
        let engine = open(&golden(model));
        let path = adapter.write(folder.path());
        let id = engine.attach_file(&path, Precision::Stored).expect(model);
        let have = engine.logits(text, id).expect(model);
        let whole = engine.logits(&tokens, None).expect(model);
        let want = &whole[whole.len() - have.len()..];
        let apart = have.iter().zip(want).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(
            have.len() * tokens.len() == whole.len() * text.len(),
            "{model}"
        );
        assert!(apart < 1e-4, "{model}: {apart}");
    }
}
