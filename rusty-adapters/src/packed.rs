//! Rusty's own adapter file: the tables of a slot as kernels read them, in a safetensors container.
//!
//! Opening one maps it: nothing is converted, so an adapter is ready in the time that its header takes. This is how
//! prepared adapters are kept ([`crate::Cache`]), and how compressed ones are stored, whose tables may be deflated
//! (RFC 1951) and are then unpacked into memory. Tensors are `SITE.a`, `SITE.b` (panels; both
//! [interleaved](rusty_compiler::interleaving) where they are Q8_0), `SITE.scale`,
//! `SITE.mix` (of blocks), `SITE.gain_low`, `SITE.gain_in`, `SITE.gain_out`, `SITE.bias`, `embedding.*` and `prefix.*`; the header's `rusty` entry says how
//! tables are encoded. Rows are in the order of the model's file, which the header states, because rotary pairs lie
//! differently in checkpoints and in some GGUF files.
//!
//! The tensor `sums` holds checksums of that entry's text and of the other tensors, in the order of their names. What the cache
//! opens is held against them, which reads it whole; a file of somebody's own is not.

mod read;
mod write;

pub(crate) use read::{open, open_whole};
pub use write::pack;

use crate::base_model::{Base, EMBEDDING};
use rusty_graph::{RopeLayout, SiteId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Entry of the header.
const KEY: &str = "rusty";
/// Tensor of the checksums.
const SUMS: &str = "sums";
/// Version of the format.
pub(crate) const VERSION: u32 = 6;

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    name: String,
    /// Whether rotary pairs of the model's file are interleaved.
    interleaved: bool,
    /// What the model's weights were, where the adapter is relative to them.
    relative_to: Option<u64>,
    tables: BTreeMap<String, TableEntry>,
    sites: BTreeMap<String, SiteEntry>,
    /// Scales of the embedding's low ranks.
    embedding_scales: Vec<f32>,
    prefix_tokens: u32,
}

#[derive(Serialize, Deserialize)]
struct SiteEntry {
    rank: u32,
    /// Whether its `A` is the identity.
    identity: bool,
    /// Blocks of outputs and inputs that its factors act on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blocks: Option<(u32, u32)>,
}

#[derive(Serialize, Deserialize)]
struct TableEntry {
    format: String,
    rows: usize,
    columns: usize,
    deflated: bool,
    /// The tensor whose bytes it has in common with another table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
}

fn interleaved(base: &Base<'_>) -> bool {
    let mut ropes = base.graph.ropes.iter();
    ropes.any(|r| r.layout == RopeLayout::Interleaved)
}

/// Tells models of the same shapes apart, by the first bytes of the embedding and of all weights at sites but those of experts and heads: what was trained or merged
/// differs from its base in some of them only.
fn weights(base: &Base<'_>) -> Option<u64> {
    let file = base.file?;
    let mut hash = Xxh3::new();
    let sites = base.graph.sites.iter().enumerate();
    let sites = sites.filter(|(_, site)| !site.grouped);
    let at_sites = sites.map(|(site, _)| base.site_weight(SiteId(site as u32)));
    for name in at_sites.chain([Some(EMBEDDING.into())]) {
        let bytes = file.tensor(&name?)?.bytes;
        hash.update(&bytes[..bytes.len().min(1024)]);
    }
    Some(hash.digest())
}

/// Whether a file is one of these.
pub(crate) fn is_packed(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|e| e == "safetensors")
}

/// Tells a tensor, or the text of an entry, from a damaged one, and from one of another name. XXH3 (<https://xxhash.com>) hashes on each
/// core nearly as fast as memory is read: some milliseconds for the 50 MB of a large adapter.
fn checksum(name: &str, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, xxh3_64(name.as_bytes()))
}
