//! The GGUF parser beside a second reader, against its own writer, and under mutation.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rusty_loader::gguf::Gguf;
use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::{Format, Meta, SharedBytes, open_gguf_bytes};
use serde_json::Value;

use crate::goldens;

/// All sound GGUF files of the golden data.
fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in [
        "gguf/llama",
        "gguf/qwen3",
        "gguf/qwen3-float",
        "gguf/qwen3-zoo",
    ] {
        let entries = std::fs::read_dir(goldens::path(folder)).unwrap();
        files.extend(entries.map(|e| e.unwrap().path()));
    }
    for entry in std::fs::read_dir(goldens::path("tokenizers")).unwrap() {
        files.push(entry.unwrap().path().join("vocab.gguf"));
    }
    files.retain(|p| p.is_file() && p.extension().is_some_and(|e| e == "gguf"));
    files.sort();
    files
}

/// Types whose sizes the second reader knows; it panics or errs on others.
const SHARED_TYPES: [u32; 11] = [0, 1, 2, 3, 6, 7, 8, 10, 12, 13, 14];

#[test]
fn a_second_reader_sees_the_same() {
    let mut compared = 0;
    for path in files() {
        let ours = Gguf::open(&path).unwrap();
        if !ours
            .tensors
            .iter()
            .all(|t| SHARED_TYPES.contains(&t.kind.id))
        {
            continue;
        }
        let limit = u64::from(u32::MAX);
        let name = path.to_str().unwrap();
        let theirs = gguf_rs::get_gguf_container_array_size(name, limit)
            .unwrap()
            .decode()
            .unwrap();
        assert_eq!(ours.meta.len(), theirs.metadata().len(), "{name}");
        for (key, value) in theirs.metadata() {
            assert!(
                same(&ours.meta[key], value),
                "{name}: {key}: {:?} {value}",
                ours.meta[key]
            );
        }
        assert_eq!(ours.data_start, theirs.data_offset());
        assert_eq!(ours.tensors.len(), theirs.tensors().len());
        for (a, b) in ours.tensors.iter().zip(theirs.tensors()) {
            let shape: Vec<u64> = b.shape.iter().rev().copied().collect();
            assert_eq!(
                (&a.name, a.kind.id, &a.shape),
                (&b.name, b.kind, &shape),
                "{name}"
            );
            assert_eq!((a.offset, a.len), (b.offset, b.size), "{name}: {}", a.name);
        }
        compared += 1;
    }
    assert!(compared > 12, "only {compared} files compared");
}

fn same(ours: &Meta, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Meta::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Meta::Str(a), b) => b.as_str() == Some(a),
        (Meta::Bool(a), b) => b.as_bool() == Some(*a),
        // The second reader widens single floats through their decimal digits.
        (a, b) => a.as_f64().map(|v| v as f32) == b.as_f64().map(|v| v as f32),
    }
}

#[test]
fn what_is_written_is_read() {
    let mut writer = GgufWriter::new("llama");
    let tokens: Meta = ["a", "ä", ""].map(Meta::from).into_iter().collect();
    let mixed: Meta = [Meta::I64(-1), Meta::U64(2)].into_iter().collect();
    writer
        .meta("a.u", 7u64)
        .meta("a.big", u64::MAX)
        .meta("a.i", Meta::I64(-3));
    writer
        .meta("a.f", 0.5)
        .meta("a.b", true)
        .meta("a.tokens", tokens.clone());
    writer.meta("a.mixed", mixed.clone());
    let q8 = Format::by_name("q8_0").unwrap();
    writer
        .tensor("x", Format::F32, &[3])
        .tensor("y", q8, &[2, 64]);
    let mut bytes = Vec::new();
    let fill = |name: &str, out: &mut dyn std::io::Write| match name {
        "x" => out.write_all(&[1; 12]),
        _ => out.write_all(&[2; 136]),
    };
    writer.write(&mut bytes, fill).unwrap();
    assert_eq!(
        bytes.len() as u64,
        writer.header().len() as u64 + writer.data_len()
    );
    let read = Gguf::from_bytes(Path::new("written"), SharedBytes::from_vec(bytes)).unwrap();
    assert_eq!(read.meta["a.u"], Meta::U64(7));
    assert_eq!(read.meta["a.big"], Meta::U64(u64::MAX));
    assert_eq!(read.meta["a.i"], Meta::I64(-3));
    assert_eq!(read.meta["a.f"], Meta::F64(0.5));
    assert_eq!(read.meta["a.b"], Meta::Bool(true));
    assert_eq!(read.meta["a.tokens"], tokens);
    assert_eq!(read.meta["a.mixed"], mixed);
    assert_eq!(read.tensors[1].shape, [2, 64]);
    assert_eq!(&*read.tensor_bytes(&read.tensors[0]).unwrap(), &[1; 12]);
    assert_eq!(&*read.tensor_bytes(&read.tensors[1]).unwrap(), &[2; 136]);
    let short = writer.write(&mut Vec::new(), |_, out| out.write_all(&[0; 12]));
    assert!(
        short
            .unwrap_err()
            .to_string()
            .contains("'y' got 12 bytes instead of 136")
    );
}

fn refusal(writer: &GgufWriter) -> String {
    let bytes = SharedBytes::from_vec(writer.header());
    let Err(error) = open_gguf_bytes("refused.gguf", bytes) else {
        panic!("opens");
    };
    error.to_string()
}

#[test]
fn what_is_no_model_is_said_plainly() {
    let mut adapter = GgufWriter::new("llama");
    adapter.meta("general.type", "adapter");
    let said = refusal(&adapter);
    assert!(said.contains("is an adapter, not a model"), "{said}");
    for (value, shown) in [
        (Meta::U64(0), "block_count is 0;"),
        (Meta::from("16"), "block_count is '16';"),
        (Meta::F64(16.0), "block_count is 16.0;"),
        ([Meta::U64(1)].into_iter().collect(), "is an array of 1;"),
    ] {
        let mut model = GgufWriter::new("llama");
        model.meta("llama.block_count", value);
        let said = refusal(&model);
        assert!(said.contains(shown), "{said}");
    }
}

/// Small files with every part of the format in them.
fn seeds() -> Vec<Vec<u8>> {
    let seed = |below| std::fs::read(goldens::path(below)).unwrap();
    vec![
        seed("hostile/gguf/control-valid.gguf"),
        seed("hostile/gguf/control-extra-keys.gguf"),
        seed("hostile/gguf/control-align64.gguf"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Whatever a damaged file says, opening it ends in a model or an error.
    #[test]
    fn damaged_files_never_panic(
        which in 0..3usize,
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 0..6),
        words in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0..64u32), 0..3),
    ) {
        let mut bytes = seeds().swap_remove(which);
        for (at, value, early) in edits {
            let len = if early { 700 } else { bytes.len() };
            bytes[at.index(len)] = value;
        }
        for (at, value, shift) in words {
            let at = at.index(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&(value >> shift).to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(model) = open_gguf_bytes("damaged", SharedBytes::from_vec(bytes)) {
            for name in model.tensor_names() {
                let view = model.tensor(&name).unwrap();
                prop_assert_eq!(view.bytes.len(), view.rows() * view.row_bytes());
            }
        }
    }
}
