//! A random model with a made-up vocabulary of the size that its shape has: what opening a model and its first token take
//! hangs on that, too.

use rusty_loader::gguf::Gguf;
use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::{Format, Meta};
use std::path::Path;

/// Writes a model of a shape and a format as a GGUF with as many made-up tokens as it has rows for: the alphabet of bytes,
/// all pairs of it, and triples. The token `!!` is number 256.
///
/// # Panics
/// Where a file cannot be written.
pub fn save(shape: &str, format: &str, path: &Path) {
    let plain = path.with_extension("plain");
    rusty_loader::random::save(shape, format, &plain).expect("saved");
    let file = Gguf::open(&plain).expect("opens");
    let table = file.tensors.iter().find(|t| t.name == "token_embd.weight");
    let (tokens, merges) = tokens(table.expect("a table").shape[0] as usize);
    let list = |all: Vec<String>| all.iter().map(|t| Meta::from(t.as_str())).collect::<Meta>();
    let architecture = file.meta.get("general.architecture").and_then(Meta::as_str);
    let mut writer = GgufWriter::new(architecture.expect("an architecture"));
    writer.copy_keys(&file, &["tokenizer.ggml.model"]);
    writer.meta("tokenizer.ggml.model", "gpt2");
    writer.meta("tokenizer.ggml.pre", "qwen2");
    writer.meta("tokenizer.ggml.tokens", list(tokens));
    writer.meta("tokenizer.ggml.merges", list(merges));
    for t in &file.tensors {
        let shape: Vec<usize> = t.shape.iter().map(|d| *d as usize).collect();
        let format = Format::by_ggml_type(t.kind.id).expect("a format");
        writer.tensor(&t.name, format, &shape);
    }
    let mut next = file.tensors.iter();
    let mut data = |_: &str, out: &mut dyn std::io::Write| {
        let tensor = next.next().and_then(|t| file.tensor_bytes(t));
        out.write_all(&tensor.expect("its bytes"))
    };
    writer.save(path, &mut data).expect("saved");
    drop(file);
    std::fs::remove_file(plain).expect("the plain model goes");
}

/// So many tokens, and the merges that make them.
fn tokens(count: usize) -> (Vec<String>, Vec<String>) {
    let (mut tokens, mut merges) = (alphabet(), vec![]);
    let letters = tokens.clone();
    for known in 0.. {
        let left = tokens[known].clone();
        for right in &letters {
            if tokens.len() < count {
                merges.push(format!("{left} {right}"));
                tokens.push(format!("{left}{right}"));
            }
        }
        if tokens.len() >= count {
            break;
        }
    }
    (tokens, merges)
}

/// The characters that stand for bytes in byte-level vocabularies (GPT-2's `bytes_to_unicode`).
fn alphabet() -> Vec<String> {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let own = (0..=255u8).filter(printable).map(char::from);
    let others = (0..=255u8).filter(|b| !printable(b)).zip(256u32..);
    let others = others.filter_map(|(_, c)| char::from_u32(c));
    own.chain(others).map(String::from).collect()
}
