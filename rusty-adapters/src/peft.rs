//! PEFT adapter folders: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Plain LoRA (arXiv 2106.09685) with rank and alpha patterns, and rsLoRA's scale (arXiv 2312.03732). What the
//! tensors say decides where the adapter acts; patterns decide its scales. The format is that of PEFT's
//! `LoraConfig` and `get_peft_model_state_dict`.

use crate::config::Config;
use crate::{Error, Result};
use rusty_compiler::{DeltaTable, SiteDelta, SlotData};
use rusty_graph::{Graph, Op, RopeLayout, SiteId};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// Largest rank accepted: beyond it a full weight would be smaller.
const MAX_RANK: usize = 4096;

/// Reads a PEFT folder for a model's graph.
///
/// # Errors
/// A file is missing or malformed, the kind is not supported, or a tensor fits no site (both shapes are named).
pub fn load(folder: &Path, graph: &Graph) -> Result<SlotData> {
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|reason| Error::Io { path, reason })
    };
    let (config, tensors) = (
        read("adapter_config.json")?,
        read("adapter_model.safetensors")?,
    );
    let name = folder
        .file_name()
        .map_or_else(|| "adapter".into(), |n| n.to_string_lossy().into_owned());
    from_bytes(&name, folder, &config, &tensors, graph)
}

/// Reads an adapter from the bytes of its two files; `path` names it in errors.
///
/// # Errors
/// As [`load`].
pub fn from_bytes(
    name: &str,
    path: &Path,
    config: &[u8],
    tensors: &[u8],
    graph: &Graph,
) -> Result<SlotData> {
    let config = Config::parse(&path.join("adapter_config.json"), config)?;
    let path = path.join("adapter_model.safetensors");
    let malformed = |reason: String| Error::Malformed {
        path: path.clone(),
        reason,
    };
    let file = SafeTensors::deserialize(tensors).map_err(|e| malformed(e.to_string()))?;
    let mut halves: BTreeMap<SiteId, Halves<'_>> = BTreeMap::new();
    for (tensor, view) in file.tensors() {
        let place = Place::parse(&tensor).ok_or_else(|| Error::Unsupported {
            path: path.clone(),
            what: format!("tensor '{tensor}'"),
        })?;
        let site = graph.site_named(&place.site).ok_or_else(|| Error::Misfit {
            path: path.clone(),
            tensor: tensor.clone(),
            shape: view.shape().to_vec(),
            reason: format!("but the model has no site '{}'", place.site),
        })?;
        if !config.changes(&place.module) {
            let module = &place.module;
            return Err(malformed(format!(
                "tensor '{tensor}' changes {module}, which the configuration's target_modules leave out"
            )));
        }
        let entry = halves
            .entry(site)
            .or_insert_with(|| Halves::new(place.module));
        if place.is_a {
            entry.a = Some((tensor, view))
        } else {
            entry.b = Some((tensor, view))
        }
    }
    if halves.is_empty() {
        return Err(malformed("holds no LoRA tensors".into()));
    }
    let sites = halves
        .into_iter()
        .map(|(site, halves)| Ok((site, halves.delta(&path, &config, graph, site)?)))
        .collect::<Result<Vec<_>>>()?;
    Ok(SlotData {
        name: name.into(),
        sites,
    })
}

/// Where a tensor belongs.
struct Place {
    /// Canonical site name.
    site: String,
    /// The module's name in the checkpoint, against which patterns match.
    module: String,
    is_a: bool,
}

impl Place {
    /// Reads `base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight` and its variants.
    fn parse(tensor: &str) -> Option<Place> {
        let stem = tensor.strip_suffix(".weight")?;
        let stem = stem.strip_suffix(".default").unwrap_or(stem);
        let (module, is_a) = match stem.strip_suffix(".lora_A") {
            Some(module) => (module, true),
            None => (stem.strip_suffix(".lora_B")?, false),
        };
        let module = module.strip_prefix("base_model.model.").unwrap_or(module);
        let mut inner = module;
        while let Some(rest) = inner.strip_prefix("model.") {
            inner = rest;
        }
        if inner == "lm_head" {
            return Some(Place {
                site: "output".into(),
                module: inner.into(),
                is_a,
            });
        }
        let (layer, part) = inner.strip_prefix("layers.")?.split_once('.')?;
        let layer: u32 = layer.parse().ok()?;
        let part = match part {
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.o_proj" => "attn_output",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            _ => return None,
        };
        Some(Place {
            site: format!("blk.{layer}.{part}"),
            module: module.into(),
            is_a,
        })
    }
}

