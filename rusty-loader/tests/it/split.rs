//! Models in several GGUF files, as `gguf-split` writes them.

use crate::goldens;
use crate::hub_server::{Files, Server};
use rusty_loader::Format;
use rusty_loader::gguf::Gguf;
use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::quantize::{file, mix};
use std::path::{Path, PathBuf};

const WHOLE: &str = "gguf/qwen3-float/F32.gguf";
const PARTS: usize = 3;

fn name(part: usize) -> String {
    format!("m-{:05}-of-{PARTS:05}.gguf", part + 1)
}

/// Writes the model in parts; the path of the first.
fn split(folder: &Path) -> PathBuf {
    let whole = Gguf::open(&goldens::path(WHOLE)).unwrap();
    let each = whole.tensors.len().div_ceil(PARTS);
    for (part, tensors) in whole.tensors.chunks(each).enumerate() {
        let mut writer = GgufWriter::new("qwen3");
        if part == 0 {
            writer.copy_keys(&whole, &[]);
        }
        writer.meta("split.no", part as u64);
        writer.meta("split.count", PARTS as u64);
        writer.meta("split.tensors.count", whole.tensors.len() as u64);
        for t in tensors {
            let shape: Vec<usize> = t.shape.iter().map(|d| *d as usize).collect();
            let format = Format::by_ggml_type(t.kind.id).unwrap();
            writer.tensor(&t.name, format, &shape);
        }
        let mut next = tensors.iter();
        let mut data = |_: &str, out: &mut dyn std::io::Write| {
            out.write_all(&whole.tensor_bytes(next.next().unwrap()).unwrap())
        };
        writer.save(&folder.join(name(part)), &mut data).unwrap();
    }
    folder.join(name(0))
}

fn error(path: &Path) -> String {
    let Err(error) = rusty_loader::open(path) else {
        panic!("{} opens", path.display());
    };
    error.to_string()
}

#[test]
fn parts_open_as_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let first = split(folder.path());
    let whole = rusty_loader::open(goldens::path(WHOLE)).unwrap();
    for path in [first.as_path(), folder.path()] {
        let parts = rusty_loader::open(path).unwrap();
        assert_eq!(parts.tensor_names(), whole.tensor_names());
        for name in whole.tensor_names() {
            let (a, b) = (whole.tensor(&name).unwrap(), parts.tensor(&name).unwrap());
            assert_eq!((&a.shape, a.format), (&b.shape, b.format), "{name}");
            assert!(a.bytes[..] == b.bytes[..], "{name}");
        }
    }
    let path = rusty_loader::model_path(folder.path()).unwrap();
    assert_eq!(path, first);
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let mix = mix::Mix::by_name("q8_0").unwrap();
    file::write(&goldens::path(WHOLE), &a, mix, None, &|_, _| {}).unwrap();
    file::write(&first, &b, mix, None, &|_, _| {}).unwrap();
    assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap());
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = split(folder.path());
    let second = folder.path().join(name(1));
    let text = error(&second);
    assert!(
        text.contains("part 2 of 3") && text.contains(&name(0)),
        "{text}"
    );

    let other = folder.path().join("other.gguf");
    std::fs::copy(&first, &other).unwrap();
    assert!(error(&other).contains("-00001-of-00003.gguf"));
    std::fs::remove_file(&other).unwrap();

    // The third part under the name of the second.
    let kept = std::fs::read(&second).unwrap();
    std::fs::copy(folder.path().join(name(2)), &second).unwrap();
    let text = error(&first);
    assert!(
        text.contains(&name(1)) && text.contains("part 2 of 3"),
        "{text}"
    );

    std::fs::remove_file(&second).unwrap();
    assert!(error(&first).contains(&name(1)));
    std::fs::write(&second, &kept[..kept.len() - 40]).unwrap();
    assert!(error(&first).contains(&name(1)));
}

#[test]
fn a_hub_gives_all_parts() {
    let folder = tempfile::tempdir().unwrap();
    split(folder.path());
    let read = |part| std::fs::read(folder.path().join(name(part))).unwrap();
    let files: Files = (0..PARTS).map(|part| (name(part), read(part))).collect();
    for model in ["own/name".to_owned(), format!("own/name:{}", name(0))] {
        let server = Server::start(files.clone());
        let cache = tempfile::tempdir().unwrap();
        let hub = server.hub(cache.path());
        let path = hub.resolve(&model, &|_| {}).unwrap();
        assert!(path.ends_with(name(0)));
        rusty_loader::open(&path).unwrap();
        // Without a part it is not there, and comes again.
        std::fs::remove_file(path.with_file_name(name(2))).unwrap();
        let again = hub.resolve(&model, &|_| {}).unwrap();
        rusty_loader::open(&again).unwrap();
    }
}
