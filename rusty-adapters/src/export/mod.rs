//! Writing adapters: as PEFT folders and as llama.cpp's LoRA GGUFs.
//!
//! Both know low ranks on linear layers, on experts' and on the embedding, and nothing else that Rusty reads in the same form:
//! LoHa, LoKr and VeRA are written as the LoRA that they amount to; gains (DoRA, IA3), whole weights and soft
//! prompts are refused. Factors keep their stored precision where it is one of floats and the scale need not be
//! folded into them.

mod fused;
mod gguf;
mod peft;
mod shared_ranks;
mod stacked;

use crate::base_model::Base;
use crate::draft::split_halves;
use crate::factors::{a_values, b_values, plain, transposed};
use crate::{Error, Result};
use rusty_compiler::{DeltaTable, SiteDelta, SlotData};
use rusty_graph::SiteId;
use rusty_loader::Format;
use rusty_loader::output_file::{is_taken, write_folder};
use std::path::Path;

/// A kind of adapter file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// A folder with `adapter_config.json` and `adapter_model.safetensors`.
    Peft,
    /// A GGUF as llama.cpp reads.
    Gguf,
}

impl Container {
    /// What a path asks for: GGUF by its ending, else a folder.
    pub fn of(path: &Path) -> Self {
        let ending = path.extension().and_then(|e| e.to_str());
        match ending.is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            true => Container::Gguf,
            false => Container::Peft,
        }
    }
}

/// Writes an adapter to a path at which nothing is yet.
///
/// # Errors
/// The adapter does what such a file cannot state, there is something at the path, or it cannot be written.
pub fn export(adapter: &SlotData, base: &Base<'_>, out: &Path, container: Container) -> Result<()> {
    if is_taken(out) {
        return Err(Error::malformed(out, "is there already"));
    }
    let lora = Lora::of(&*plain(adapter)?, base, out, container)?;
    match container {
        Container::Peft => write_folder(out, || peft::write(&lora, base, out)),
        Container::Gguf => gguf::write(&lora, &adapter.name, base, out),
    }
}

/// A matrix on its way into a file.
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
    format: Format,
}

impl Matrix {
    /// As tensor `name` of the file `out` holds it.
    fn bytes(&self, out: &Path, name: &str) -> Result<Vec<u8>> {
        let bytes = self.format.encode(&self.values);
        bytes.ok_or_else(|| Error::unencoded(out, name))
    }
}

/// Where a pair of factors acts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Site(SiteId),
    /// Sites that files store as one module.
    Sites,
    /// The sites of a product of so many experts, one above the other.
    Experts(usize),
    Embedding,
}

/// `alpha / rank * B A`, rows of `B` in the order of checkpoints.
struct Pair {
    /// Canonical module name.
    module: String,
    at: At,
    /// `[rank, k]`.
    a: Matrix,
    /// `[n, rank]`.
    b: Matrix,
    bias: Option<Vec<f32>>,
}

/// An adapter as LoRA.
struct Lora {
    alpha: f32,
    pairs: Vec<Pair>,
}

impl Lora {
    fn of(adapter: &SlotData, base: &Base<'_>, out: &Path, container: Container) -> Result<Self> {
        let refuse = |what: String| Error::unsupported(out, what);
        if adapter.virtual_tokens() > 0 {
            return Err(refuse("a soft prompt in such a file".into()));
        }
        let alpha = alpha(adapter);
        let mut pairs = vec![];
        for (id, delta) in &adapter.sites {
            let name = &base.graph.site(*id).name;
            let pair = site_pair(base, *id, delta, alpha)
                .map_err(|what| refuse(format!("{what} at '{name}'")))?;
            pairs.push(pair);
        }
        let biased = pairs.iter().filter(|p| p.bias.is_some()).count();
        let on_all = biased == adapter.sites.len() && adapter.embedding.is_none();
        if biased > 0 && (container == Container::Gguf || !on_all) {
            return Err(refuse("biases on some layers in such a file".into()));
        }
        let mut pairs = fused::joined(pairs, base);
        if container == Container::Gguf {
            pairs = stacked::joined(pairs, base)
                .map_err(|module| refuse(format!("'{module}' in such a file")))?;
        }
        if let Some(embedding) = &adapter.embedding {
            let [low] = &embedding.low_ranks[..] else {
                return Err(refuse("more than one change of the embedding".into()));
            };
            if embedding.table.is_some() {
                return Err(refuse("a whole embedding".into()));
            }
            let rank = low.a.columns();
            let fold = low.scale * rank as f32 / alpha;
            let vocab = low.a.rows();
            pairs.push(Pair {
                module: "token_embd".into(),
                at: At::Embedding,
                a: Matrix {
                    rows: rank,
                    columns: vocab,
                    values: transposed(&low.a.values(), vocab, rank),
                    format: float(Some(&low.a), 1.0),
                },
                b: folded(low.b.values(), low.b.rows(), rank, Some(&low.b), fold),
                bias: None,
            });
        }
        Ok(Self { alpha, pairs })
    }
}

