//! Tokenizers and templates against what the reference implementations make of them.

use crate::goldens::path;
use rusty_loader::text::{ChatTemplate, Render, Tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn cases(folder: &Path) -> Value {
    let text = std::fs::read(folder.join("cases.json")).expect("cases.json");
    serde_json::from_slice(&text).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .expect("ids")
        .iter()
        .map(|v| v.as_u64().expect("id") as u32)
        .collect()
}

fn tokenizer_folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path("tokenizers")).expect("tokenizers");
    let mut folders: Vec<PathBuf> = entries.map(|e| e.expect("entry").path()).collect();
    folders.sort();
    assert!(folders.len() >= 7);
    folders
}

#[test]
fn tokenizer_json_encodes_and_decodes_as_the_reference() {
    for folder in tokenizer_folders() {
        let tokenizer = Tokenizer::open(&folder).expect("tokenizer");
        for case in cases(&folder)["encode"].as_array().expect("cases") {
            let text = case["text"].as_str().expect("text");
            let got = tokenizer.encode(text, false).expect("ids");
            assert_eq!(got, ids(&case["ids"]), "{folder:?} {text:?}");
            let special = tokenizer.encode(text, true).expect("ids");
            assert_eq!(
                special,
                ids(&case["ids_with_special"]),
                "{folder:?} {text:?}"
            );
            for (skip, key) in [(false, "decoded"), (true, "decoded_skip_special")] {
                let text = tokenizer.decode(&ids(&case["ids"]), skip).expect("text");
                assert_eq!(text, case[key].as_str().expect(key), "{folder:?} {key}");
            }
        }
        for case in cases(&folder)["decode"].as_array().into_iter().flatten() {
            let text = tokenizer.decode(&ids(&case["ids"]), false).expect("text");
            let want = case["decoded"].as_str().expect("text");
            assert_eq!(text, want, "{folder:?} {case}");
        }
    }
}

#[test]
fn streams_give_whole_characters_as_the_reference() {
    for folder in tokenizer_folders() {
        let tokenizer = Tokenizer::open(&folder).expect("tokenizer");
        for case in cases(&folder)["stream"].as_array().into_iter().flatten() {
            let mut stream = tokenizer.stream(case["skip_special"].as_bool().unwrap_or(false));
            let pieces: Vec<Option<String>> = ids(&case["ids"])
                .into_iter()
                .map(|id| stream.push(id).expect("piece"))
                .collect();
            let want: Vec<Option<String>> = case["pieces"]
                .as_array()
                .expect("increments")
                .iter()
                .map(|v| v.as_str().map(String::from))
                .collect();
            assert_eq!(pieces, want, "{folder:?} {case}");
        }
    }
}

#[test]
fn gguf_vocabularies_encode_as_llama_cpp() {
    for folder in tokenizer_folders() {
        let path = folder.join("vocab.gguf");
        if folder.ends_with("spm-unigram") {
            assert!(!path.exists(), "the unigram case has no GGUF form");
            continue;
        }
        let tokenizer = Tokenizer::open(&path).expect("vocabulary");
        for case in cases(&folder)["encode"].as_array().expect("cases") {
            let text = case["text"].as_str().expect("text");
            let want = if case["ids_llamacpp"].is_array() {
                &case["ids_llamacpp"]
            } else {
                &case["ids"]
            };
            let got = tokenizer.encode(text, false).expect("ids");
            assert_eq!(got, ids(want), "{folder:?} {text:?}");
        }
    }
}

#[test]
fn templates_render_as_transformers() {
    let folder = path("templates");
    let all = cases(&folder);
    let special = &all["special_tokens"];
    let mut rendered = 0;
    for case in all["cases"].as_array().expect("cases") {
        let name = case["template"].as_str().expect("template");
        let source = std::fs::read_to_string(folder.join(name)).expect("source");
        let template = ChatTemplate::new(name, &source).expect("template");
        let options = &all["options"][case["options"].as_str().expect("options")];
        let mut extra = options.as_object().cloned().expect("options");
        let prompt = extra
            .remove("add_generation_prompt")
            .and_then(|v| v.as_bool())
            .unwrap_or(false);
        let tools = extra.remove("tools").unwrap_or_default();
        let conversation = case["conversation"].as_str().expect("conversation");
        let input = Render {
            messages: all["conversations"][conversation].clone(),
            tools,
            add_generation_prompt: prompt,
            bos_token: special["bos_token"].as_str().expect("bos").into(),
            eos_token: special["eos_token"].as_str().expect("eos").into(),
            extra,
        };
        match (template.render(&input), case["text"].as_str()) {
            (Ok(text), Some(want)) => {
                assert_eq!(text, want, "{name} {conversation} {}", case["options"])
            }
            (Err(e), Some(_)) => panic!("{name} {conversation} {}: {e}", case["options"]),
            (Ok(text), None) => panic!("{name} {conversation}: should fail, gave {text:?}"),
            (Err(_), None) => {}
        }
        rendered += 1;
    }
    assert!(rendered > 50, "{rendered} cases");
}
