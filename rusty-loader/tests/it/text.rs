//! Tokenizers and templates against what the reference implementations make of them.

use crate::goldens::path;
use rusty_loader::text::{ChatTemplate, Render, Tokenizer};
use serde_json::{Value, json};
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

/// A folder with a copy of a golden tokenizer and that configuration.
fn configured(config: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    let from = path("tokenizers/bpe-llama3/tokenizer.json");
    std::fs::copy(from, folder.path().join("tokenizer.json")).expect("copy");
    std::fs::write(
        folder.path().join("tokenizer_config.json"),
        config.to_string(),
    )
    .expect("config");
    folder
}

#[test]
fn classes_that_rewrite_their_post_processor_follow_their_flags() {
    let (bos, eos) = ("<|begin_of_text|>", "<|eot_id|>");
    let ends = |config: Value| {
        let tokenizer = Tokenizer::open(configured(&config).path()).expect("tokenizer");
        let ids = tokenizer.encode("a", true).expect("ids");
        (ids[0] == 996, ids[ids.len() - 1] == 999)
    };
    let config = |class: &str, rest: Value| {
        let mut config =
            json!({"tokenizer_class": class, "bos_token": bos, "eos_token": {"content": eos}});
        let rest = rest.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(rest);
        config
    };
    let flags = json!({"add_bos_token": false, "add_eos_token": true});
    assert_eq!(ends(config("LlamaTokenizerFast", json!({}))), (true, false));
    assert_eq!(ends(config("LlamaTokenizer", flags.clone())), (false, true));
    assert_eq!(
        ends(config("PreTrainedTokenizerFast", flags)),
        (true, false)
    );
    let nameless = json!({"tokenizer_class": "LlamaTokenizerFast", "bos_token": null});
    assert_eq!(ends(nameless), (false, false));
    let silent = json!({"tokenizer_class": "LlamaTokenizerFast"});
    assert_eq!(ends(silent), (true, false), "tokenizer.json's own stays");
    let unknown = json!({"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<none>"});
    assert_eq!(ends(unknown), (true, false));
}

#[test]
fn templates_call_special_tokens_what_the_configuration_calls_them() {
    let names = |config: Value| {
        let tokenizer = Tokenizer::open(configured(&config).path()).expect("tokenizer");
        (tokenizer.bos_token(), tokenizer.eos_token())
    };
    let config = json!({"bos_token": null, "eos_token": {"content": "<|eot_id|>"}});
    assert_eq!(names(config), (None, Some("<|eot_id|>".into())));
    assert_eq!(
        names(json!({"eos_token": "gone"})),
        (None, Some("gone".into()))
    );
}

#[test]
fn gguf_vocabularies_of_llama_3_begin_texts_unless_told_otherwise() {
    let mut bytes = std::fs::read(path("tokenizers/bpe-llama3/vocab.gguf")).expect("vocabulary");
    let key = b"tokenizer.ggml.add_bos_token";
    let at = bytes
        .windows(key.len())
        .position(|w| w == key)
        .expect("the key");
    bytes[at + key.len() - 1] = b'x';
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("vocab.gguf");
    std::fs::write(&file, bytes).expect("vocabulary");
    let tokenizer = Tokenizer::open(&file).expect("vocabulary");
    assert_eq!(tokenizer.encode("a", true).expect("ids")[0], 996);
}

/// A vocabulary of bytes and one letter.
fn bytes_and_a_letter() -> Tokenizer {
    let vocab = json!({"<0xE4>": 0, "<0xBD>": 1, "<0xA0>": 2, "<0xFF>": 3, "a": 4});
    let description = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": []},
    });
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("tokenizer.json");
    std::fs::write(&file, description.to_string()).expect("tokenizer");
    Tokenizer::open(&file).expect("tokenizer")
}

#[test]
fn streams_go_on_behind_bytes_that_are_no_character() {
    let tokenizer = bytes_and_a_letter();
    let text = |ids: &[u32]| {
        let mut stream = tokenizer.stream(true);
        let mut pieces: Vec<String> = vec![];
        for id in ids {
            pieces.extend(stream.push(*id).expect("piece"));
        }
        pieces.push(stream.finish().expect("rest"));
        pieces.concat()
    };
    assert_eq!(text(&[0, 1, 2, 4]), "你a");
    assert_eq!(text(&[0, 1, 2, 3, 4]), "你\u{fffd}a");
    assert_eq!(text(&[4, 0, 1, 2, 3]), "a你\u{fffd}");
    assert_eq!(text(&[4, 0, 1]), "a\u{fffd}\u{fffd}");
    assert_eq!(text(&[3, 3, 4, 3, 4]), "\u{fffd}\u{fffd}a\u{fffd}a");
    assert_eq!(text(&[]), "");
}

#[test]
fn times_in_no_format_are_refused() {
    let render = |format: &str| {
        let source = format!("{{{{ strftime_now('{format}') }}}}");
        let template = ChatTemplate::new("template", &source).expect("template");
        template.render(&Render::default())
    };
    let error = render("%Q").expect_err("no format").to_string();
    assert!(error.contains("'%Q'"), "{error}");
    assert_eq!(render("%Y").expect("a year").len(), 4);
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
