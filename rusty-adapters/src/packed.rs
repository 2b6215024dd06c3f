//! Rusty's own adapter file: the tables of a slot as kernels read them, in a safetensors container.
//!
//! Opening one maps it: nothing is converted, so an adapter is ready in the time that its header takes. This is how
//! prepared adapters are kept ([`crate::Cache`]), and how compressed ones are stored, whose tables may be deflated
//! (RFC 1951) and are then unpacked into memory. Tensors are `SITE.a`, `SITE.b` (panels; both
//! [interleaved](rusty_compiler::interleaving) where they are Q8_0), `SITE.scale`,
//! `SITE.gain_in`, `SITE.gain_out`, `SITE.bias`, `embedding.*` and `prefix.*`; the header's `rusty` entry says how
//! tables are encoded. Rows are in the order of the model's file, which the header states, because rotary pairs lie
//! differently in checkpoints and in some GGUF files.

use crate::base_model::Base;
use crate::owned_tensor::OwnedTensor;
use crate::{Error, Result};
use rusty_compiler::delta_table::PANEL;
use rusty_compiler::interleaving::Factor;
use rusty_compiler::{
    DeltaTable, EmbeddingDelta, KvPrefix, LowRankRows, PrefixLayer, SiteDelta, SlotData, SlotShape,
};
use rusty_graph::{RopeLayout, SiteId};
use rusty_loader::output_file::write_whole;
use rusty_loader::{Format, SharedBytes};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

/// Entry of the header.
const KEY: &str = "rusty";
/// Version of the format.
pub(crate) const VERSION: u32 = 2;

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    name: String,
    /// Whether rotary pairs of the model's file are interleaved.
    interleaved: bool,
    /// What the model's weights were, where the adapter is relative to them.
    relative_to: Option<u64>,
    tables: BTreeMap<String, TableEntry>,
    /// Rank of each site, and whether its `A` is the identity.
    sites: BTreeMap<String, (u32, bool)>,
    /// Scales of the embedding's low ranks.
    embedding_scales: Vec<f32>,
    prefix_tokens: u32,
}

#[derive(Serialize, Deserialize)]
struct TableEntry {
    format: String,
    rows: usize,
    columns: usize,
    deflated: bool,
}

fn interleaved(base: &Base<'_>) -> bool {
    let mut ropes = base.graph.ropes.iter();
    ropes.any(|r| r.layout == RopeLayout::Interleaved)
}

/// Whether an adapter holds what was computed from the model's weights.
fn is_relative(adapter: &SlotData) -> bool {
    let mut sites = adapter.sites.iter();
    sites.any(|(_, d)| d.gain_in.is_some() || d.gain_out.is_some() || d.bias.is_some())
}

/// Tells models of the same shapes apart, by the first bytes of a weight.
fn weights(base: &Base<'_>) -> Option<u64> {
    let name = base.site_weight(SiteId(0))?;
    let view = base.file?.tensor(name)?;
    let mut hasher = DefaultHasher::new();
    view.bytes[..view.bytes.len().min(4096)].hash(&mut hasher);
    Some(hasher.finish())
}

/// Writes an adapter that was prepared for `base`; with `deflate`, each table that becomes smaller is deflated.
///
/// # Errors
/// The file cannot be written.
pub fn pack(adapter: &SlotData, base: &Base<'_>, out: &Path, deflate: bool) -> Result<()> {
    let mut file = Writer::new(adapter, base, deflate);
    for (id, delta) in &adapter.sites {
        file.site(&base.graph.site(*id).name, delta);
    }
    if let Some(embedding) = &adapter.embedding {
        file.optional("embedding.table", embedding.table.as_ref());
        file.optional("embedding.prompt", embedding.prompt.as_ref());
        for (i, low) in embedding.low_ranks.iter().enumerate() {
            file.table(format!("embedding.{i}.a"), &low.a);
            file.table(format!("embedding.{i}.b"), &low.b);
            file.header.embedding_scales.push(low.scale);
        }
    }
    if let Some(prefix) = &adapter.prefix {
        file.header.prefix_tokens = prefix.tokens;
        for (i, layer) in prefix.layers.iter().enumerate() {
            file.floats(format!("prefix.{i}.keys"), &layer.keys);
            file.floats(format!("prefix.{i}.values"), &layer.values);
        }
    }
    file.save(out)
}

struct Writer {
    header: Header,
    tensors: BTreeMap<String, OwnedTensor>,
    deflate: bool,
}

impl Writer {
    fn new(adapter: &SlotData, base: &Base<'_>, deflate: bool) -> Self {
        Self {
            header: Header {
                version: VERSION,
                name: adapter.name.clone(),
                interleaved: interleaved(base),
                relative_to: is_relative(adapter).then(|| weights(base)).flatten(),
                tables: BTreeMap::new(),
                sites: BTreeMap::new(),
                embedding_scales: vec![],
                prefix_tokens: 0,
            },
            tensors: BTreeMap::new(),
            deflate,
        }
    }

