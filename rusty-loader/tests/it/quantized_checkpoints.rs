//! Checkpoints quantized by others, against the weights that the others' own code decodes.

use crate::goldens;
use rusty_loader::safetensors::SafetensorsFile;
use std::path::{Path, PathBuf};

fn checkpoint(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/checkpoints")
        .join(name)
}

const CASES: [(&str, &str); 10] = [
    ("awq", "int4_g32"),
    ("awq-g128", "int4_g128"),
    ("gptq", "int4_g64"),
    ("gptq-g128", "int4_g128"),
    ("gptq-act-order", "f32"),
    ("fp8", "fp8_g64"),
    ("fp8-32", "fp8_g32"),
    ("fp8-channel", "fp8_g128"),
    ("nf4", "nf4_g64"),
    ("nf4-nested", "nf4_g64"),
];

#[test]
fn weights_are_what_others_decode() {
    for (name, format) in CASES {
        let folder = checkpoint(name);
        let model = rusty_loader::open(&folder).expect(name);
        let decoded = SafetensorsFile::open(&folder.join("dequantized.safetensors")).expect(name);
        let mut modules = 0;
        for module in decoded.names() {
            let want = decoded.tensor(module).expect(module);
            let canonical = format!("model.layers.0.{module}");
            let canonical = rusty_loader::tensor_names::from_hf("qwen3", &canonical).expect(module);
            let view = model.tensor(&canonical).expect(module);
            assert_eq!(view.format.name(), format, "{name} {module}");
            assert_eq!(view.shape, want.shape, "{name} {module}");
            let mut have = vec![0.0; view.elements()];
            view.format.decode_row(&view.bytes, &mut have);
            assert_eq!(have, goldens::floats(&want.bytes), "{name} {module}");
            modules += 1;
        }
        assert_eq!(modules, 7);
    }
}

/// A copy of a checkpoint with one byte sequence in its configuration replaced.
fn changed(name: &str, from: &str, to: &str) -> String {
    let folder = tempfile::tempdir().expect("folder");
    let source = checkpoint(name);
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(source.join(file), folder.path().join(file)).expect(file);
    }
    let path = folder.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("config");
    assert!(text.contains(from), "{name}: {from}");
    std::fs::write(&path, text.replace(from, to)).expect("config");
    rusty_loader::open(folder.path())
        .err()
        .map_or_else(|| "opened".into(), |e| e.to_string())
}

/// What is not known is refused by what it is, never read as something else.
#[test]
fn other_layouts_are_refused() {
    for (name, from, to, says) in [
        ("awq", r#""bits": 4"#, r#""bits": 3"#, "Some(3) bits"),
        ("awq", r#""gemm""#, r#""gemv""#, "version 'gemv'"),
        (
            "awq",
            r#""group_size": 32"#,
            r#""group_size": 64"#,
            "zeros and scales",
        ),
        ("gptq", r#""gptq""#, r#""hqq""#, "method 'hqq'"),
        ("fp8", "64", "32", "weight_scale_inv"),
        ("nf4", r#""nf4""#, r#""fp4""#, "fp4"),
        (
            "fp8-channel",
            r#""float-quantized""#,
            r#""pack-quantized""#,
            "pack-quantized",
        ),
    ] {
        let error = changed(name, from, to);
        assert!(error.contains(says), "{name} with {to}: {error}");
    }
}

/// Damage anywhere in a file is an error or some numbers, never a panic.
#[test]
fn damaged_files_do_no_harm() {
    for (name, _) in CASES {
        let folder = tempfile::tempdir().expect("folder");
        let source = checkpoint(name);
        std::fs::copy(
            source.join("config.json"),
            folder.path().join("config.json"),
        )
        .expect("copy");
        let good = std::fs::read(source.join("model.safetensors")).expect("read");
        for at in (0..good.len().min(4000)).step_by(13) {
            let mut bytes = good.clone();
            bytes[at] ^= 0x15;
            std::fs::write(folder.path().join("model.safetensors"), bytes).expect("written");
            let _ = rusty_loader::open(folder.path());
        }
    }
}
