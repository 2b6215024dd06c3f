//! GGUFs once more in other formats: which matrix gets which, what the result says, and importance matrices.

use std::path::Path;

use rusty_loader::gguf::Gguf;
use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::meta::keys;
use rusty_loader::quantize::imatrix::Importance;
use rusty_loader::quantize::{file, mix};
use rusty_loader::{Error, Format};

/// Elements of a small model: rows of 256, so that every format fits.
fn value(name: &str, i: usize) -> f32 {
    ((i * 37 + name.len() * 11) % 199) as f32 / 99.0 - 1.0
}

/// A GGUF with the tensors of two blocks.
fn source(path: &Path) {
    let mut writer = GgufWriter::new("llama");
    writer.meta("llama.block_count", 2u64);
    writer.meta("llama.attention.head_count", 8u64);
    writer.meta("llama.attention.head_count_kv", 2u64);
    writer.meta("general.file_type", 0u64);
    writer.meta("tokenizer.ggml.model", "none");
    let mut shapes = vec![("output.weight".to_owned(), vec![32, 256])];
    for layer in 0..2 {
        for (role, rows) in [("attn_q", 256), ("attn_v", 64), ("ffn_down", 256)] {
            shapes.push((format!("blk.{layer}.{role}.weight"), vec![rows, 256]));
        }
        shapes.push((format!("blk.{layer}.attn_norm.weight"), vec![256]));
    }
    for (name, shape) in &shapes {
        writer.tensor(name, Format::F32, shape);
    }
    let mut out = std::fs::File::create(path).unwrap();
    let mut sizes = shapes.iter();
    writer
        .write(&mut out, |name, out| {
            let count: usize = sizes.next().unwrap().1.iter().product();
            (0..count).try_for_each(|i| out.write_all(&value(name, i).to_le_bytes()))
        })
        .unwrap();
}

#[test]
fn every_mixture_keeps_keys_and_comes_near_the_values() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
    source(&from);
    let before = Gguf::open(&from).unwrap();
    for mix in mix::ALL {
        let done = std::cell::Cell::new((0, 0));
        let report = file::write(&from, &to, mix, None, &|n, of| done.set((n, of))).unwrap();
        assert_eq!(done.get().0, done.get().1, "{}", mix.name);
        let after = Gguf::open(&to).unwrap();
        assert_eq!(
            after.meta["general.file_type"].as_u64(),
            Some(mix.file_type)
        );
        for (key, value) in &before.meta {
            assert!(
                key == "general.file_type" || after.meta[key] == *value,
                "{key}"
            );
        }
        let bytes: u64 = after.tensors.iter().map(|t| t.len).sum();
        assert_eq!(report.after, bytes);
        for (a, b) in before.tensors.iter().zip(&after.tensors) {
            assert_eq!((&a.name, &a.shape), (&b.name, &b.shape));
            let format = Format::by_ggml_type(b.kind.id).unwrap();
            if a.shape.len() == 1 {
                assert_eq!(format, Format::F32);
                continue;
            }
            let stored = after.tensor_bytes(b).unwrap();
            let mut values = vec![0.0; a.shape.iter().product::<u64>() as usize];
            format.decode_row(&stored, &mut values);
            let errors = values.iter().enumerate();
            let errors = errors.map(|(i, v)| (v - value(&a.name, i)).powi(2));
            let rms = (errors.sum::<f32>() / values.len() as f32).sqrt();
            // Evenly spread values of a root mean square of 0.58.
            let most = 1.5 / f32::from(1u16 << bits(format).min(9));
            assert!(rms < most, "{} {}: {rms}, at most {most}", mix.name, a.name);
        }
    }
}

/// Keys are copied as they are stored: pieces of characters, and types that this writer would choose otherwise.
#[test]
fn keys_are_copied_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
    source(&from);
    let mut bytes = std::fs::read(&from).unwrap();
    let (text, broken) = (b"none".as_slice(), b"n\xffne");
    let at = bytes
        .windows(4)
        .position(|w| w == text)
        .expect("a key's text");
    bytes[at..at + 4].copy_from_slice(broken);
    std::fs::write(&from, bytes).unwrap();
    file::write(
        &from,
        &to,
        mix::Mix::by_name("q4_0").unwrap(),
        None,
        &|_, _| {},
    )
    .unwrap();
    let (before, after) = (Gguf::open(&from).unwrap(), Gguf::open(&to).unwrap());
    let kept = |file: &Gguf| -> Vec<(String, Vec<u8>)> {
        let keys = file
            .stored_keys()
            .filter(|(key, _)| *key != "general.file_type");
        let mut keys: Vec<_> = keys
            .filter(|(key, _)| *key != "general.quantization_version")
            .map(|(key, value)| (key.to_owned(), value.to_vec()))
            .collect();
        keys.sort();
        keys
    };
    assert_eq!(kept(&before), kept(&after));
    assert!(kept(&after).iter().any(|(_, v)| v.ends_with(broken)));
}