    fn site(&mut self, name: &str, delta: &SiteDelta) {
        let identity = delta.rank > 0 && delta.a.is_none();
        let entry = (delta.rank, identity);
        self.header.sites.insert(name.into(), entry);
        self.optional(&format!("{name}.a"), delta.a.as_ref());
        self.optional(&format!("{name}.b"), delta.b.as_ref());
        self.floats(format!("{name}.scale"), &delta.scale);
        for (end, vector) in [
            ("gain_in", &delta.gain_in),
            ("gain_out", &delta.gain_out),
            ("bias", &delta.bias),
        ] {
            if let Some(vector) = vector {
                self.floats(format!("{name}.{end}"), vector);
            }
        }
    }

    fn optional(&mut self, name: &str, table: Option<&DeltaTable>) {
        if let Some(table) = table {
            self.table(name.into(), table);
        }
    }

    fn table(&mut self, name: String, table: &DeltaTable) {
        let stored = table.bytes();
        let packed = self
            .deflate
            .then(|| miniz_oxide::deflate::compress_to_vec(stored, 9))
            .filter(|packed| packed.len() < stored.len());
        let entry = TableEntry {
            format: table.format().name().into(),
            rows: table.rows(),
            columns: table.columns(),
            deflated: packed.is_some(),
        };
        self.header.tables.insert(name.clone(), entry);
        let bytes = packed.unwrap_or_else(|| stored.to_vec());
        let tensor = OwnedTensor {
            dtype: Dtype::U8,
            shape: vec![bytes.len()],
            bytes,
        };
        self.tensors.insert(name, tensor);
    }

    fn floats(&mut self, name: String, values: &[f32]) {
        self.tensors.insert(name, OwnedTensor::floats(values));
    }

    fn save(&self, out: &Path) -> Result<()> {
        let wrong = |e: String| Error::malformed(out, e);
        let header = serde_json::to_string(&self.header).map_err(|e| wrong(e.to_string()))?;
        let metadata = [(KEY.to_string(), header)].into();
        write_whole(out, |part| {
            safetensors::serialize_to_file(&self.tensors, Some(metadata), part)
                .map_err(|e| wrong(e.to_string()))
        })
    }
}

/// Whether a file is one of these.
pub(crate) fn is_packed(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|e| e == "safetensors")
}

/// Opens a packed adapter for a model.
///
/// # Errors
/// The file is malformed, was made for a model of another file order, or does not fit.
pub(crate) fn open(path: &Path, base: &Base<'_>) -> Result<SlotData> {
    let bytes = SharedBytes::map_file(path)?;
    let reader = Reader::new(path, &bytes)?;
    if reader.header.interleaved != interleaved(base) {
        let what = "an adapter packed for a model whose file orders rotary pairs differently";
        return Err(Error::unsupported(path, what));
    }
    let relative_to = reader.header.relative_to;
    if relative_to.is_some() && weights(base).is_some_and(|own| relative_to != Some(own)) {
        let what = "an adapter packed for other weights than this model's";
        return Err(Error::unsupported(path, what));
    }
    let graph = base.graph;
    let shape = SlotShape::of(graph);
    let adapter = SlotData {
        name: reader.header.name.clone(),
        sites: reader.sites(base)?,
        embedding: reader.embedding(base.graph.vocab as usize * shape.width as usize)?,
        prefix: reader.prefix(base.graph.kv.len())?,
    };
    adapter
        .check(shape)
        .map_err(|m| Error::malformed(path, format!("at {}: {}", m.place, m.reason)))?;
    Ok(adapter)
}

struct Reader<'a> {
    path: &'a Path,
    bytes: &'a SharedBytes,
    tensors: SafeTensors<'a>,
    header: Header,
}