/// The `alpha` that needs no folding, where all scales agree on one; else the largest rank.
fn alpha(adapter: &SlotData) -> f32 {
    let sites = adapter.sites.iter().flat_map(|(_, d)| {
        let rank = d.rank as f32;
        d.scale.iter().map(move |s| s * rank)
    });
    let embedding = adapter.embedding.iter().flat_map(|e| &e.low_ranks);
    let mut alphas = sites.chain(embedding.map(|l| l.scale * l.a.columns() as f32));
    let first = alphas.next().unwrap_or(1.0);
    let same = alphas.all(|a| (a - first).abs() <= 1e-6 * first.abs());
    match same && first > 0.0 {
        true => first,
        false => adapter.largest_rank().max(1) as f32,
    }
}

fn site_pair(
    base: &Base<'_>,
    id: SiteId,
    delta: &SiteDelta,
    alpha: f32,
) -> Result<Pair, &'static str> {
    if delta.gain_in.is_some() || delta.gain_out.is_some() {
        return Err(
            "a factor on inputs or outputs, or a whole weight (DoRA, IA3, modules_to_save)",
        );
    }
    let site = base.graph.site(id);
    let (k, n, rank) = (site.k as usize, site.n as usize, delta.rank as usize);
    if rank == 0 {
        return Err("a bias alone");
    }
    let scale = delta.scale[0];
    let even = delta.scale.iter().all(|s| *s == scale);
    let mut b = b_values(delta, n);
    let fold = if even {
        scale * rank as f32 / alpha
    } else {
        1.0
    };
    if !even {
        let factor = |r: usize| delta.scale[r] * rank as f32 / alpha;
        b.iter_mut()
            .enumerate()
            .for_each(|(i, b)| *b *= factor(i % rank));
    }
    let mut bias = delta.bias.as_ref().map(|bias| bias.to_vec());
    if let Some(head_dim) = base.interleaved_heads(id) {
        split_halves(&mut b, rank, head_dim);
        if let Some(bias) = &mut bias {
            split_halves(bias, 1, head_dim);
        }
    }
    let table = delta.b.as_ref().filter(|_| even);
    Ok(Pair {
        module: site.name.clone(),
        at: At::Site(id),
        a: Matrix {
            rows: rank,
            columns: k,
            values: a_values(delta, k),
            format: float(delta.a.as_ref(), 1.0),
        },
        b: folded(b, n, rank, table, fold),
        // PEFT multiplies the bias by the scale.
        bias: bias.map(|b| b.iter().map(|b| b * rank as f32 / alpha).collect()),
    })
}

fn folded(
    mut values: Vec<f32>,
    rows: usize,
    columns: usize,
    table: Option<&DeltaTable>,
    fold: f32,
) -> Matrix {
    if !one(fold) {
        values.iter_mut().for_each(|v| *v *= fold);
    }
    Matrix {
        rows,
        columns,
        values,
        format: float(table, fold),
    }
}

fn one(fold: f32) -> bool {
    (fold - 1.0).abs() <= 1e-6
}

/// A table's own format where values go as they are; single precision else.
fn float(table: Option<&DeltaTable>, fold: f32) -> Format {
    match table.map(DeltaTable::format) {
        Some(format @ (Format::F32 | Format::F16 | Format::Bf16)) if one(fold) => format,
        _ => Format::F32,
    }
}
