//! The built-in model and its adapters against reference decodings in float32.

use super::{DEVICES, demo};
use rusty_adapters::{combine, from_bytes};
use rusty_compiler::SlotId;
use rusty_engine::{Engine, EngineOptions, Finish, Message, Prompt, Request};
use serde_json::Value;
use std::path::Path;

pub fn attach(engine: &Engine, name: &str) -> SlotId {
    attach_weighted(engine, name, 1.0)
}

pub fn attach_weighted(engine: &Engine, name: &str, weight: f32) -> SlotId {
    let (config, tensors) = rusty_engine::demo::adapter(name).expect(name);
    let data = from_bytes(
        name,
        Path::new(name),
        config.as_bytes(),
        tensors,
        engine.graph(),
    );
    let data = combine(&[(data.expect(name), weight)]);
    engine.attach(data).expect(name)
}

pub fn chat(text: &str, max_tokens: usize) -> Request {
    Request {
        max_tokens,
        ..Request::new(Prompt::Chat(vec![Message::new("user", text)]))
    }
}

#[test]
fn answers_are_the_reference_decodings() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/expected.json");
    let cases = std::fs::read(path).expect("expected.json");
    let cases: Vec<Value> = serde_json::from_slice(&cases).expect("json");
    assert!(cases.len() >= 8);
    for device in DEVICES {
        let engine = demo(&EngineOptions {
            device,
            ..EngineOptions::default()
        });
        for case in &cases {
            let mut session = engine.session();
            let slot = case["adapter"].as_str().map(|name| attach(&engine, name));
            session
                .set_adapter(slot.unwrap_or(SlotId::BASE))
                .expect("slot");
            let most = case["max_tokens"].as_u64().expect("max_tokens") as usize;
            let request = chat(case["prompt"].as_str().expect("prompt"), most);
            let ids: Vec<Value> = session
                .prompt_tokens(&request.prompt)
                .expect("prompt")
                .into_iter()
                .map(Value::from)
                .collect();
            assert_eq!(Value::from(ids), case["prompt_ids"]);
            let mut answer = session.generate(&request).expect("generate");
            let text: String = answer.by_ref().map(|t| t.expect("token").text).collect();
            assert_eq!(Value::from(text), case["text"], "{device}");
            let stopped = answer.finish() == Some(Finish::End);
            assert_eq!(Value::from(stopped), case["stopped"]);
            drop(answer);
            drop(session);
            if let Some(slot) = slot {
                engine.detach(slot).expect("detach");
            }
        }
    }
}
