//! Soft prompts: embeddings (prompt tuning, arXiv 2104.08691) or keys and values (prefix tuning, 2101.00190) in front
//! of every sequence.

use super::Assembly;
use crate::config::Kind;
use crate::tensors::Tensor;
use crate::{Error, Result};
use rusty_compiler::{DeltaTable, KvPrefix, PrefixLayer};
use rusty_graph::{AttentionValues, KvLayer};
use rusty_loader::Format;
use std::sync::Arc;

impl Assembly<'_> {
    pub(super) fn soft_prompt(&mut self, prompt: &Tensor) -> Result<()> {
        let graph = self.base.graph;
        let tokens = self.config.virtual_tokens;
        if self.config.kind == Kind::Prompt {
            let width = graph.hidden_width() as usize;
            let mut values = prompt.shaped(self.path, &[tokens, width], "embedding")?;
            let divisor = self.base.prompt_divisor();
            values.iter_mut().for_each(|v| *v /= divisor);
            self.embedding.prompt = DeltaTable::encode(Format::F32, None, tokens, width, &values);
            return Ok(());
        }
        let own = |l: &KvLayer| l.values == AttentionValues::Own;
        if !graph.kv.iter().all(own) {
            let what = "a prefix of keys and values for a model whose cache holds latents";
            return Err(Error::unsupported(self.path, what));
        }
        let lanes = |l: &KvLayer| l.key_lanes() as usize;
        let width: usize = graph.kv.iter().map(|l| 2 * lanes(l)).sum();
        let values = prompt.shaped(self.path, &[tokens, width], "cache")?;
        let mut at = 0;
        let mut layers = Vec::with_capacity(graph.kv.len());
        for (index, layer) in graph.kv.iter().enumerate() {
            let lanes = lanes(layer);
            let take = |from: usize| -> Vec<f32> {
                let rows = values.chunks_exact(width);
                rows.flat_map(|row| &row[from..from + lanes])
                    .copied()
                    .collect()
            };
            let mut keys = take(at);
            if let Some(head_dim) = self.base.interleaved_keys(index) {
                crate::draft::interleave(&mut keys, 1, head_dim);
            }
            layers.push(PrefixLayer {
                keys: Arc::from(keys),
                values: Arc::from(take(at + lanes)),
            });
            at += 2 * lanes;
        }
        self.prefix = Some(KvPrefix {
            tokens: tokens as u32,
            layers,
        });
        Ok(())
    }
}