impl<'a> Reader<'a> {
    fn new(path: &'a Path, bytes: &'a SharedBytes) -> Result<Self> {
        let wrong = |e: String| Error::malformed(path, e);
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| wrong(e.to_string()))?;
        let entry = metadata.metadata().as_ref().and_then(|m| m.get(KEY));
        let entry = entry.ok_or_else(|| {
            wrong("is no packed adapter; give the folder that holds adapter_config.json".into())
        })?;
        let header: Header = serde_json::from_str(entry).map_err(|e| wrong(e.to_string()))?;
        if header.version != VERSION {
            let what = format!("version {} of packed adapters", header.version);
            return Err(Error::unsupported(path, what));
        }
        Ok(Self {
            path,
            bytes,
            tensors: SafeTensors::deserialize(bytes).map_err(|e| wrong(e.to_string()))?,
            header,
        })
    }

    fn wrong(&self, name: &str, reason: &str) -> Error {
        Error::malformed(self.path, format!("tensor '{name}' {reason}"))
    }

    fn stored(&self, name: &str) -> Result<SharedBytes> {
        let missing = || self.wrong(name, "is missing");
        let view = self.tensors.tensor(name).map_err(|_| missing())?;
        let from = view.data().as_ptr() as usize - self.bytes.as_ptr() as usize;
        let range = from..from + view.data().len();
        self.bytes.slice(range).ok_or_else(missing)
    }

    /// A table of at most `most` elements, which is what the model has room for.
    fn table(&self, name: &str, factor: Option<Factor>, most: usize) -> Result<Option<DeltaTable>> {
        let Some(entry) = self.header.tables.get(name) else {
            return Ok(None);
        };
        let format = Format::by_name(&entry.format)
            .ok_or_else(|| self.wrong(name, "has an unknown format"))?;
        let mut bytes = self.stored(name)?;
        if entry.deflated {
            let limit = DeltaTable::stored_bytes(format, factor, entry.rows, entry.columns)
                .filter(|_| entry.rows.saturating_mul(entry.columns) <= most)
                .ok_or_else(|| self.wrong(name, "states sizes that cannot be"))?;
            let unpacked = miniz_oxide::inflate::decompress_to_vec_with_limit(&bytes, limit)
                .map_err(|_| self.wrong(name, "cannot be inflated"))?;
            bytes = SharedBytes::from_vec(unpacked);
        }
        let table = DeltaTable::new(format, factor, entry.rows, entry.columns, bytes);
        let table = table.ok_or_else(|| self.wrong(name, "has not the size its header states"))?;
        Ok(Some(table))
    }

    fn floats(&self, name: &str) -> Result<Option<Arc<[f32]>>> {
        if self.tensors.tensor(name).is_err() {
            return Ok(None);
        }
        let stored = self.stored(name)?;
        let (words, rest) = stored.as_chunks::<4>();
        let values: Arc<[f32]> = words.iter().map(|w| f32::from_le_bytes(*w)).collect();
        match rest.is_empty() && values.iter().all(|v| v.is_finite()) {
            true => Ok(Some(values)),
            false => Err(self.wrong(name, "holds values that are not finite")),
        }
    }

    fn sites(&self, base: &Base<'_>) -> Result<Vec<(SiteId, SiteDelta)>> {
        let mut sites = Vec::with_capacity(self.header.sites.len());
        for (name, (rank, identity)) in &self.header.sites {
            let id = base.graph.site_named(name).ok_or_else(|| {
                Error::malformed(self.path, format!("the model has no site '{name}'"))
            })?;
            let vector = |end: &str| self.floats(&format!("{name}.{end}"));
            let site = base.graph.site(id);
            // More would be larger than the weight itself.
            let most = site.k as usize * (site.n as usize).next_multiple_of(PANEL);
            let a = self.table(&format!("{name}.a"), Some(Factor::A), most)?;
            if *identity == a.is_some() && *rank > 0 {
                return Err(self.wrong(&format!("{name}.a"), "is there or missing by mistake"));
            }
            let panels = Factor::B {
                rank: *rank as usize,
            };
            let delta = SiteDelta {
                rank: *rank,
                a,
                b: self.table(&format!("{name}.b"), Some(panels), most)?,
                scale: vector("scale")?.unwrap_or_default(),
                gain_in: vector("gain_in")?,
                gain_out: vector("gain_out")?,
                bias: vector("bias")?,
            };
            sites.push((id, delta));
        }
        sites.sort_by_key(|(id, _)| *id);
        Ok(sites)
    }

    fn embedding(&self, most: usize) -> Result<Option<Arc<EmbeddingDelta>>> {
        let mut low_ranks = vec![];
        for (i, scale) in self.header.embedding_scales.iter().enumerate() {
            let factor = |end: &str| {
                let name = format!("embedding.{i}.{end}");
                self.table(&name, None, most)?
                    .ok_or_else(|| self.wrong(&name, "is missing"))
            };
            low_ranks.push(LowRankRows {
                a: factor("a")?,
                b: factor("b")?,
                scale: *scale,
            });
        }
        let embedding = EmbeddingDelta {
            table: self.table("embedding.table", None, most)?,
            low_ranks,
            prompt: self.table("embedding.prompt", None, most)?,
        };
        let any = embedding.table.is_some()
            || embedding.prompt.is_some()
            || !embedding.low_ranks.is_empty();
        Ok(any.then(|| Arc::new(embedding)))
    }

    fn prefix(&self, layers: usize) -> Result<Option<Arc<KvPrefix>>> {
        if self.header.prefix_tokens == 0 {
            return Ok(None);
        }
        let part = |i: usize, end: &str| {
            let name = format!("prefix.{i}.{end}");
            let values = self.floats(&name)?;
            values.ok_or_else(|| self.wrong(&name, "is missing"))
        };
        let layer = |i: usize| {
            Ok(PrefixLayer {
                keys: part(i, "keys")?,
                values: part(i, "values")?,
            })
        };
        Ok(Some(Arc::new(KvPrefix {
            tokens: self.header.prefix_tokens,
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
        })))
    }
}
