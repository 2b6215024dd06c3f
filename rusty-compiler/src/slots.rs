//! Slot tables: the run-time operands by which adapters reach fused kernels.
//!
//! For row `i` whose slot is `s`, a site computes
//!
//! ```text
//! y[i] = gain_out[s] * (W (gain_in[s] * x[i])) + gain_low[s] * (B[s] (scale[s] * (A[s] x[i]))) + bias[s]
//! ```
//!
//! and the plain product where `s` is [`SlotId::BASE`]. Gains act on the stored weight alone, so that all of
//! it is linear in the adapter: a weighted sum of adapters is stacked ranks, mixed gains and summed biases.
//! Attaching, detaching and re-weighting edit tables only; no kernel is compiled. (LoRA: arXiv 2106.09685;
//! ragged batches of adapters: Punica, arXiv 2310.18547.)
//!
//! Beside products an adapter may change the rows of the token embedding ([`EmbeddingDelta`]) and begin every
//! sequence with keys and values of its own ([`KvPrefix`]).

mod embedding;
mod plain;
mod site_delta;

pub use embedding::{EmbeddingDelta, LowRankRows, RowChange};
pub use plain::kron;
pub use site_delta::{Kron, SiteDelta};

use crate::delta_table::DeltaTable;
use crate::{Error, PAGE_TOKENS, Result};
use rayon::prelude::*;
use rusty_graph::{Graph, KvLayer, Site, SiteId};
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

/// Which adapter a row uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SlotId(pub u32);

impl SlotId {
    /// No adapter.
    pub const BASE: SlotId = SlotId(0);

    /// Whether it is one of `slots` slots, which can be filled and emptied; `adapter` is for the message.
    ///
    /// # Errors
    /// [`Error::Slot`] where it is not.
    pub(crate) fn check(self, slots: u32, adapter: &str) -> Result<()> {
        if self == SlotId::BASE || self.0 > slots {
            return Err(Error::Slot {
                adapter: adapter.into(),
                site: "all".into(),
                reason: format!("slot {} is not one of 1 to {slots}", self.0),
            });
        }
        Ok(())
    }
}

/// Keys and values that stand in the cache before a sequence's first token: as they are, neither normed nor
/// rotated. (Prefix tuning: arXiv 2101.00190.)
#[derive(Clone, Debug)]
pub struct KvPrefix {
    /// Tokens that they stand for.
    pub tokens: u32,
    /// The cache's layers, in order.
    pub layers: Vec<PrefixLayer>,
}

/// One layer of a [`KvPrefix`]; both are `[tokens, kv_heads * head_dim]`, as they are to lie in the cache.
#[derive(Clone, Debug)]
pub struct PrefixLayer {
    /// Keys.
    pub keys: Arc<[f32]>,
    /// Values.
    pub values: Arc<[f32]>,
}

