//! The model that an adapter is prepared for: its graph, and its weights where a kind of adapter needs them.

use crate::{Error, Result};
use rusty_graph::{BinaryOp, Graph, Op, RopeLayout, Site, SiteId, ValueId};
use rusty_loader::tensor_names::module_from_hf;
use rusty_loader::{ModelFile, WeightView, arch, fused};
use std::borrow::Cow;
use std::path::Path;

/// A base model.
#[derive(Clone, Copy)]
pub struct Base<'a> {
    /// The network, whose sites adapters act at.
    pub graph: &'a Graph,
    /// Its weights: DoRA, replaced norms and replaced biases are relative to them. Without it such adapters are
    /// refused.
    pub file: Option<&'a dyn ModelFile>,
}

/// The weight that tokens are embedded with.
pub(crate) const EMBEDDING: &str = "token_embd.weight";

/// What compilers and trainers of several devices put between the names of modules.
const WRAPPERS: [&str; 4] = [
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "module",
];
/// What a text model may be inside of.
const OUTER: [&str; 6] = [
    "base_model",
    "model",
    "language_model",
    "text_model",
    "llm",
    "thinker",
];

/// Products of a block with a matrix for each expert or head.
pub(crate) const GATE: &str = "ffn_gate_exps";
pub(crate) const UP: &str = "ffn_up_exps";
pub(crate) const DOWN: &str = "ffn_down_exps";
pub(crate) const KEYS: &str = "attn_k_b";
pub(crate) const VALUES: &str = "attn_v_b";

/// Where an adapter's module is in the model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// A product, or several that files store as one: the module's outputs are theirs in this order.
    Sites(Vec<SiteId>),
    Embedding,
    /// A norm, by its weight.
    Norm(String),
    /// All experts of a block (`blk.3`), whose matrices are parameters of one module in newer checkpoints. PEFT wraps that module
    /// once for each parameter that it changes; this is the wrapping, counted from the outside.
    Experts(String, usize),
    /// What expands the latent of a block's attention, which acts as a matrix for each head here.
    Latent(String),
}

impl<'a> Base<'a> {
    /// A model with its weights.
    pub fn new(graph: &'a Graph, file: &'a dyn ModelFile) -> Self {
        Self {
            graph,
            file: Some(file),
        }
    }

    /// The place of a module by its canonical name or its name in checkpoints, with or without wrapping prefixes.
    pub(crate) fn place(&self, module: &str) -> Option<Place> {
        // Names of checkpoints first: there may be tens of thousands.
        self.in_checkpoints(module)
            .or_else(|| self.canonical(module))
    }

    /// The place of a module by its name in checkpoints.
    fn in_checkpoints(&self, module: &str) -> Option<Place> {
        let arch = &self.graph.arch;
        let segments = module.split('.').filter(|s| !WRAPPERS.contains(s));
        let inner: Vec<&str> = segments.skip_while(|s| OUTER.contains(s)).collect();
        let inner = inner.join(".");
        let name = |module: &str| {
            module_from_hf(arch, &format!("model.{module}"))
                .or_else(|| module_from_hf(arch, module))
        };
        if let Some((block, depth)) = experts(&inner, name) {
            return self
                .sites_of(&format!("{block}.{GATE}"))
                .map(|_| Place::Experts(block, depth));
        }
        self.canonical(&name(&inner)?)
    }

    /// The place with a canonical name.
    pub(crate) fn canonical(&self, name: &str) -> Option<Place> {
        if let Some(site) = self.graph.site_named(name) {
            return Some(Place::Sites(vec![site]));
        }
        let parts = fused::modules(name);
        if !parts.is_empty() {
            let sites = parts.iter().map(|part| self.graph.site_named(part));
            return sites.collect::<Option<_>>().map(Place::Sites);
        }
        if name == "token_embd" {
            return Some(Place::Embedding);
        }
        if let Some(block) = name.strip_suffix(".attn_kv_b") {
            self.sites_of(&format!("{block}.{KEYS}"))?;
            return Some(Place::Latent(block.into()));
        }
        let weight = format!("{name}.weight");
        let norms = self.graph.nodes.iter().any(|n| {
            matches!(n.op, Op::RmsNorm { .. })
                && self.weight_name(n.inputs[1]) == Some(weight.as_str())
        });
        norms.then_some(Place::Norm(weight))
    }