/// What is written is what llama.cpp's own package reads: every format and mixture.
#[test]
fn the_gguf_package_reads_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("source");
    source(&from);
    for mix in mix::ALL {
        let to = folder.path().join(format!("{}.gguf", mix.name));
        file::write(&from, &to, mix, None, &|_, _| {}).unwrap();
        let written = Gguf::open(&to).unwrap();
        let mut values = vec![];
        for info in &written.tensors {
            let mut tensor = vec![0.0; info.shape.iter().product::<u64>() as usize];
            let format = Format::by_ggml_type(info.kind.id).unwrap();
            format.decode_row(&written.tensor_bytes(info).unwrap(), &mut tensor);
            values.extend(tensor.iter().flat_map(|v| v.to_le_bytes()));
        }
        std::fs::write(to.with_extension("f32"), values).unwrap();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let package = root.join("target/gguf-package");
    assert!(package.is_dir(), "`cargo xtask setup` installs the package");
    let output = std::process::Command::new("python3")
        .arg(root.join("tests/gguf_package.py"))
        .arg(folder.path())
        .env("PYTHONPATH", package)
        .output()
        .expect("Python");
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert_eq!(said.trim(), format!("{} files", mix::ALL.len()));
}

/// Whole bits per element.
fn bits(format: Format) -> u16 {
    (8 * format.block_bytes() / format.block_len()) as u16
}

/// Every mixture, for models with few and many query heads per key head and layers, with products of their own and fused
/// ones, without experts and with eight.
#[test]
fn mixtures_choose_as_llama_quantize_does() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/mixtures/llama-quantize.txt"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| fields[i].parse().unwrap();
        let model = mix::Model {
            queries_per_key: number(0),
            experts: number(1),
            layers: number(2),
            tied: false,
            weighted: false,
        };
        let mix = mix::Mix::by_name(fields[3]).unwrap();
        assert_eq!(mix.file_type, number(4) as u64, "{line}");
        seen.insert(mix.name);
        let wanted: Vec<&str> = fields[6].split(',').collect();
        for layer in 0..model.layers {
            let want = wanted[layer.min(wanted.len() - 1)];
            let name = match fields[5] {
                of_model @ ("output" | "token_embd") => format!("{of_model}.weight"),
                of_layer => format!("blk.{layer}.{of_layer}.weight"),
            };
            let format = mix.format_of(&name, 256, &model);
            assert_eq!(format.name(), want, "{line}, layer {layer}");
        }
    }
    // What llama-quantize does not take without an importance matrix, or not at all.
    let other = ["f32", "f16", "bf16", "q2_k_s", "mxfp4"];
    assert_eq!(seen.len() + other.len(), mix::ALL.len(), "{seen:?}");
}

#[test]
fn rows_that_no_block_divides_get_shorter_blocks() {
    let model = mix::Model {
        layers: 1,
        tied: true,
        weighted: false,
        queries_per_key: 1,
        experts: 0,
    };
    for (mix, row, want) in [
        ("q4_k_m", 96, "q5_0"),
        ("q6_k", 32, "q8_0"),
        ("q2_k", 288, "iq4_nl"),
        ("q4_0", 40, "f16"),
    ] {
        let mix = mix::Mix::by_name(mix).unwrap();
        let format = mix.format_of("blk.0.attn_q.weight", row, &model);
        assert_eq!(format.name(), want, "{} of {row}", mix.name);
    }
}

