//! Opening packed adapters.

use super::{Header, KEY, SUMS, VERSION, checksum, interleaved, weights};
use crate::base_model::Base;
use crate::{Error, Result};
use rayon::prelude::*;
use rusty_compiler::delta_table::PANEL;
use rusty_compiler::interleaving::Factor;
use rusty_compiler::{
    DeltaTable, EmbeddingDelta, Kron, KvPrefix, LowRankRows, PrefixLayer, SiteDelta, SlotData,
    SlotShape,
};
use rusty_graph::SiteId;
use rusty_loader::{Format, SharedBytes};
use safetensors::SafeTensors;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Opens a packed adapter for a model.
///
/// # Errors
/// The file is malformed, was made for a model of another file order, or does not fit.
pub(crate) fn open(path: &Path, base: &Base<'_>) -> Result<SlotData> {
    let bytes = SharedBytes::map_file(path)?;
    Reader::new(path, &bytes)?.adapter(base)
}

/// The same for a file that was written here and may have been damaged since: all of it is read and must be what was written.
///
/// # Errors
/// As [`open`]; a checksum is missing or another.
pub(crate) fn open_whole(path: &Path, base: &Base<'_>) -> Result<SlotData> {
    let bytes = SharedBytes::map_file(path)?;
    let reader = Reader::new(path, &bytes)?;
    reader.check_sums()?;
    reader.adapter(base)
}