    /// The sites of a product with a matrix for each expert or head.
    pub(crate) fn sites_of(&self, product: &str) -> Option<Vec<SiteId>> {
        let sites = (0..).map_while(|i| self.graph.site_named(&format!("{product}.{i}")));
        let sites: Vec<SiteId> = sites.collect();
        (!sites.is_empty()).then_some(sites)
    }

    /// Sites of one input as a site of all their outputs.
    pub(crate) fn joined(&self, sites: &[SiteId]) -> Site {
        let parts: Vec<&Site> = sites.iter().map(|id| self.graph.site(*id)).collect();
        let names: Vec<&str> = parts.iter().map(|site| site.name.as_str()).collect();
        Site {
            name: names.join("+"),
            k: parts.first().map_or(0, |site| site.k),
            n: parts.iter().map(|site| site.n).sum(),
            grouped: parts.iter().any(|site| site.grouped),
        }
    }

    fn weight_name(&self, value: ValueId) -> Option<&'a str> {
        let weight = self.graph.as_weight(value)?;
        Some(&self.graph.weight(weight).name)
    }

    /// What the rows of soft prompts are divided by, because the model multiplies all embeddings with it and checkpoints' only those of tokens.
    pub(crate) fn prompt_divisor(&self) -> f32 {
        let nodes = &self.graph.nodes;
        let rows = nodes.iter().find(|n| n.op == Op::Gather);
        let scale = rows.and_then(|rows| {
            let reads = |n: &&rusty_graph::Node| n.inputs.first() == Some(&rows.output);
            match nodes.iter().find(reads)?.op {
                Op::Scale(scale) => Some(scale),
                _ => None,
            }
        });
        let alone = arch::scales_tokens_alone(&self.graph.arch);
        scale.filter(|_| alone).unwrap_or(1.0)
    }

    /// The node of a site that is the only one of its product.
    fn product(&self, site: SiteId) -> Option<&'a rusty_graph::Node> {
        if self.graph.site(site).grouped {
            return None;
        }
        let op = Op::MatMul { site: Some(site) };
        self.graph.nodes.iter().find(|n| n.op == op)
    }

    /// A weight as it is stored.
    pub(crate) fn tensor(&self, path: &Path, name: &str) -> Result<WeightView> {
        self.file.and_then(|f| f.tensor(name)).ok_or_else(|| {
            Error::unsupported(
                path,
                format!("what is relative to '{name}' of a model whose weights are not at hand"),
            )
        })
    }

    /// Decodes a weight, row by row.
    pub(crate) fn weight(&self, path: &Path, name: &str) -> Result<Vec<f32>> {
        let view = self.tensor(path, name)?;
        let mut values = vec![0.0; view.elements()];
        view.format.decode_row(&view.bytes, &mut values);
        Ok(values)
    }

    /// The name of the weight that a site multiplies.
    pub(crate) fn site_weight(&self, site: SiteId) -> Option<Cow<'a, str>> {
        let Site { name, grouped, .. } = self.graph.site(site);
        match grouped {
            true => Some(format!("{name}.weight").into()),
            false => Some(self.weight_name(self.product(site)?.inputs[1])?.into()),
        }
    }

    /// The head, where it multiplies what tokens are embedded with.
    pub(crate) fn tied_head(&self) -> Option<SiteId> {
        let head = self.graph.site_named(Site::HEAD)?;
        (self.site_weight(head)? == EMBEDDING).then_some(head)
    }

    /// Names of the weights that sites multiply.
    pub(crate) fn site_weights(&self, sites: &[SiteId]) -> Vec<Cow<'a, str>> {
        let names = sites.iter().filter_map(|id| self.site_weight(*id));
        names.collect()
    }

    /// The name of the bias that the model adds behind a site.
    pub(crate) fn site_bias(&self, site: SiteId) -> Option<&'a str> {
        let product = self.product(site)?;
        let add = self.graph.nodes.iter().find(|n| {
            n.op == Op::Binary(BinaryOp::Add) && n.inputs.first() == Some(&product.output)
        })?;
        self.weight_name(*add.inputs.get(1)?)
    }

    /// The sites that read a norm's output; none where something else reads it too.
    pub(crate) fn behind_norm(&self, weight: &str) -> Option<Vec<SiteId>> {
        let norm = self.graph.nodes.iter().find(|n| {
            matches!(n.op, Op::RmsNorm { .. }) && self.weight_name(n.inputs[1]) == Some(weight)
        })?;
        let readers = self
            .graph
            .nodes
            .iter()
            .filter(|n| n.inputs.contains(&norm.output));
        readers
            .map(|n| match n.op {
                Op::MatMul { site } => site,
                _ => None,
            })
            .collect()
    }

    /// Width of a head where the site's output rows are stored with interleaved rotary pairs, and checkpoints have them in
    /// halves: what such a site feeds is rotated (through norms and biases), with that layout.
    pub(crate) fn interleaved_heads(&self, site: SiteId) -> Option<usize> {
        self.reordered(self.rotation(self.product(site)?.output)?)
    }

    /// The same of the keys that a layer's cache holds, which are rotated already.
    pub(crate) fn interleaved_keys(&self, layer: usize) -> Option<usize> {
        let keys = self.graph.nodes.iter().find_map(|n| match &n.op {
            Op::Attention(spec) if spec.layer as usize == layer => Some(n.inputs[1]),
            _ => None,
        })?;
        self.reordered(self.rope(&self.graph.def(keys).op)?)
    }

    /// Width of a head whose pairs are interleaved here and halved in checkpoints.
    fn reordered(&self, (layout, head_dim): (RopeLayout, usize)) -> Option<usize> {
        let reordered =
            layout == RopeLayout::Interleaved && arch::checkpoints_halve_pairs(&self.graph.arch);
        reordered.then_some(head_dim)
    }

    /// Layout and width of a head that an op rotates.
    fn rope(&self, op: &Op) -> Option<(RopeLayout, usize)> {
        match op {
            Op::Rope { rope, head_dim } => {
                Some((self.graph.rope(*rope).layout, *head_dim as usize))
            }
            _ => None,
        }
    }

    /// The same of the op that a value runs into.
    fn rotation(&self, mut value: ValueId) -> Option<(RopeLayout, usize)> {
        loop {
            let next = self
                .graph
                .nodes
                .iter()
                .find(|n| n.inputs.first() == Some(&value))?;
            match &next.op {
                Op::RmsNorm { .. } | Op::Binary(_) => value = next.output,
                op => return self.rope(op),
            }
        }
    }

    /// Width of a head where the site's output is rotated.
    pub(crate) fn rotated_heads(&self, site: SiteId) -> Option<usize> {
        Some(self.rotation(self.product(site)?.output)?.1)
    }
}

/// The block whose experts a module holds as parameters, and how often PEFT has wrapped the module before the one that is named:
/// `layers.3.mlp.experts.base_layer` is `blk.3`, wrapped once. `name` gives canonical names of modules.
fn experts(module: &str, name: impl Fn(&str) -> Option<String>) -> Option<(String, usize)> {
    let mut inner = module;
    while let Some(outer) = inner.strip_suffix(".base_layer") {
        inner = outer;
    }
    let depth = (module.len() - inner.len()) / ".base_layer".len();
    inner.strip_suffix(".experts")?;
    let gate = name(&format!("{inner}.0.gate_proj"))?;
    let block = gate.strip_suffix(&format!(".{GATE}.0"))?;
    Some((block.into(), depth))
}
