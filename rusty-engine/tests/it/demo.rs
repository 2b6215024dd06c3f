//! The built-in model and its adapters against reference decodings in float32.

use super::{demo, devices};
use crate::golden_paths::root;
use rusty_engine::{AdapterId, Engine, EngineOptions, Finish, Message, Prompt, Request};
use serde_json::Value;

pub fn attach(engine: &Engine, name: &str) -> AdapterId {
    let adapter = rusty_engine::demo::adapter(name, &engine.adapter_base());
    engine
        .attach(adapter.expect(name).expect(name))
        .expect(name)
}

pub fn chat(text: &str, max_tokens: usize) -> Request {
    Request {
        max_tokens,
        ..Request::new(Prompt::Chat(vec![Message::new("user", text)]))
    }
}

#[test]
fn answers_are_the_reference_decodings() {
    let path = root().join("assets/demo/expected.json");
    let cases = std::fs::read(path).expect("expected.json");
    let cases: Vec<Value> = serde_json::from_slice(&cases).expect("json");
    assert!(cases.len() >= 8);
    for device in devices() {
        let engine = demo(&EngineOptions {
            // References are single precision.
            single_precision: true,
            device,
            ..EngineOptions::default()
        });
        for case in &cases {
            let mut session = engine.session();
            let adapter = case["adapter"].as_str().map(|name| attach(&engine, name));
            session.set_adapter(adapter).expect("attached");
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
            if let Some(adapter) = adapter {
                engine.detach(adapter).expect("detach");
            }
        }
    }
}
