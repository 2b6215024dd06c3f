//! Options of GPUs, on the software Vulkan device.

use crate::answers::floats;
use crate::command::{command, failure, said, stdout};
use rusty_loader::Format;
use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::meta::keys;
use safetensors::SafeTensors;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// An empty folder of this name.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("removed");
    }
    folder
}

/// Whether the device is there.
pub(crate) fn has_llvmpipe() -> bool {
    let has = stdout(&["devices"]).contains("llvmpipe");
    if !has {
        println!("runs on llvmpipe, which this machine does not have");
    }
    has
}

/// Logits of a model on the device, and what is said at this level.
pub(crate) fn logits(
    model: &str,
    cache: &Path,
    options: &[&str],
    level: &str,
) -> (Vec<f32>, String) {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().join("logits.safetensors");
    let path = out.to_str().expect("UTF-8");
    let tokens = "5,9,40,3,77,21,8,60,12,33";
    let words = ["logits", model, "--tokens", tokens, "--out", path];
    // Where keys are not rounded, neither are differences.
    let device = ["--device", "vulkan", "--kv", "f32"];
    let arguments = [&words[..], &device[..], options].concat();
    let (_, errors) = said(
        command(&arguments)
            .env("RUSTY_CACHE", cache)
            .env("RUST_LOG", level),
    );
    let written = fs::read(&out).expect("written");
    let written = SafeTensors::deserialize(&written).expect("safetensors");
    let logits = floats(written.tensor("logits").expect("logits").data());
    (logits, errors)
}

const VOCAB: usize = 512;

/// Writes a model of one layer that reads more than 16 MiB through gate and up, so that cuts of these are worth measuring.
fn write_large(path: &Path) {
    const WIDTH: usize = 256;
    const INNER: usize = 9216;
    let mut writer = GgufWriter::new("llama");
    writer.meta("tokenizer.ggml.model", "none");
    for (key, size) in [
        (keys::BLOCK_COUNT, 1),
        (keys::CONTEXT_LENGTH, 256),
        (keys::EMBEDDING_LENGTH, WIDTH),
        (keys::FEED_FORWARD_LENGTH, INNER),
        (keys::HEAD_COUNT, 8),
        (keys::HEAD_COUNT_KV, 2),
        (keys::KEY_LENGTH, 32),
        (keys::VALUE_LENGTH, 32),
        (keys::VOCAB_SIZE, VOCAB),
    ] {
        writer.meta(&format!("llama.{key}"), size as u64);
    }
    writer.meta(&format!("llama.{}", keys::RMS_EPSILON), 1e-5);
    writer.meta(&format!("llama.{}", keys::ROPE_FREQ_BASE), 1e4);
    let tensors: [(&str, &[usize]); 11] = [
        ("token_embd", &[VOCAB, WIDTH]),
        ("blk.0.attn_norm", &[WIDTH]),
        ("blk.0.attn_q", &[256, WIDTH]),
        ("blk.0.attn_k", &[64, WIDTH]),
        ("blk.0.attn_v", &[64, WIDTH]),
        ("blk.0.attn_output", &[WIDTH, 256]),
        ("blk.0.ffn_norm", &[WIDTH]),
        ("blk.0.ffn_gate", &[INNER, WIDTH]),
        ("blk.0.ffn_up", &[INNER, WIDTH]),
        ("blk.0.ffn_down", &[WIDTH, INNER]),
        ("output_norm", &[WIDTH]),
    ];
    for (name, shape) in tensors {
        writer.tensor(&format!("{name}.weight"), Format::F32, shape);
    }
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1u32 << 24) as f32 - 0.5) * 0.1
    };
    let mut next = tensors.into_iter();
    let written = writer.save(path, |_, out| {
        let (name, shape) = next.next().expect("a tensor");
        let elements: usize = shape.iter().product();
        let values = (0..elements).map(|_| match name.contains("norm") {
            true => 1.0f32,
            false => random(),
        });
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        out.write_all(&bytes)
    });
    written.expect("written");
}

