//! Merging adapters into a full model: for programs that know no adapters, and for measuring what merging costs.
//!
//! The merged model has the container, names and formats of the base. Blocks for which there is no encoder become F16.
//! Where an adapter changes a head or an embedding that the base keeps as one tensor, they become two.

mod checkpoint;
mod gguf;
mod latent;
mod methods;

pub use methods::Method;

use crate::Container;
use crate::base_model::{Base, EMBEDDING};
use crate::factors::{change, plain};
use crate::{Error, Result};
use rusty_compiler::{EmbeddingDelta, RowChange, SiteDelta, SlotData};
use rusty_graph::SiteId;
use rusty_loader::fused::{self, Part};
use rusty_loader::output_file::{is_taken, write_folder};
use rusty_loader::{Format, model_path};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// Canonical names of the two tensors that a model may keep as one.
const HEAD: &str = "output.weight";

/// Writes the model with adapters merged into it: `source` is the base's file or folder, `out` a path of the same kind (a file for a
/// folder with one GGUF model) at which nothing is yet. `progress` is told tensors done and in all.
///
/// # Errors
/// The adapters cannot be merged into weights (soft prompts), or not by this method; the base cannot be read again; `out`
/// cannot be written.
pub fn merge(
    adapters: &[(&SlotData, f32)],
    method: Method,
    base: &Base<'_>,
    (source, out): (&Path, &Path),
    progress: &dyn Fn(usize, usize),
) -> Result<()> {
    if is_taken(out) {
        return Err(Error::malformed(out, "is there already"));
    }
    let source = model_path(source)?;
    let is_gguf = Container::of(out) == Container::Gguf;
    if is_gguf == source.is_dir() {
        let kind = if is_gguf { "a folder" } else { "a GGUF file" };
        let reason = format!("the model is {kind}, so what is written should be one");
        return Err(Error::malformed(out, reason));
    }
    let plain = adapters.iter().map(|(adapter, _)| plain(adapter));
    let plain: Vec<Cow<'_, SlotData>> = plain.collect::<Result<_>>()?;
    let weights = adapters.iter().map(|(_, weight)| *weight);
    let adapters: Vec<_> = plain.iter().map(|a| &**a).zip(weights).collect();
    let merged = Merged::plan(&adapters, method, base, out)?;
    match source.is_dir() {
        true => write_folder(out, || checkpoint::write(&merged, &source, out, progress)),
        false => gguf::write(&merged, &source, out, progress),
    }
}

