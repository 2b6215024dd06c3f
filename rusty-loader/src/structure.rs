//! Whether a file's sizes and tensors can belong together, whatever the architecture.
//!
//! The graph demands exactly the tensors it needs; here only what holds for every decoder is checked, so
//! that a corrupt file is refused when it is opened, by arithmetic on its header alone.

use std::path::Path;

use crate::meta::keys;
use crate::{Error, Meta, ModelFile, Result};

/// A size that a tensor's dimension must equal.
#[derive(Clone, Copy)]
enum Size {
    Width,
    Queries,
    Keys,
    Values,
    Attended,
    Inner,
}

/// Roles inside a block: tensor, its shape, and what must stand beside it.
const ROLES: &[(&str, &[Size], &[&str])] = &[
    ("attn_norm", &[Size::Width], &[]),
    ("ffn_norm", &[Size::Width], &[]),
    ("attn_q", &[Size::Queries, Size::Width], &["attn_output"]),
    ("attn_k", &[Size::Keys, Size::Width], &["attn_q", "attn_v"]),
    ("attn_v", &[Size::Values, Size::Width], &["attn_k"]),
    ("attn_output", &[Size::Width, Size::Attended], &[]),
    ("ffn_gate", &[Size::Inner, Size::Width], &["ffn_up"]),
    ("ffn_up", &[Size::Inner, Size::Width], &["ffn_down"]),
    ("ffn_down", &[Size::Width, Size::Inner], &["ffn_up"]),
];

struct Sizes {
    vocab: u64,
    width: u64,
    inner: u64,
    heads: u64,
    kv_heads: u64,
    key: u64,
    value: u64,
}

impl Sizes {
    fn of(&self, size: Size) -> u64 {
        match size {
            Size::Width => self.width,
            Size::Queries => self.heads * self.key,
            Size::Keys => self.kv_heads * self.key,
            Size::Values => self.kv_heads * self.value,
            Size::Attended => self.heads * self.value,
            Size::Inner => self.inner,
        }
    }
}

/// Refuses a model whose metadata and tensors contradict each other.
///
/// # Errors
/// [`Error::Malformed`] naming the key or tensor.
pub(crate) fn check(path: &Path, file: &dyn ModelFile) -> Result<()> {
    let inspect = || -> Result<(), String> {
        check_rope(file)?;
        let layers = required(file, keys::BLOCK_COUNT)?;
        required(file, keys::CONTEXT_LENGTH)?;
        let sizes = sizes(file)?;
        check_shape(file, "token_embd.weight", &[sizes.vocab, sizes.width])?;
        check_shape(file, "output.weight", &[sizes.vocab, sizes.width])?;
        if file.tensor("token_embd.weight").is_none() {
            return Err("tensor 'token_embd.weight' is missing".into());
        }
        (0..layers).try_for_each(|layer| check_block(file, layer, layers, &sizes))
    };
    inspect().map_err(|reason| Error::malformed(path, reason))
}

fn sizes(file: &dyn ModelFile) -> Result<Sizes, String> {
    let width = required(file, keys::EMBEDDING_LENGTH)?;
    let heads = required(file, keys::HEAD_COUNT)?;
    let kv_heads = optional(file, keys::HEAD_COUNT_KV)?.unwrap_or(heads);
    if kv_heads > heads || heads % kv_heads != 0 {
        return Err(format!(
            "{} is {kv_heads}, which does not divide the {heads} query heads",
            keys::HEAD_COUNT_KV
        ));
    }
    let key = match optional(file, keys::KEY_LENGTH)? {
        Some(key) => key,
        None if width % heads == 0 => width / heads,
        None => {
            return Err(format!(
                "{} is {heads}, which does not divide the width {width}",
                keys::HEAD_COUNT
            ));
        }
    };
    Ok(Sizes {
        vocab: required(file, keys::VOCAB_SIZE)?,
        width,
        inner: required(file, keys::FEED_FORWARD_LENGTH)?,
        heads,
        kv_heads,
        key,
        value: optional(file, keys::VALUE_LENGTH)?.unwrap_or(key),
    })
}

fn check_block(file: &dyn ModelFile, layer: u64, layers: u64, sizes: &Sizes) -> Result<(), String> {
    let name = |role: &str| format!("blk.{layer}.{role}.weight");
    let present = |role: &str| file.tensor(&name(role)).is_some();
    if !present("attn_norm") && !present("attn_output") {
        return Err(format!(
            "{} is {layers}, but tensors of block {layer} are missing",
            keys::BLOCK_COUNT
        ));
    }
    // Without separate keys this is another kind of attention (fused, latent), which the graph checks.
    let separate = present("attn_k");
    for &(role, shape, companions) in ROLES {
        let attention = role.starts_with("attn_") && role != "attn_norm";
        if !present(role) || attention && !separate {
            continue;
        }
        if let Some(missing) = companions.iter().find(|c| !present(c)) {
            return Err(format!("tensor '{}' is missing", name(missing)));
        }
        let shape: Vec<u64> = shape.iter().map(|&s| sizes.of(s)).collect();
        check_shape(file, &name(role), &shape)?;
    }
    Ok(())
}

fn check_shape(file: &dyn ModelFile, name: &str, expected: &[u64]) -> Result<(), String> {
    let Some(view) = file.tensor(name) else {
        return Ok(());
    };
    if view
        .shape
        .iter()
        .map(|&d| d as u64)
        .eq(expected.iter().copied())
    {
        Ok(())
    } else {
        Err(format!(
            "tensor '{name}' has the shape {:?}; the metadata asks for {expected:?}",
            view.shape
        ))
    }
}

fn check_rope(file: &dyn ModelFile) -> Result<(), String> {
    let positive = [
        keys::ROPE_FREQ_BASE,
        keys::ROPE_SCALING_FACTOR,
        keys::ROPE_SCALING_ATTN_FACTOR,
        keys::ROPE_SCALING_LOW_FREQ_FACTOR,
        keys::ROPE_SCALING_HIGH_FREQ_FACTOR,
    ];
    for key in positive {
        match file.meta(key).map(|m| (m, m.as_f64())) {
            None => {}
            Some((_, Some(v))) if v.is_finite() && v > 0.0 => {}
            Some((m, _)) => return Err(format!("{key} is {m}; it must be a positive number")),
        }
    }
    Ok(())
}

fn required(file: &dyn ModelFile, key: &str) -> Result<u64, String> {
    optional(file, key)?.ok_or_else(|| format!("{key} is missing"))
}

/// A positive size below 2^32, so that products of two cannot overflow.
fn optional(file: &dyn ModelFile, key: &str) -> Result<Option<u64>, String> {
    match file.meta(key) {
        None => Ok(None),
        Some(Meta::U64(v)) if (1..1 << 32).contains(v) => Ok(Some(*v)),
        Some(other) => Err(format!("{key} is {other}; it must be a positive size")),
    }
}