impl KvPrefix {
    /// Whether its keys and values are as wide as these layers'.
    ///
    /// # Errors
    /// The first that are not, with both sizes.
    fn check(&self, kv: &[KvLayer]) -> Result<(), String> {
        let (have, want) = (self.layers.len(), kv.len());
        if have != want {
            return Err(format!("it has {have} layers, not {want}"));
        }
        for (at, (own, layer)) in self.layers.iter().zip(kv).enumerate() {
            let parts = [
                ("keys", own.keys.len(), layer.key_lanes()),
                ("values", own.values.len(), layer.value_lanes()),
            ];
            for (part, have, lanes) in parts {
                let tokens = self.tokens;
                let want = tokens as usize * lanes as usize;
                if have != want {
                    return Err(format!(
                        "the {part} of layer {at} are {have} numbers, not {want} \
                         ({tokens} tokens of {lanes})"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether it can be stored in `pages` of a pool of `total` with these layers.
    pub(crate) fn check_pages(&self, pages: &[u32], total: u32, kv: &[KvLayer]) -> Result<()> {
        let rows = self.tokens as usize;
        let needed = rows.div_ceil(PAGE_TOKENS);
        let there = pages.len() >= needed && pages[..needed].iter().all(|p| *p < total);
        match there && self.check(kv).is_ok() {
            true => Ok(()),
            false => Err(Error::Step(format!(
                "a prefix of {rows} tokens and {} layers does not fit pages {pages:?} of {total}",
                self.layers.len()
            ))),
        }
    }
}

/// One adapter, ready for a slot.
#[derive(Clone, Debug, Default)]
pub struct SlotData {
    /// For messages and accounting.
    pub name: String,
    /// Deltas by site, ascending, each site at most once.
    pub sites: Vec<(SiteId, SiteDelta)>,
    /// Changes of the token embedding.
    pub embedding: Option<Arc<EmbeddingDelta>>,
    /// What sequences begin with.
    pub prefix: Option<Arc<KvPrefix>>,
}

/// The model's sizes that an adapter must fit.
#[derive(Clone, Copy, Debug)]
pub struct SlotShape<'a> {
    /// Sites.
    pub sites: &'a [Site],
    /// Entries of the vocabulary.
    pub vocab: u32,
    /// Width of the embedding.
    pub width: u32,
    /// Layers of the cache.
    pub kv: &'a [KvLayer],
}

impl<'a> SlotShape<'a> {
    /// The sizes of a network.
    pub fn of(graph: &'a Graph) -> Self {
        Self {
            sites: &graph.sites,
            vocab: graph.vocab,
            width: graph.hidden_width(),
            kv: &graph.kv,
        }
    }
}

/// Why a slot's data does not fit: the site, or the part of the model, and the sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMisfit {
    /// Site name, `embedding` or `prefix`.
    pub place: String,
    /// What has which size.
    pub reason: String,
}

impl SlotData {
    /// The delta at a site.
    pub fn site(&self, site: SiteId) -> Option<&SiteDelta> {
        self.sites
            .binary_search_by_key(&site, |(s, _)| *s)
            .ok()
            .map(|i| &self.sites[i].1)
    }

    /// Tokens, real to the cache only, that stand in front of every sequence.
    pub fn virtual_tokens(&self) -> u32 {
        self.prompt_rows() + self.prefix.as_ref().map_or(0, |p| p.tokens)
    }

    /// Those of them that have an embedding: steps may run their ids, which begin behind the vocabulary.
    pub fn prompt_rows(&self) -> u32 {
        self.embedding.as_ref().map_or(0, |e| e.prompt_rows())
    }

    /// All but the tables at sites: what the host needs of an adapter whose slot is a device's own copy.
    pub fn without_sites(&self) -> Self {
        Self {
            name: self.name.clone(),
            sites: Vec::new(),
            embedding: self.embedding.clone(),
            prefix: self.prefix.clone(),
        }
    }

    /// Whether every site has plain factors of its own, as a device's slots hold them.
    pub fn is_plain(&self) -> bool {
        self.sites.iter().all(|(_, delta)| delta.is_plain())
    }

    /// The same with plain factors at every site; itself where it is.
    ///
    /// # Errors
    /// [`Error::Slot`] where the factors of a site make no table, which those that fit it do.
    pub fn plain(&self) -> Result<Cow<'_, Self>> {
        if self.is_plain() {
            return Ok(Cow::Borrowed(self));
        }
        let sites = self.sites.par_iter().map(|(id, delta)| {
            let plain = delta.plain().ok_or_else(|| Error::Slot {
                adapter: self.name.clone(),
                site: id.to_string(),
                reason: "its factors cannot be multiplied out".into(),
            })?;
            Ok((*id, plain))
        });
        Ok(Cow::Owned(Self {
            sites: sites.collect::<Result<_>>()?,
            ..self.clone()
        }))
    }

    /// Bytes of all tables of [`SlotData::plain`]: what a device's slot with a copy of its own takes, beside what the host needs
    /// of it.
    pub fn plain_bytes(&self) -> usize {
        let sites = self.sites.iter().map(|(_, delta)| delta.plain_bytes());
        sites.sum::<usize>() + self.without_sites().bytes()
    }

    /// Largest rank at any site.
    pub fn largest_rank(&self) -> u32 {
        self.sites.iter().map(|(_, d)| d.rank).max().unwrap_or(0)
    }

    /// Bytes of all tables; those that sites share count once.
    pub fn bytes(&self) -> usize {
        let mut seen = HashSet::new();
        let mut shared = |table: &DeltaTable| match seen.insert(table.bytes().as_ptr()) {
            true => 0,
            false => table.len_bytes(),
        };
        let sites = self.sites.iter().map(|(_, delta)| {
            let again = delta.tables().map(&mut shared);
            delta.bytes() - again.sum::<usize>()
        });
        let sites: usize = sites.sum();
        let table = |t: &Option<DeltaTable>| t.as_ref().map_or(0, DeltaTable::len_bytes);
        let embedding = self.embedding.as_ref().map_or(0, |e| {
            let lows = e.low_ranks.iter();
            let lows: usize = lows.map(|l| l.a.len_bytes() + l.b.len_bytes()).sum();
            table(&e.table) + table(&e.prompt) + lows
        });
        let prefix = self.prefix.as_ref().map_or(0, |p| {
            p.layers
                .iter()
                .map(|l| (l.keys.len() + l.values.len()) * 4)
                .sum()
        });
        sites + embedding + prefix
    }

    /// As [`SlotData::check`], with the adapter's name.
    ///
    /// # Errors
    /// [`Error::Slot`] with the first table that does not fit.
    pub(crate) fn fit(&self, shape: SlotShape<'_>) -> Result<()> {
        self.check(shape).map_err(|misfit| Error::Slot {
            adapter: self.name.clone(),
            site: misfit.place,
            reason: misfit.reason,
        })
    }

    /// Whether every table has the sizes that a model needs.
    ///
    /// # Errors
    /// The first that has not.
    pub fn check(&self, shape: SlotShape<'_>) -> Result<(), SlotMisfit> {
        for (id, delta) in &self.sites {
            let site = shape.sites.get(id.index()).ok_or_else(|| SlotMisfit {
                place: id.to_string(),
                reason: format!("the plan has {} sites", shape.sites.len()),
            })?;
            delta.check(site).map_err(|reason| SlotMisfit {
                place: site.name.clone(),
                reason,
            })?;
        }
        let misfit = |place: &str, reason: String| SlotMisfit {
            place: place.into(),
            reason,
        };
        if !self.sites.windows(2).all(|w| w[0].0 < w[1].0) {
            return Err(misfit("sites", "are not ascending".into()));
        }
        if let Some(embedding) = &self.embedding {
            let fits = embedding.check(shape.vocab as usize, shape.width as usize);
            fits.map_err(|reason| misfit("embedding", reason))?;
        }
        if let Some(prefix) = &self.prefix {
            let fits = prefix.check(shape.kv);
            fits.map_err(|reason| misfit("prefix", reason))?;
        }
        Ok(())
    }
}
