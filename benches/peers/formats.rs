//! Whether llama.cpp reads what Rusty writes: every block format, and every format and mixture that `rusty quantize` makes
//! of a model of floats. Both must answer alike.

use super::{Job, check, own};
use rusty_loader::formats;
use rusty_loader::quantize::{file, mix};
use std::path::Path;

const SHAPE: &str = "qwen3-tiny";

/// Checks them; `peer` is llama.cpp.
pub fn are_read(threads: usize, peer: impl Fn(&Job) -> super::Reply) {
    let folder = tempfile::tempdir().expect("a folder");
    let agree = |name: &str, path: &Path| {
        let job = Job {
            shape: SHAPE.into(),
            format: name.into(),
            file: path.into(),
            batch: 1,
            threads,
            ..Job::default()
        };
        let cosine = check::answers_agree(name, &job, own::process, &peer);
        eprintln!("{name:<24} cosine of the logits {cosine:.6}");
    };
    let path = folder.path().join("blocks.gguf");
    for codec in formats::ALL {
        rusty_loader::random::save(SHAPE, codec.name, &path).expect("a file");
        agree(codec.name, &path);
    }
    let floats = folder.path().join("floats.gguf");
    rusty_loader::random::save(SHAPE, "f16", &floats).expect("a file");
    for mix in mix::ALL {
        file::write(&floats, &path, mix, None, &|_, _| {}).expect(mix.name);
        agree(&format!("quantized to {}", mix.name), &path);
    }
}