/// The two factors of one site.
struct Halves<'a> {
    module: String,
    a: Option<(String, TensorView<'a>)>,
    b: Option<(String, TensorView<'a>)>,
}

impl Halves<'_> {
    fn new(module: String) -> Self {
        Self {
            module,
            a: None,
            b: None,
        }
    }

    fn delta(self, path: &Path, config: &Config, graph: &Graph, id: SiteId) -> Result<SiteDelta> {
        let site = graph.site(id);
        let (Some((a_name, a)), Some((b_name, b))) = (self.a, self.b) else {
            let reason = format!("module '{}' has only one of lora_A and lora_B", self.module);
            return Err(Error::Malformed {
                path: path.into(),
                reason,
            });
        };
        let rank = a.shape().first().copied().unwrap_or(0);
        let misfit = |tensor: &str, shape: &[usize], want: [usize; 2]| Error::Misfit {
            path: path.into(),
            tensor: tensor.into(),
            shape: shape.to_vec(),
            reason: format!("the model's site '{}' needs {want:?}", site.name),
        };
        if rank == 0 || rank > MAX_RANK || a.shape() != [rank, site.k as usize] {
            return Err(misfit(
                &a_name,
                a.shape(),
                [rank.clamp(1, MAX_RANK), site.k as usize],
            ));
        }
        if b.shape() != [site.n as usize, rank] {
            return Err(misfit(&b_name, b.shape(), [site.n as usize, rank]));
        }
        let stated = config.rank(&self.module);
        if stated != rank {
            let reason = format!("'{a_name}' has rank {rank}, adapter_config.json says {stated}");
            return Err(Error::Malformed {
                path: path.into(),
                reason,
            });
        }
        let mut b = table(path, &b_name, &b)?;
        if let Some(head_dim) = interleaved_heads(graph, id) {
            b = permute_rows(&b, rank, head_dim);
        }
        Ok(SiteDelta {
            rank: rank as u32,
            a: table(path, &a_name, &a)?,
            b,
            scale: vec![config.scale(&self.module); rank].into(),
            gain_in: None,
            gain_out: None,
            bias: None,
        })
    }
}

fn table(path: &Path, name: &str, view: &TensorView<'_>) -> Result<DeltaTable> {
    let data = view.data();
    let table = match view.dtype() {
        Dtype::F32 => DeltaTable::F32(
            data.as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
        ),
        Dtype::F16 => DeltaTable::F16(
            data.as_chunks::<2>()
                .0
                .iter()
                .map(|b| half::f16::from_le_bytes(*b))
                .collect(),
        ),
        Dtype::BF16 => DeltaTable::F32(
            data.as_chunks::<2>()
                .0
                .iter()
                .map(|b| half::bf16::from_le_bytes(*b).to_f32())
                .collect(),
        ),
        other => {
            let what = format!("tensor '{name}' of type {other:?}");
            return Err(Error::Unsupported {
                path: path.into(),
                what,
            });
        }
    };
    if (0..table.len()).any(|i| !table.get(i).is_finite()) {
        let reason = format!("tensor '{name}' holds values that are not finite");
        return Err(Error::Malformed {
            path: path.into(),
            reason,
        });
    }
    Ok(table)
}

/// Width of a head where the site's output rows are stored with interleaved rotary pairs: what such a site
/// feeds is rotated (through norms and biases), with that layout.
fn interleaved_heads(graph: &Graph, site: SiteId) -> Option<usize> {
    let mut value = graph
        .nodes
        .iter()
        .find(|n| n.op == Op::MatMul { site: Some(site) })?
        .output;
    loop {
        let next = graph
            .nodes
            .iter()
            .find(|n| n.inputs.first() == Some(&value))?;
        match &next.op {
            Op::Rope { rope, head_dim } => {
                let interleaved = graph.rope(*rope).layout == RopeLayout::Interleaved;
                return interleaved.then_some(*head_dim as usize);
            }
            Op::RmsNorm { .. } | Op::Binary(_) => value = next.output,
            _ => return None,
        }
    }
}

/// Rows of `B` in the half-split order of checkpoints to the interleaved order of the stored weight: lane `i` and
/// lane `i + d/2` of a head become lanes `2i` and `2i + 1`.
fn permute_rows(b: &DeltaTable, rank: usize, head_dim: usize) -> DeltaTable {
    let half = head_dim / 2;
    let source = |i: usize| {
        let (row, r) = (i / rank, i % rank);
        let (head, lane) = (row / head_dim, row % head_dim);
        let from = head * head_dim + lane / 2 + (lane % 2) * half;
        from * rank + r
    };
    match b {
        DeltaTable::F32(v) => DeltaTable::F32((0..v.len()).map(|i| v[source(i)]).collect()),
        DeltaTable::F16(v) => DeltaTable::F16((0..v.len()).map(|i| v[source(i)]).collect()),
    }
}