/// Both kinds of file say the same.
#[test]
fn importance_is_read_from_both_kinds_of_file() {
    let folder = tempfile::tempdir().unwrap();
    let name = "blk.0.attn_q.weight";
    let mean: Vec<f32> = (0..256).map(|i| i as f32 / 7.0).collect();
    let (calls, old) = (4i32, folder.path().join("old.dat"));
    let mut bytes = 1i32.to_le_bytes().to_vec();
    bytes.extend((name.len() as i32).to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes.extend(calls.to_le_bytes());
    bytes.extend(256i32.to_le_bytes());
    bytes.extend(mean.iter().flat_map(|m| (m * 4.0).to_le_bytes()));
    std::fs::write(&old, &bytes).unwrap();

    let new = folder.path().join("new.gguf");
    let mut writer = GgufWriter::new("imatrix");
    writer.tensor(&format!("{name}.in_sum2"), Format::F32, &[1, 256]);
    writer.tensor(&format!("{name}.counts"), Format::F32, &[1, 1]);
    let mut out = std::fs::File::create(&new).unwrap();
    writer
        .write(&mut out, |tensor, out| match tensor.ends_with("counts") {
            true => out.write_all(&4f32.to_le_bytes()),
            false => mean
                .iter()
                .try_for_each(|m| out.write_all(&(m * 4.0).to_le_bytes())),
        })
        .unwrap();

    for path in [&old, &new] {
        let importance = Importance::open(path).unwrap();
        assert_eq!(importance.len(), 1);
        assert_eq!(importance.of(name, 256), Some(&mean[..]));
        assert_eq!(importance.of(name, 255), None);
        assert_eq!(importance.of("blk.0.attn_k.weight", 256), None);
    }
    for end in [0, 3, 20, bytes.len() - 1] {
        std::fs::write(&old, &bytes[..end]).unwrap();
        assert!(Importance::open(&old).is_err(), "{end} bytes");
    }

    let (from, to) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
    source(&from);
    let importance = Importance::open(&new).unwrap();
    let mix = mix::Mix::by_name("q4_k_m").unwrap();
    let report = file::write(&from, &to, mix, Some(&importance), &|_, _| {}).unwrap();
    assert_eq!(report.weighted, 1);
}

/// Each expert's rows are weighted by its own importances.
#[test]
fn experts_have_importances_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let name = "blk.0.ffn_gate_exps.weight";
    let values: Vec<f32> = (0..2 * 8 * 256).map(|i| value(name, i)).collect();
    let mean: Vec<f32> = (0..2 * 256).map(|i| (1 + i * i % 97) as f32).collect();
    let save = |to: &Path, tensor: &str, shape: &[usize], data: &[f32]| {
        let mut writer = GgufWriter::new("llama");
        writer.meta("llama.block_count", 1u64);
        writer.tensor(tensor, Format::F32, shape);
        let bytes: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = std::fs::File::create(to).unwrap();
        writer
            .write(&mut out, |_, out| out.write_all(&bytes))
            .unwrap();
    };
    // Both experts, and each as a matrix alone, with its importances in the older kind of file.
    let mix = mix::Mix::by_name("q4_k_s").unwrap();
    let encoded = |tensor: &str, shape: &[usize], values: &[f32], mean: &[f32]| {
        save(&path("a.gguf"), tensor, shape, values);
        let mut bytes = 1i32.to_le_bytes().to_vec();
        bytes.extend((tensor.len() as i32).to_le_bytes());
        bytes.extend(tensor.as_bytes());
        bytes.extend(1i32.to_le_bytes());
        bytes.extend((mean.len() as i32).to_le_bytes());
        bytes.extend(mean.iter().flat_map(|m| m.to_le_bytes()));
        std::fs::write(path("imatrix"), bytes).unwrap();
        let importance = Importance::open(&path("imatrix")).unwrap();
        let (from, to) = (path("a.gguf"), path("b.gguf"));
        let report = file::write(&from, &to, mix, Some(&importance), &|_, _| {}).unwrap();
        assert_eq!(report.weighted, 1);
        let file = Gguf::open(&to).unwrap();
        file.tensor_bytes(&file.tensors[0]).unwrap().to_vec()
    };
    let both = encoded(name, &[2, 8, 256], &values, &mean);
    let one = |e: usize| {
        let (v, m) = (&values[e * 2048..][..2048], &mean[e * 256..][..256]);
        encoded("blk.0.ffn_gate.weight", &[8, 256], v, m)
    };
    assert!(both == [one(0), one(1)].concat());
    // Other importances would have given other codes.
    let swapped = encoded(
        "blk.0.ffn_gate.weight",
        &[8, 256],
        &values[..2048],
        &mean[256..],
    );
    assert!(swapped != one(0));
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("a.gguf");
    source(&from);
    let mix = mix::Mix::by_name("q8_0").unwrap();
    let out = folder.path().join("missing/b.gguf");
    let error = file::write(&from, &out, mix, None, &|_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A random model is the same in memory and in a file.
#[test]
fn random_models_are_saved_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.gguf");
    for (shape, format) in [
        ("llama-tiny", "q4_k_m"),
        ("llama-tiny", "iq2_xs"),
        ("qwen3moe-tiny", "q4_0"),
        ("deepseek-tiny", "q8_0"),
    ] {
        rusty_loader::random::save(shape, format, &path).unwrap();
        let saved = rusty_loader::open(&path).unwrap();
        let made = rusty_loader::random::model(shape, format).unwrap();
        assert_eq!(saved.arch(), made.arch());
        assert_eq!(saved.tensor_names(), made.tensor_names());
        for name in made.tensor_names() {
            let (a, b) = (saved.tensor(&name).unwrap(), made.tensor(&name).unwrap());
            assert_eq!((a.format, &a.shape), (b.format, &b.shape), "{name}");
            assert!(*a.bytes == *b.bytes, "{name}");
        }
        for key in [
            keys::HEAD_COUNT,
            keys::ROPE_LAYOUT,
            keys::TIE_WORD_EMBEDDINGS,
        ] {
            assert_eq!(saved.meta(key), made.meta(key), "{key}");
        }
    }
}
