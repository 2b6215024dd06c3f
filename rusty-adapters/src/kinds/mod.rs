//! The kinds of adapters, one file each: from a module's tensors to what it does at its site.

mod copies;
mod hadamard;
mod ia3;
mod kronecker;
mod lora;
mod saved;
mod soft_prompt;
mod stacked;
mod vera;

use crate::base_model::{Base, EMBEDDING, Place};
use crate::compact::compact;
use crate::config::{Config, Kind};
use crate::draft::Draft;
use crate::modules::{Modules, Parts};
use crate::precision::Precision;
use crate::shared::Shared;
use crate::tensors::Tensor;
use crate::{Error, Result};
use rayon::prelude::*;
use rusty_compiler::{EmbeddingDelta, KvPrefix, SiteDelta, SlotData};
use rusty_graph::{Site, SiteId};
use rusty_loader::Format;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Sites whose tables are made side by side.
const AT_ONCE: usize = 16;

/// One module of an adapter at a site.
struct Module<'a> {
    path: &'a Path,
    config: &'a Config,
    name: &'a str,
    parts: &'a Parts,
    /// Where it acts, and what that is as one site.
    ids: &'a [SiteId],
    site: &'a Site,
}

impl<'a> Module<'a> {
    fn part(&self, part: &str) -> Result<&'a Tensor> {
        self.parts.get(part).ok_or_else(|| {
            let reason = format!("module '{}' has no tensor '{part}'", self.name);
            Error::malformed(self.path, reason)
        })
    }

    /// Values of a part with the shape that the site needs.
    fn values(&self, part: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.part(part)?.shaped(self.path, shape, &self.place())
    }

    /// Values of a vector part.
    fn vector(&self, part: &str, length: usize) -> Result<Vec<f32>> {
        self.part(part)?.vector(self.path, length, &self.place())
    }

    /// Rows and columns of a part; `needed` is the shape that the site needs, with words for what is free.
    fn matrix(&self, part: &str, needed: &str) -> Result<(usize, usize)> {
        self.part(part)?.matrix(self.path, &self.place(), needed)
    }

    /// Refuses a tensor of another rank than the configuration states; `shape` is what it needs for that.
    fn check_rank(
        &self,
        tensor: &Tensor,
        rank: usize,
        shape: impl Fn(usize) -> [usize; 2],
    ) -> Result<()> {
        match self.config.rank(self.name) {
            Some(stated) if stated != rank => {
                Err(tensor.misfit(self.path, other_rank(&self.place(), shape(stated))))
            }
            _ => Ok(()),
        }
    }

    /// Where it acts, for messages.
    fn place(&self) -> String {
        format!("site '{}'", self.site.name)
    }

    fn k(&self) -> usize {
        self.site.k as usize
    }

    fn n(&self) -> usize {
        self.site.n as usize
    }
}

/// Why a tensor of another rank than the stated one does not fit.
fn other_rank(place: &str, needed: [usize; 2]) -> String {
    format!("the model's {place} needs {needed:?} for the rank that adapter_config.json states")
}

/// Everything an adapter does, gathered module by module.
pub(crate) struct Assembly<'a> {
    base: Base<'a>,
    path: &'a Path,
    config: &'a Config,
    drafts: BTreeMap<SiteId, Draft>,
    embedding: EmbeddingDelta,
    prefix: Option<KvPrefix>,
    /// Places that modules were read for.
    places: BTreeSet<Place>,
    /// Replaced norms: what stands in for the weight, relative to it.
    norms: Vec<(String, Vec<f32>)>,
}

impl<'a> Assembly<'a> {
    /// Nothing yet.
    pub fn new(base: Base<'a>, path: &'a Path, config: &'a Config) -> Self {
        Self {
            base,
            path,
            config,
            drafts: BTreeMap::new(),
            embedding: EmbeddingDelta::default(),
            prefix: None,
            places: BTreeSet::new(),
            norms: vec![],
        }
    }

