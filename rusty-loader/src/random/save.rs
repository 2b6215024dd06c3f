//! Random models as files, for measuring what begins with a file.

use std::path::Path;

use super::{Described, Pattern, fill_vector};
use crate::gguf::write::GgufWriter;
use crate::meta::keys;
use crate::{PageBuffer, Result};

/// Canonical keys that a GGUF states in another way or not at all.
const IMPLIED: [&str; 5] = [
    keys::ROPE_LAYOUT,
    keys::HIDDEN_ACT,
    keys::EOS_TOKEN_IDS,
    keys::TIE_WORD_EMBEDDINGS,
    keys::NAME,
];

/// Writes the model that [`model`](super::model) makes of the same names as a GGUF, one tensor at a time.
///
/// # Errors
/// As there, or where the file cannot be written.
pub fn save(shape: &str, format: &str, path: &Path) -> Result<()> {
    let described = Described::new(shape, format)?;
    let found = described.shape;
    let mut writer = GgufWriter::new(found.arch);
    writer.meta(keys::NAME, found.name);
    // What llama.cpp writes where there is no vocabulary, and wants to read.
    writer.meta("tokenizer.ggml.model", "none");
    let mut meta: Vec<_> = found.meta().into_iter().collect();
    meta.sort_by(|a, b| a.0.cmp(&b.0));
    for (key, value) in meta {
        if !IMPLIED.contains(&key.as_str()) {
            writer.meta(&format!("{}.{key}", found.arch), value);
        }
    }
    for (name, dims, format) in &described.tensors {
        writer.tensor(name, *format, dims);
    }
    let mut next = described.tensors.iter();
    writer.save(path, |_, out| {
        let (name, dims, format) = next.next().ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let len = format.row_bytes(dims.iter().product());
        let mut bytes = PageBuffer::new(len, name).map_err(std::io::Error::other)?;
        match dims[..] {
            [_] => fill_vector(name, &mut bytes),
            _ => Pattern::new(name, *format).fill(&mut bytes),
        }
        out.write_all(&bytes)
    })
}