struct Reader<'a> {
    path: &'a Path,
    bytes: &'a SharedBytes,
    tensors: SafeTensors<'a>,
    header: Header,
    /// Of the header as it is stored.
    header_sum: u64,
    /// Tensors that several tables may have in common, by name and length.
    inflated: RefCell<HashMap<(String, usize), SharedBytes>>,
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
            header_sum: checksum(KEY, entry.as_bytes()),
            inflated: RefCell::default(),
            header,
        })
    }

    /// Whether header and tensors are what was written.
    fn check_sums(&self) -> Result<()> {
        let stated = self.stored(SUMS)?;
        let (stated, _) = stated.as_chunks::<8>();
        let mut names = self.tensors.names();
        names.retain(|name| *name != SUMS);
        names.sort_unstable();
        let tensors = &self.tensors;
        let own = names.par_iter().map(|name| {
            let tensor = tensors.tensor(name).ok();
            tensor.map_or(0, |tensor| checksum(name, tensor.data()))
        });
        let own: Vec<u64> = rayon::iter::once(self.header_sum).chain(own).collect();
        let places = ["header"].into_iter().chain(names);
        let mut pairs = own.iter().zip(stated).zip(places);
        let damaged = pairs.find(|((own, stated), _)| **own != u64::from_le_bytes(**stated));
        match damaged {
            Some((_, place)) => {
                let reason = format!("is damaged: '{place}' has another checksum than was stored");
                Err(Error::malformed(self.path, reason))
            }
            None if own.len() != stated.len() => {
                Err(self.wrong(SUMS, "has not one for each tensor"))
            }
            None => Ok(()),
        }
    }

    /// The adapter, as far as it fits the model.
    fn adapter(&self, base: &Base<'_>) -> Result<SlotData> {
        if self.header.interleaved != interleaved(base) {
            let what = "an adapter packed for a model whose file orders rotary pairs differently";
            return Err(Error::unsupported(self.path, what));
        }
        let relative_to = self.header.relative_to;
        if relative_to.is_some() && weights(base).is_some_and(|own| relative_to != Some(own)) {
            let what = "an adapter packed for other weights than this model's";
            return Err(Error::unsupported(self.path, what));
        }
        let shape = SlotShape::of(base.graph);
        let adapter = SlotData {
            name: self.header.name.clone(),
            sites: self.sites(base)?,
            embedding: self.embedding(shape.vocab as usize, shape.width as usize)?,
            prefix: self.prefix(base.graph.kv.len())?,
        };
        adapter
            .check(shape)
            .map_err(|m| Error::malformed(self.path, format!("at {}: {}", m.place, m.reason)))?;
        Ok(adapter)
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

    /// A table of the shape that the model needs where this one is stated, and of at most `most` elements, which is what it has
    /// room for.
    fn table(
        &self,
        name: &str,
        factor: Option<Factor>,
        most: usize,
        needed: impl Fn([usize; 2]) -> [usize; 2],
    ) -> Result<Option<DeltaTable>> {
        let Some(entry) = self.header.tables.get(name) else {
            return Ok(None);
        };
        let format = Format::by_name(&entry.format)
            .ok_or_else(|| self.wrong(name, "has an unknown format"))?;
        let stated = [entry.rows, entry.columns];
        let needed = needed(stated);
        if stated != needed {
            return Err(Error::Misfit {
                path: self.path.into(),
                tensor: name.into(),
                shape: stated.into(),
                reason: format!("the model needs {needed:?}"),
            });
        }
        let tensor = entry.tensor.as_deref().unwrap_or(name);
        let inflated = |limit: usize| self.inflated.borrow().get(&(tensor.into(), limit)).cloned();
        let mut bytes = self.stored(tensor)?;
        if entry.deflated {
            let limit = DeltaTable::stored_bytes(format, factor, entry.rows, entry.columns)
                .filter(|_| entry.rows.saturating_mul(entry.columns) <= most)
                .ok_or_else(|| {
                    let most = format!("the model has room for {most} values of {}", entry.format);
                    self.wrong(name, &format!("cannot have shape {stated:?}; {most}"))
                })?;
            bytes = match inflated(limit) {
                Some(known) => known,
                None => {
                    let unpacked =
                        miniz_oxide::inflate::decompress_to_vec_with_limit(&bytes, limit)
                            .map_err(|_| self.wrong(name, "cannot be inflated"))?;
                    let unpacked = SharedBytes::from_vec(unpacked);
                    let mut known = self.inflated.borrow_mut();
                    known.insert((tensor.into(), limit), unpacked.clone());
                    unpacked
                }
            };
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
        for (name, entry) in &self.header.sites {
            let id = base.graph.site_named(name).ok_or_else(|| {
                Error::malformed(self.path, format!("the model has no site '{name}'"))
            })?;
            let vector = |end: &str| self.floats(&format!("{name}.{end}"));
            let site = base.graph.site(id);
            // More would be larger than the weight itself.
            let (k, n, ranks) = (site.k as usize, site.n as usize, entry.rank as usize);
            let most = k * n.next_multiple_of(PANEL);
            let (rows, columns) = entry.blocks.unwrap_or((1, 1));
            let [k, n] = [(k, columns), (n, rows)].map(|(size, of)| size / (of as usize).max(1));
            let a = self.table(&format!("{name}.a"), Some(Factor::A), most, |_| [ranks, k])?;
            if entry.identity == a.is_some() && entry.rank > 0 {
                return Err(self.wrong(&format!("{name}.a"), "is there or missing by mistake"));
            }
            let panels = Factor::B { rank: ranks };
            let lie = |_| [n.div_ceil(PANEL) * ranks, PANEL];
            let delta = SiteDelta {
                rank: entry.rank,
                a,
                b: self.table(&format!("{name}.b"), Some(panels), most, lie)?,
                scale: vector("scale")?.unwrap_or_default(),
                kron: match entry.blocks {
                    Some((rows, columns)) => Some(Kron {
                        rows,
                        columns,
                        mix: vector("mix")?.unwrap_or_default(),
                    }),
                    None => None,
                },
                gain_low: vector("gain_low")?,
                gain_in: vector("gain_in")?,
                gain_out: vector("gain_out")?,
                bias: vector("bias")?,
            };
            sites.push((id, delta));
        }
        sites.sort_by_key(|(id, _)| *id);
        Ok(sites)
    }

    fn embedding(&self, vocab: usize, width: usize) -> Result<Option<Arc<EmbeddingDelta>>> {
        let most = vocab * width;
        let mut low_ranks = vec![];
        let scales = &self.header.embedding_scales;
        if scales.iter().any(|scale| !scale.is_finite()) {
            let reason = "states scales of the embedding that are not finite";
            return Err(Error::malformed(self.path, reason));
        }
        for (i, scale) in scales.iter().enumerate() {
            let factor = |end: &str, rows: usize| {
                let name = format!("embedding.{i}.{end}");
                self.table(&name, None, most, |[_, rank]| [rows, rank])?
                    .ok_or_else(|| self.wrong(&name, "is missing"))
            };
            low_ranks.push(LowRankRows {
                a: factor("a", vocab)?,
                b: factor("b", width)?,
                scale: *scale,
            });
        }
        let embedding = EmbeddingDelta {
            table: self.table("embedding.table", None, most, |_| [vocab, width])?,
            low_ranks,
            prompt: self.table("embedding.prompt", None, most, |[rows, _]| [rows, width])?,
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
        let mut names = self.tensors.names();
        names.retain(|name| name.starts_with("prefix.") && name.ends_with(".keys"));
        if names.len() != layers {
            let stored = names.len();
            let reason = format!("holds a prefix of {stored} layers; the model has {layers}");
            return Err(Error::malformed(self.path, reason));
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
