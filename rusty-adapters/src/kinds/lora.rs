//! LoRA (arXiv 2106.09685): `W + s B A`, `s` being `alpha / r` or, for rsLoRA (2312.03732), `alpha / sqrt(r)`; with a
//! bias of `B`; with DoRA's norms (2402.09353); on linear layers and on the embedding.

use super::{Assembly, Module};
use crate::draft::Draft;
use crate::factors::transposed;
use crate::modules::Parts;
use crate::tensors::Tensor;
use crate::{Error, Result};
use rusty_compiler::{DeltaTable, LowRankRows};
use rusty_loader::Format;

pub(super) fn draft(module: &Module<'_>) -> Result<Draft> {
    if module.parts.contains_key("lora_A.bias") {
        let what = format!("a bias of A at '{}'", module.name);
        return Err(Error::unsupported(module.path, what));
    }
    let (a, b) = (module.part("lora_A.weight")?, module.part("lora_B.weight")?);
    let rank = a.shape.first().copied().unwrap_or(0);
    check_rank(module, a, rank)?;
    let a_values = module.values("lora_A.weight", &[rank, module.k()])?;
    let b_values = module.values("lora_B.weight", &[module.n(), rank])?;
    let scale = module.config.scale(module.name, rank);
    let format = wider(a.format, b.format);
    let mut draft = Draft::low_rank(rank, a_values, b_values, scale, format);
    if module.parts.contains_key("lora_B.bias") {
        let bias = module.vector("lora_B.bias", module.n())?;
        draft.bias = Some(bias.into_iter().map(|v| scale * v).collect());
    }
    if module.config.dora && !module.parts.contains_key("lora_magnitude_vector") {
        module.part("lora_magnitude_vector")?;
    }
    if module.parts.contains_key("lora_magnitude_vector") {
        draft.magnitude = Some(module.vector("lora_magnitude_vector", module.n())?);
    }
    Ok(draft)
}

fn check_rank(module: &Module<'_>, a: &Tensor, rank: usize) -> Result<()> {
    if rank == 0 {
        module.values("lora_A.weight", &[1, module.k()])?;
    }
    match module.config.rank(module.name) {
        Some(stated) if stated != rank => {
            let needed = [stated, module.k()];
            Err(a.misfit(module.path, other_rank(&module.place(), needed)))
        }
        _ => Ok(()),
    }
}

/// Why an `A` of another rank than the stated one does not fit.
fn other_rank(place: &str, needed: [usize; 2]) -> String {
    format!("the model's {place} needs {needed:?} for the rank that adapter_config.json states")
}

/// The format that holds what both do.
pub(super) fn wider(a: Format, b: Format) -> Format {
    match a == b {
        true => a,
        false => Format::F32,
    }
}

impl Assembly<'_> {
    /// LoRA of the embedding: `E[token] + s B A[:, token]`. A tied head is not changed.
    pub(super) fn embedding(&mut self, name: &str, parts: &Parts) -> Result<()> {
        let part = |part: &str| {
            parts.get(part).ok_or_else(|| {
                let reason = format!("module '{name}' has no tensor '{part}'");
                Error::malformed(self.path, reason)
            })
        };
        if !self.config.changes(name) {
            let reason = format!("changes {name}, which target_modules leave out");
            return Err(Error::malformed(self.path, reason));
        }
        let (a, b) = (part("lora_embedding_A")?, part("lora_embedding_B")?);
        let known = |p: &&&str| p.starts_with("lora_embedding_") || **p == "base_layer.weight";
        if let Some(other) = parts.keys().find(|p| !known(p)) {
            let what = format!("'{other}' of the embedding");
            return Err(Error::unsupported(self.path, what));
        }
        let graph = self.base.graph;
        let (vocab, width) = (graph.vocab as usize, graph.hidden_width() as usize);
        let rank = a.shape.first().copied().unwrap_or(0);
        if let Some(stated) = self.config.rank(name).filter(|stated| *stated != rank) {
            return Err(a.misfit(self.path, other_rank("embedding", [stated, vocab])));
        }
        let a_values = a.shaped(self.path, &[rank, vocab], "embedding")?;
        let b_values = b.shaped(self.path, &[width, rank], "embedding")?;
        let a_values = transposed(&a_values, rank, vocab);
        let table = |tensor: &Tensor, rows, values: &[f32]| {
            DeltaTable::encode(tensor.format, None, rows, rank, values)
                .ok_or_else(|| Error::unsupported(self.path, format!("tensor '{}'", tensor.name)))
        };
        if let Some(weight) = parts.get("base_layer.weight") {
            let new = self.other_than(&["token_embd.weight"], weight, &[vocab, width])?;
            self.embedding.table = new.and_then(|_| {
                DeltaTable::new(weight.format, None, vocab, width, weight.bytes.clone())
            });
        }
        let low_rank = LowRankRows {
            a: table(a, vocab, &a_values)?,
            b: table(b, width, &b_values)?,
            scale: self.config.scale(name, rank),
        };
        self.embedding.low_ranks.push(low_rank);
        Ok(())
    }
}
