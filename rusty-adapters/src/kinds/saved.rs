//! Weights that an adapter brings whole (`modules_to_save`): a linear layer, the embedding, or a norm.

use super::{Assembly, EMBEDDING, copies};
use crate::base_model::Place;
use crate::draft::Draft;
use crate::tensors::Tensor;
use crate::{Error, Result};
use rusty_compiler::DeltaTable;
use rusty_loader::Format;
use rusty_loader::tensor_names::norms_less_one;
use std::borrow::Cow;

impl Assembly<'_> {
    pub(super) fn saved(
        &mut self,
        name: &str,
        place: &Place,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<()> {
        if let Some(bias) = bias.filter(|_| !matches!(place, Place::Sites(_))) {
            return Err(Error::unsupported(
                self.path,
                format!("tensor '{}'", bias.name),
            ));
        }
        match place {
            Place::Sites(ids) => {
                let site = self.base.joined(ids);
                let (n, k) = (site.n as usize, site.k as usize);
                let label = format!("site '{}'", site.name);
                let values = weight.shaped(self.path, &[n, k], &label)?;
                let old = self.base.site_weights(ids);
                let copy = self.is_copy(name, &old, weight, &values)?;
                if copy && bias.is_none() {
                    return Ok(());
                }
                let mut draft = match copy {
                    true => Draft::empty(weight.format),
                    false => Draft::replaced(values, n, k, weight.format),
                };
                if let Some(bias) = bias {
                    draft.new_bias = Some(bias.vector(self.path, n, &label)?);
                }
                self.place(name, ids, draft)?;
            }
            Place::Embedding => {
                let graph = self.base.graph;
                let (vocab, width) = (graph.vocab as usize, graph.hidden_width() as usize);
                let values = weight.shaped(self.path, &[vocab, width], "embedding")?;
                if self.is_copy(name, &[EMBEDDING.into()], weight, &values)? {
                    return Ok(());
                }
                if !self.config.saves(name) {
                    self.replace_tied_head(values, weight.format);
                }
                let bytes = weight.bytes.clone();
                self.embedding.table = DeltaTable::new(weight.format, None, vocab, width, bytes);
            }
            Place::Norm(base) => {
                let old = self.base.weight(self.path, base)?;
                let new = weight.shaped(self.path, &[old.len()], &format!("norm '{base}'"))?;
                let less = f32::from(u8::from(norms_less_one(&self.base.graph.arch)));
                let ratio = old
                    .iter()
                    .zip(&new)
                    .map(|(old, new)| match (*old, *new + less) {
                        (0.0, 0.0) => Some(1.0),
                        (0.0, _) => None,
                        (old, new) => Some(new / old),
                    });
                let ratio = ratio.collect::<Option<Vec<f32>>>().ok_or_else(|| {
                    let what = format!("'{name}' where the model's norm is zero");
                    Error::unsupported(self.path, what)
                })?;
                self.norms.push((base.clone(), ratio));
            }
            Place::Experts(..) | Place::Latent(_) => {
                let what = format!("a whole '{name}'");
                return Err(Error::unsupported(self.path, what));
            }
        }
        Ok(())
    }

    /// Whether a weight is the model's own, which PEFT has saved beside the adapter without a word in its configuration.
    fn is_copy(
        &self,
        name: &str,
        old: &[Cow<'_, str>],
        weight: &Tensor,
        values: &[f32],
    ) -> Result<bool> {
        if self.config.saves(name) || self.base.file.is_none() {
            return Ok(false);
        }
        let copy = copies::is_copy(&self.base, self.path, old, values)?;
        if copy {
            tracing::info!("'{}' is the model's own and left out", weight.name);
        }
        Ok(copy)
    }

    /// A tied head follows an embedding that came with the adapter, which PEFT puts in the place of the model's. One of `modules_to_save`
    /// has a copy of its own there, and the head stays.
    pub(super) fn replace_tied_head(&mut self, values: Vec<f32>, format: Format) {
        let graph = self.base.graph;
        if let Some(head) = self.base.tied_head() {
            let (vocab, width) = (graph.vocab as usize, graph.hidden_width() as usize);
            let draft = || Draft::replaced(values, vocab, width, format);
            self.drafts.entry(head).or_insert_with(draft);
        }
    }

    /// A replaced norm acts on the inputs of the sites that read it.
    pub(super) fn apply_norm(&mut self, weight: &str, ratio: &[f32]) -> Result<()> {
        let sites = self.base.behind_norm(weight).ok_or_else(|| {
            let what = format!("a replaced '{weight}', which more than linear layers read,");
            Error::unsupported(self.path, what)
        })?;
        for id in sites {
            let draft = self.drafts.entry(id);
            let draft = draft.or_insert_with(|| Draft::empty(Format::F32));
            draft.input_ratio = Some(ratio.to_vec());
        }
        Ok(())
    }
}