/// What becomes of a tensor: what some adapters, by their place in the list, do to it.
enum Change<'a> {
    Site(SiteId, Vec<(usize, &'a SiteDelta)>),
    Bias(Vec<(usize, &'a [f32])>),
    Embedding(Vec<(usize, &'a EmbeddingDelta)>),
    /// The embedding's values as they are.
    Copied,
}

/// Which tensors change, by canonical name, and how.
struct Merged<'a> {
    base: &'a Base<'a>,
    method: Method,
    /// Of all adapters.
    weights: Vec<f32>,
    out: &'a Path,
    changes: BTreeMap<String, Change<'a>>,
    /// The number of each change, in the order of names.
    places: HashMap<String, u64>,
    /// Whether the head gets a tensor of its own.
    unties: bool,
}

impl<'a> Merged<'a> {
    fn plan(
        adapters: &[(&'a SlotData, f32)],
        method: Method,
        base: &'a Base<'a>,
        out: &'a Path,
    ) -> Result<Self> {
        let weights: Vec<f32> = adapters.iter().map(|(_, weight)| *weight).collect();
        if let Some(problem) = method.problem(&weights) {
            return Err(Error::Mix {
                adapters: adapters
                    .iter()
                    .map(|(a, _)| a.name.as_str())
                    .collect::<Vec<_>>()
                    .join("+"),
                reason: problem,
            });
        }
        let mut merged = Self {
            base,
            method,
            weights,
            out,
            changes: BTreeMap::new(),
            places: HashMap::new(),
            unties: false,
        };
        for (i, (adapter, _)) in adapters.iter().enumerate() {
            if adapter.virtual_tokens() > 0 {
                let what = format!("merging the soft prompt of {}", adapter.name);
                return Err(Error::unsupported(out, what));
            }
            for (id, delta) in &adapter.sites {
                merged.site(*id, i, delta)?;
            }
            if let Some(embedding) = &adapter.embedding {
                let slot = merged.changes.entry(EMBEDDING.into());
                let slot = slot.or_insert_with(|| Change::Embedding(vec![]));
                if let Change::Embedding(list) = slot {
                    list.push((i, embedding));
                }
            }
        }
        let tied = base.file.is_some_and(|f| f.tensor(HEAD).is_none());
        let touched = [EMBEDDING, HEAD]
            .iter()
            .any(|t| merged.changes.contains_key(*t));
        if tied && touched {
            merged.unties = true;
            merged.changes.entry(HEAD.into()).or_insert(Change::Copied);
        }
        merged.places = merged.changes.keys().cloned().zip(0..).collect();
        Ok(merged)
    }

    fn site(&mut self, id: SiteId, adapter: usize, delta: &'a SiteDelta) -> Result<()> {
        let site = self.base.graph.site(id);
        let name = format!("{}.weight", site.name);
        let slot = self.changes.entry(name);
        if let Change::Site(_, list) = slot.or_insert_with(|| Change::Site(id, vec![])) {
            list.push((adapter, delta));
        }
        let Some(bias) = &delta.bias else {
            return Ok(());
        };
        let name = self.base.site_bias(id).ok_or_else(|| {
            let what = format!("a bias at '{}', where the model has none,", site.name);
            Error::unsupported(self.out, what)
        })?;
        let slot = self.changes.entry(name.into());
        if let Change::Bias(list) = slot.or_insert_with(|| Change::Bias(vec![])) {
            list.push((adapter, bias));
        }
        Ok(())
    }

    /// The parts of a stored tensor of a canonical name.
    fn parts(&self, name: &str, shape: &[usize]) -> Vec<Part> {
        if let Some(parts) = latent::parts(self.base, name) {
            return parts;
        }
        let size = |key: &str| Some(self.base.file?.meta(key)?.as_u64()? as usize);
        fused::parts(size, name, shape)
    }

    /// Whether a stored tensor of these parts changes.
    fn touches(&self, parts: &[Part]) -> bool {
        parts.iter().any(|p| self.changes.contains_key(&p.name))
    }

    /// Refuses changes of what is not among the stored tensors' parts: they would be lost.
    fn check_all_stored<'b>(&self, parts: impl Iterator<Item = &'b Part>) -> Result<()> {
        let stored: BTreeSet<&str> = parts.map(|p| p.name.as_str()).collect();
        let own = |name: &str| self.unties && name == HEAD;
        let lost = self
            .changes
            .keys()
            .find(|name| !own(name) && !stored.contains(name.as_str()));
        match lost {
            None => Ok(()),
            Some(name) => {
                let what = format!("a change of '{name}', which the model's files do not store,");
                Err(Error::unsupported(self.out, what))
            }
        }
    }

    /// The merged values of a stored tensor, part by part; none where all stay as they are.
    fn stored_values(&self, parts: &[Part]) -> Result<Option<Vec<f32>>> {
        if !self.touches(parts) {
            return Ok(None);
        }
        let mut all = vec![];
        for part in parts {
            let values = match self.values(&part.name)? {
                Some(values) => values,
                None => self.base.weight(self.out, &part.name)?,
            };
            all.extend(latent::stored(part, parts, values));
        }
        Ok(Some(all))
    }

    /// The merged values of a part; none where it stays as it is.
    fn values(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(what) = self.changes.get(name) else {
            return Ok(None);
        };
        let stored = match name {
            HEAD if self.unties => EMBEDDING,
            name => name,
        };
        let weight = self.base.weight(self.out, stored)?;
        let mut changed: BTreeMap<usize, Vec<f32>> = match what {
            Change::Copied => return Ok(Some(weight)),
            Change::Site(id, deltas) => {
                let k = self.base.graph.site(*id).k as usize;
                let of = |(i, d): &(usize, &SiteDelta)| (*i, change(d, &weight, k));
                deltas.iter().map(of).collect()
            }
            Change::Bias(biases) => biases.iter().map(|(i, b)| (*i, b.to_vec())).collect(),
            Change::Embedding(deltas) => {
                let vocab = self.base.graph.vocab as usize;
                let of = |(i, d): &(usize, &EmbeddingDelta)| (*i, rows(d, &weight, vocab));
                deltas.iter().map(of).collect()
            }
        };
        let unchanged = || {
            self.method
                .counts_unchanged()
                .then(|| vec![0.0; weight.len()])
        };
        let changes = self.weights.iter().enumerate();
        let changes =
            changes.filter_map(|(i, w)| Some((changed.remove(&i).or_else(unchanged)?, *w)));
        let mut changes: Vec<(Vec<f32>, f32)> = changes.collect();
        let place = self.places.get(name).copied().unwrap_or(0);
        Ok(Some(self.method.merge(&weight, &mut changes, place)))
    }

    /// The stored bytes of a tensor's merged values, in the [`writable`] format.
    fn encode(&self, name: &str, values: &[f32], stored: Format) -> Result<Vec<u8>> {
        let format = writable(stored);
        let bytes = format.encode(values).ok_or_else(|| self.unwritable(name))?;
        let all_finite = |values: &[f32]| values.iter().all(|v| v.is_finite());
        // Whole blocks of any format.
        let mut stored = vec![0.0; values.len().min(1 << 16)];
        let pieces = bytes.chunks(format.row_bytes(1 << 16));
        let mut stored_finite = pieces.zip(values.chunks(1 << 16)).map(|(bytes, values)| {
            let stored = &mut stored[..values.len()];
            format.decode_row(bytes, stored);
            all_finite(stored)
        });
        match all_finite(values) && stored_finite.all(|finite| finite) {
            true => Ok(bytes),
            false => {
                let format = format.name();
                let reason = format!(
                    "merged '{name}' is not finite in {format}: an adapter's weight is too large"
                );
                Err(Error::malformed(self.out, reason))
            }
        }
    }

    fn unwritable(&self, name: &str) -> Error {
        Error::unencoded(self.out, name)
    }
}

/// The format of a merged tensor: the stored one or, where that has no encoder, F16.
fn writable(stored: Format) -> Format {
    match stored.encoder() {
        Some(_) => stored,
        None => Format::F16,
    }
}

/// What an adapter changes of the embedding `[vocab, width]`.
fn rows(delta: &EmbeddingDelta, weight: &[f32], vocab: usize) -> Vec<f32> {
    let width = weight.len() / vocab;
    let mut all = vec![0.0; weight.len()];
    for (token, (out, old)) in all
        .chunks_exact_mut(width)
        .zip(weight.chunks_exact(width))
        .enumerate()
    {
        match delta.row(token as u32, vocab as u32, out) {
            RowChange::Kept => out.fill(0.0),
            RowChange::Added => {}
            RowChange::Replaced => out.iter_mut().zip(old).for_each(|(o, w)| *o -= w),
        }
    }
    all
}