/// Without choices being measured, none is kept; what is expected is the same as with them.
#[test]
fn nothing_is_measured_where_that_is_not_wanted() {
    if !has_llvmpipe() {
        return;
    }
    let cache = folder("tuning-cache");
    let files = tempfile::tempdir().expect("folder");
    let model = files.path().join("large.gguf");
    write_large(&model);
    let model = model.to_str().expect("UTF-8");
    let level = "warn,rusty_compiler=debug";
    let (guessed, errors) = logits(model, &cache, &["--no-autotune"], level);
    assert!(!errors.contains("tuned"), "{errors}");
    assert!(!cache.join("tuned").exists());
    let (measured, errors) = logits(model, &cache, &[], level);
    // Machines on which little could be tried in the time do not try.
    let kept = cache.join("tuned").exists();
    let tried = errors.contains("tuned");
    assert!(tried && (kept || errors.contains("too slow")), "{errors}");
    let most = |logits: &[f32]| {
        let rows = logits.chunks_exact(VOCAB);
        let best = rows.map(|row| (0..VOCAB).max_by(|a, b| row[*a].total_cmp(&row[*b])));
        best.collect::<Vec<_>>()
    };
    assert_eq!(guessed.len(), 10 * VOCAB);
    assert_eq!(most(&measured), most(&guessed));
}

/// The tokens of an answer within so much of the device's memory and what is said, or why there is none.
fn answer(cache: &Path, memory: &[&str]) -> Result<(Value, String), String> {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo/model.gguf");
    let words = ["run", "Find users older than 30", "-m", model, "-n", "6"];
    let options = ["--ctx", "64", "--device", "vulkan", "--json"];
    let arguments = [&words[..], &options[..], memory].concat();
    let mut command = command(&arguments);
    let output = command.env("RUSTY_CACHE", cache).output().expect("starts");
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    if !output.status.success() {
        assert!(!errors.contains("panicked"), "{errors}");
        return Err(errors);
    }
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    Ok((answer["tokens"].clone(), errors))
}

/// What does not fit streams, and answers are the same; too little is said, and so is what is no amount.
#[test]
fn answers_are_the_same_in_little_memory() {
    if !has_llvmpipe() {
        return;
    }
    const STREAMS: &str = "stream from the file";
    let cache = folder("memory-cache");
    let (want, errors) = answer(&cache, &[]).expect("an answer");
    assert!(want.as_array().is_some_and(|tokens| tokens.len() == 6));
    assert!(!errors.contains(STREAMS), "{errors}");
    let within = |megabytes: u32| {
        let memory = format!("{megabytes}MB");
        answer(&cache, &["--gpu-memory", &memory])
    };
    // The most megabytes that are too few for all.
    let is_enough = |mb: u32| matches!(within(mb), Ok((_, errors)) if !errors.contains(STREAMS));
    let (mut few, mut enough) = (1, 256);
    assert!(is_enough(enough));
    while enough - few > 1 {
        let middle = (few + enough) / 2;
        match is_enough(middle) {
            true => enough = middle,
            false => few = middle,
        }
    }
    let (tokens, errors) = within(few).expect("an answer");
    assert!(errors.contains(STREAMS), "{few} MB: {errors}");
    assert_eq!(tokens, want);
    // Weights leave an adapter that is named its room, and stream for it.
    let memory = format!("{enough}MB");
    let sql = ["--adapter", "sql", "-v"];
    let (want, _) = answer(&cache, &sql).expect("an answer");
    assert_ne!(want, tokens);
    let (have, errors) = answer(&cache, &[&sql[..], &["--gpu-memory", &memory]].concat())
        .expect("an answer in little memory");
    assert!(errors.contains(STREAMS), "{enough} MB: {errors}");
    assert_eq!(have, want);
    let errors = within(1).expect_err("too little");
    assert!(errors.contains("out of memory"), "{errors}");
}

#[test]
fn amounts_of_memory_that_are_none_are_refused() {
    for amount in ["much", "6 apples", "0", "GB"] {
        let (code, text) = failure(&["run", "Hi", "--gpu-memory", amount]);
        assert!(code == 2 && text.contains("5.5GiB"), "{amount}: {text}");
    }
}