    /// Takes in all tensors of an adapter.
    pub fn read(&mut self, mut modules: Modules) -> Result<()> {
        if let Some(name) = modules.twice {
            let reason = format!("holds tensor '{name}' under the names of two adapters");
            return Err(Error::malformed(self.path, reason));
        }
        if matches!(self.config.kind, Kind::Prompt | Kind::Prefix) {
            let prompt = modules.others.remove("prompt_embeddings");
            let prompt = prompt
                .ok_or_else(|| Error::malformed(self.path, "has no tensor 'prompt_embeddings'"))?;
            self.soft_prompt(&prompt)?;
        }
        let shared = vera::Shared::take(&mut modules.others);
        if let Some(name) = modules.others.keys().next() {
            return Err(Error::unsupported(self.path, format!("tensor '{name}'")));
        }
        for (name, parts) in &modules.by_name {
            self.module(name, parts, &shared)?;
        }
        Ok(())
    }

    fn module(&mut self, name: &str, parts: &Parts, shared: &vera::Shared) -> Result<()> {
        let place = self.base.place(name).ok_or_else(|| {
            let tensor = parts.values().next();
            Error::Misfit {
                path: self.path.into(),
                tensor: tensor.map_or_else(|| name.into(), |t| t.name.clone()),
                shape: tensor.map_or_else(Vec::new, |t| t.shape.clone()),
                reason: format!("but the model has no module '{name}'"),
            }
        })?;
        if !self.places.insert(place.clone()) {
            let reason = format!("'{name}' is there under two names");
            return Err(Error::malformed(self.path, reason));
        }
        self.refuse_strangers(parts)?;
        let whole = ["weight", "original_module.weight"];
        if let Some(leaf) = whole.into_iter().find(|leaf| parts.contains_key(leaf)) {
            return self.saved(name, &place, &parts[leaf], parts.get("bias"));
        }
        let ids = match place {
            Place::Sites(ids) => ids,
            Place::Embedding => return self.embedding(name, parts),
            Place::Experts(block, _) => return self.experts(name, parts, &block),
            Place::Latent(block) => return self.latent(name, parts, &block),
            Place::Norm(_) => {
                return Err(Error::unsupported(
                    self.path,
                    format!("a delta of '{name}'"),
                ));
            }
        };
        let module = Module {
            path: self.path,
            config: self.config,
            name,
            parts,
            ids: &ids,
            site: &self.base.joined(&ids),
        };
        let draft = self.draft(&module, shared)?;
        self.place(name, &ids, draft)
    }

    /// Gives sites that are one module their parts of what it does.
    fn place(&mut self, name: &str, ids: &[SiteId], draft: Draft) -> Result<()> {
        let rows = ids.iter().map(|id| self.base.graph.site(*id).n as usize);
        for (id, draft) in ids.iter().zip(draft.cut(&rows.collect::<Vec<_>>())) {
            if self.drafts.insert(*id, draft).is_some() {
                let site = &self.base.graph.site(*id).name;
                let reason = format!("'{name}' and another module both act at '{site}'");
                return Err(Error::malformed(self.path, reason));
            }
        }
        Ok(())
    }

