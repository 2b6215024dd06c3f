//! Every hostile file ends as its case says: an error that names the file and a reason, or a model.

use std::path::Path;

use rusty_loader::safetensors::SafetensorsFile;
use rusty_loader::text::Tokenizer;

use crate::goldens;

fn ends_as_expected(kind: &str, open: impl Fn(&Path) -> rusty_loader::Result<()>) {
    let cases = goldens::json("hostile/cases.json");
    let mut wrong = Vec::new();
    let mut seen = 0;
    for case in cases.as_array().unwrap() {
        if case["kind"] != kind {
            continue;
        }
        seen += 1;
        let (below, expect) = (
            case["path"].as_str().unwrap(),
            case["expect"].as_str().unwrap(),
        );
        let outcome = open(&goldens::path(&format!("hostile/{below}")));
        match (&outcome, expect) {
            (Ok(()), "error") => wrong.push(format!("{below}: accepted ({})", case["why"])),
            (Err(e), "ok") => wrong.push(format!("{below}: refused: {e}")),
            (Err(e), _) if !names_file_and_reason(&e.to_string(), below) => {
                wrong.push(format!("{below}: unhelpful message: {e}"));
            }
            _ => {}
        }
    }
    assert!(seen > 10, "only {seen} cases of {kind}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn names_file_and_reason(message: &str, below: &str) -> bool {
    let name = Path::new(below).file_name().unwrap().to_str().unwrap();
    message
        .split_once(name)
        .is_some_and(|(_, reason)| reason.len() > 10)
}

/// Opens a model and touches all that it offers.
fn open_wholly(path: &Path) -> rusty_loader::Result<()> {
    let model = rusty_loader::open(path)?;
    for name in model.tensor_names() {
        let view = model.tensor(&name).unwrap();
        assert_eq!(view.bytes.len(), view.row_bytes() * view.rows(), "{name}");
    }
    Ok(())
}

#[test]
fn gguf_files() {
    ends_as_expected("gguf", open_wholly);
}

#[test]
fn safetensors_files() {
    ends_as_expected("safetensors", |path| {
        let file = SafetensorsFile::open(path)?;
        file.names()
            .try_for_each(|name| file.tensor(name).map(drop))
    });
}

#[test]
fn checkpoint_folders() {
    ends_as_expected("checkpoint", open_wholly);
}

#[test]
fn tokenizer_folders() {
    ends_as_expected("tokenizer", |path| {
        let tokenizer = Tokenizer::open(path)?;
        let ids = tokenizer.encode("abba", true)?;
        tokenizer.decode(&ids, true).map(drop)
    });
}

#[test]
fn an_absent_path_is_named() {
    let error = rusty_loader::open("/nonesuch/model.gguf")
        .map(|_| ())
        .unwrap_err();
    assert!(
        error.to_string().starts_with("/nonesuch/model.gguf: "),
        "{error}"
    );
}
