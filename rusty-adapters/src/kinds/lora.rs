//! LoRA (arXiv 2106.09685): `W + s B A`, `s` being `alpha / r` or, for rsLoRA (2312.03732), `alpha / sqrt(r)`; with a
//! bias of `B`; with DoRA's norms (2402.09353); on linear layers and on the embedding.

use super::{Assembly, EMBEDDING, Module, other_rank};
use crate::draft::Draft;
use crate::factors::transposed;
use crate::modules::Parts;
use crate::tensors::Tensor;
use crate::{Error, Result};
use rusty_compiler::{DeltaTable, LowRankRows};
use rusty_loader::Format;
use std::path::Path;

/// DoRA's norms.
const MAGNITUDE: &str = "lora_magnitude_vector";

pub(super) fn draft(module: &Module<'_>) -> Result<Draft> {
    if module.parts.contains_key("lora_A.bias") {
        let what = format!("a bias of A at '{}'", module.name);
        return Err(Error::unsupported(module.path, what));
    }
    let (a, b) = (module.part("lora_A.weight")?, module.part("lora_B.weight")?);
    let rank = a.shape.first().copied().unwrap_or(0);
    if rank == 0 {
        module.values("lora_A.weight", &[1, module.k()])?;
    }
    module.check_rank(a, rank, |rank| [rank, module.k()])?;
    let a_values = module.values("lora_A.weight", &[rank, module.k()])?;
    let b_values = module.values("lora_B.weight", &[module.n(), rank])?;
    let scale = module.config.scale(module.name, rank);
    let format = wider(a.format, b.format);
    let mut draft = Draft::low_rank(rank, a_values, b_values, scale, format);
    if module.parts.contains_key("lora_B.bias") {
        let bias = module.vector("lora_B.bias", module.n())?;
        draft.bias = Some(bias.into_iter().map(|v| scale * v).collect());
    }
    if module.config.dora {
        draft.magnitude = Some(module.vector(MAGNITUDE, module.n())?);
    } else if let Some(tensor) = module.parts.get(MAGNITUDE) {
        return Err(unasked(module.path, tensor));
    }
    Ok(draft)
}

/// The refusal of norms that the configuration does not ask for.
fn unasked(path: &Path, tensor: &Tensor) -> Error {
    Error::unsupported(path, format!("tensor '{}' without 'use_dora'", tensor.name))
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
        let magnitude = match (self.config.dora, parts.get(MAGNITUDE)) {
            (true, _) => Some(part(MAGNITUDE)?),
            (false, Some(tensor)) => return Err(unasked(self.path, tensor)),
            (false, None) => None,
        };
        let weight = parts.get("base_layer.weight");
        let known = 2 + usize::from(magnitude.is_some()) + usize::from(weight.is_some());
        if parts.len() > known {
            let names: Vec<&str> = parts.keys().copied().collect();
            let what = format!("{} of the embedding together", names.join(", "));
            return Err(Error::unsupported(self.path, what));
        }
        let factors = self.embedding_factors(name, a, b)?;
        let (vocab, width, rank) = (factors.vocab, factors.width, factors.rank);
        let other = |weight| self.other_than(&[EMBEDDING.into()], weight, &[vocab, width]);
        let new = weight.map(other).transpose()?.flatten();
        if let (Some(values), Some(weight)) = (&new, weight) {
            self.replace_tied_head(values.clone(), weight.format);
        }
        if let Some(magnitude) = magnitude {
            return self.weighed_embedding(&factors, magnitude, (a, new));
        }
        if let Some(weight) = weight.filter(|_| new.is_some()) {
            self.embedding.table =
                DeltaTable::new(weight.format, None, vocab, width, weight.bytes.clone());
        }
        let table = |tensor: &Tensor, rows, values: &[f32]| {
            DeltaTable::encode(tensor.format, None, rows, rank, values)
                .ok_or_else(|| Error::unencoded(self.path, &tensor.name))
        };
        let low_rank = LowRankRows {
            a: table(a, vocab, &factors.a)?,
            b: table(b, width, &factors.b)?,
            scale: factors.scale,
        };
        self.embedding.low_ranks.push(low_rank);
        Ok(())
    }

    fn embedding_factors(&self, name: &str, a: &Tensor, b: &Tensor) -> Result<EmbeddingFactors> {
        let graph = self.base.graph;
        let (vocab, width) = (graph.vocab as usize, graph.hidden_width() as usize);
        let (rank, _) = a.matrix(self.path, "embedding", &format!("[rank, {vocab}]"))?;
        if let Some(stated) = self.config.rank(name).filter(|stated| *stated != rank) {
            return Err(a.misfit(self.path, other_rank("embedding", [stated, vocab])));
        }
        let by_rank = a.shaped(self.path, &[rank, vocab], "embedding")?;
        Ok(EmbeddingFactors {
            a: transposed(&by_rank, rank, vocab),
            b: b.shaped(self.path, &[width, rank], "embedding")?,
            vocab,
            width,
            rank,
            scale: self.config.scale(name, rank),
        })
    }

    /// DoRA of the embedding: `E`, or what came in its place, with the low rank, each lane of which has its magnitude as norm. Factors on
    /// lanes are nothing that a low rank can state, so it is a whole embedding, stored as `A` is.
    fn weighed_embedding(
        &mut self,
        factors: &EmbeddingFactors,
        magnitude: &Tensor,
        (stored, new): (&Tensor, Option<Vec<f32>>),
    ) -> Result<()> {
        let (vocab, width, rank) = (factors.vocab, factors.width, factors.rank);
        let magnitude = magnitude.vector(self.path, width, "embedding")?;
        let mut rows = match new {
            Some(rows) => rows,
            None => self.base.weight(self.path, EMBEDDING)?,
        };
        let mut squares = vec![0.0f64; width];
        for (token, row) in rows.chunks_exact_mut(width).enumerate() {
            let a = &factors.a[token * rank..(token + 1) * rank];
            let lanes = row.iter_mut().zip(factors.b.chunks_exact(rank));
            for ((value, b), square) in lanes.zip(&mut squares) {
                let product: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
                *value += factors.scale * product;
                *square += f64::from(*value).powi(2);
            }
        }
        let gains = magnitude.iter().zip(&squares);
        let gains = gains.map(|(m, square)| (f64::from(*m) / square.sqrt()) as f32);
        let gains: Vec<f32> = gains.collect();
        for row in rows.chunks_exact_mut(width) {
            row.iter_mut().zip(&gains).for_each(|(v, g)| *v *= g);
        }
        let table = DeltaTable::encode(stored.format, None, vocab, width, &rows);
        let table = table.filter(|table| table.values().iter().all(|v| v.is_finite()));
        self.embedding.table =
            Some(table.ok_or_else(|| Error::unencoded(self.path, &stored.name))?);
        Ok(())
    }
}

/// LoRA of the embedding, as it is added.
struct EmbeddingFactors {
    /// `[vocab, rank]`.
    a: Vec<f32>,
    /// `[width, rank]`.
    b: Vec<f32>,
    vocab: usize,
    width: usize,
    rank: usize,
    scale: f32,
}