    fn draft(&self, module: &Module<'_>, shared: &vera::Shared) -> Result<Draft> {
        let (name, parts) = (module.name, module.parts);
        let bias = ["base_layer.bias", "bias"];
        let new_bias = bias.into_iter().find(|part| parts.contains_key(part));
        let only_bias = parts.keys().all(|part| bias.contains(part));
        if !only_bias && !self.config.changes(name) {
            let tensor = parts.values().next().map_or(name, |t| &t.name);
            return Err(Error::malformed(
                self.path,
                format!(
                    "tensor '{tensor}' changes {name}, which the configuration's target_modules, exclude_modules or layers_to_transform leave out"
                ),
            ));
        }
        let mut draft = match self.config.kind {
            _ if only_bias => Draft::empty(Format::F32),
            Kind::Lora => lora::draft(module)?,
            Kind::Ia3 => ia3::draft(module, &self.base)?,
            Kind::Loha => hadamard::draft(module)?,
            Kind::Lokr => kronecker::draft(module)?,
            Kind::Vera => vera::draft(module, shared)?,
            Kind::Prompt | Kind::Prefix => {
                let what = format!("module '{name}' beside a soft prompt");
                return Err(Error::unsupported(self.path, what));
            }
        };
        if let Some(weight) = parts.get("base_layer.weight") {
            let shape = [module.n(), module.k()];
            if let Some(new) =
                self.other_than(&self.base.site_weights(module.ids), weight, &shape)?
            {
                draft = draft.on(new, module.k()).ok_or_else(|| {
                    let what = format!("a new weight and gains at '{name}'");
                    Error::unsupported(self.path, what)
                })?;
            }
        }
        if let Some(part) = new_bias {
            draft.new_bias = Some(module.vector(part, module.n())?);
        }
        Ok(draft)
    }

    /// A kind's tensors, a bias and whole weights are known; anything else would be left out without a word.
    fn refuse_strangers(&self, parts: &Parts) -> Result<()> {
        let own = match self.config.kind {
            Kind::Lora => "lora_",
            Kind::Ia3 => "ia3_",
            Kind::Loha => "hada_",
            Kind::Lokr => "lokr_",
            Kind::Vera => "vera_",
            Kind::Prompt | Kind::Prefix => "prompt_",
        };
        let saved = parts.contains_key("weight") || parts.contains_key("original_module.weight");
        let known = |part: &str| match part {
            "bias" | "weight" | "original_module.weight" => true,
            "base_layer.weight" | "base_layer.bias" => !saved,
            other => other.starts_with(own) && !saved,
        };
        match parts.iter().find(|(part, _)| !known(part)) {
            None => Ok(()),
            Some((_, tensor)) => {
                let what = format!("tensor '{}' here", tensor.name);
                Err(Error::unsupported(self.path, what))
            }
        }
    }

    /// The values of a base weight that came with the adapter, where it is not the model's own.
    fn other_than(
        &self,
        old: &[Cow<'_, str>],
        new: &Tensor,
        shape: &[usize],
    ) -> Result<Option<Vec<f32>>> {
        let values = new.shaped(self.path, shape, &format!("'{}'", old.join("+")))?;
        let same = copies::is_copy(&self.base, self.path, old, &values)?;
        Ok((!same).then_some(values))
    }

    /// The tables of a slot.
    pub fn finish(mut self, name: &str, precision: Precision) -> Result<SlotData> {
        for (weight, ratio) in std::mem::take(&mut self.norms) {
            self.apply_norm(&weight, &ratio)?;
        }
        let changed = !self.embedding.low_ranks.is_empty()
            || self.embedding.table.is_some()
            || self.embedding.prompt.is_some();
        if self.drafts.is_empty() && !changed && self.prefix.is_none() {
            return Err(Error::malformed(self.path, "changes nothing"));
        }
        let mut shared = Shared::default();
        let drafts: Vec<(SiteId, Draft)> = self.drafts.into_iter().collect();
        let (path, base) = (self.path, &self.base);
        let mut sites: Vec<(SiteId, SiteDelta)> = Vec::with_capacity(drafts.len());
        // Some at a time: before they are shared, each has tables of its own.
        for some in drafts.chunks(AT_ONCE) {
            let made = some.par_iter().map(|(id, draft)| {
                let delta = draft.clone().delta(path, base, *id, precision)?;
                Ok((*id, delta))
            });
            let first = sites.len();
            sites.extend(made.collect::<Result<Vec<_>>>()?);
            for (_, delta) in &mut sites[first..] {
                shared.take(delta);
            }
        }
        Ok(compact(SlotData {
            name: name.into(),
            sites,
            embedding: changed.then(|| Arc::new(self.embedding)),
            prefix: self.prefix.map(Arc::new),
        }))
    }
}
