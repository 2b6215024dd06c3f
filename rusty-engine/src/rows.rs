//! What a model makes of every position of a text, without a session: it runs at once, with pages of its own.

use crate::adapters::AdapterSet;
use crate::core::{Core, virtual_ids};
use crate::engine::Engine;
use crate::{Error, Result};
use rusty_compiler::{BindOptions, RowResult, Sequence, SlotId, Step, Want};

impl Engine {
    /// The logits of every position of `tokens`, `[tokens, vocab]` row by row.
    ///
    /// # Errors
    /// The tokens do not fit the context or the vocabulary, the cache is full, or adapters are not attached, find no memory,
    /// cannot be mixed or cannot be read again.
    pub fn logits(&self, tokens: &[u32], adapters: impl Into<AdapterSet>) -> Result<Vec<f32>> {
        self.rows(tokens, &adapters.into(), Want::Logits)
    }

    /// The normed hidden state of every position of `tokens`, `[tokens, hidden]` row by row: what the model makes of
    /// a text before it says anything.
    ///
    /// # Errors
    /// As [`Engine::logits`].
    pub fn hidden(&self, tokens: &[u32], adapters: impl Into<AdapterSet>) -> Result<Vec<f32>> {
        self.rows(tokens, &adapters.into(), Want::Hidden)
    }

    /// What is wanted of every position of `tokens`, row by row.
    fn rows(&self, tokens: &[u32], adapters: &AdapterSet, want: Want) -> Result<Vec<f32>> {
        self.check_tokens(tokens)?;
        let (mut core, mixture) = self.core_for(adapters)?;
        core.settle()?;
        let key = core.adapters.resolve(adapters)?;
        let (slot, data) = core.acquire_now(&key, mixture)?;
        let virtual_ids = virtual_ids(data.as_deref(), self.vocab());
        let all = [&virtual_ids, tokens].concat();
        if tokens.is_empty() || all.len() > self.context() {
            return Err(Error::ContextFull {
                tokens: all.len(),
                context: self.context(),
            });
        }
        let pages = core.pool.take(BindOptions::pages_for(all.len()) as usize)?;
        let prefix = data.as_ref().and_then(|d| d.prefix.as_ref());
        let stored = match prefix {
            Some(prefix) => core.executable.write_prefix(&pages, prefix),
            None => Ok(()),
        };
        let first = prefix.map_or(0, |p| p.tokens as usize);
        let rows = Rows {
            tokens: &all,
            first,
            wanted: virtual_ids.len(),
            want,
            pages: &pages,
            slot,
        };
        let result = match stored {
            Ok(()) => all_rows(&mut core, &rows),
            Err(error) => Err(error.into()),
        };
        core.pool.release(pages);
        result
    }
}

/// A sequence of whose rows something is asked for.
struct Rows<'a> {
    tokens: &'a [u32],
    /// The first that is not in the cache yet.
    first: usize,
    /// The first of which something is wanted.
    wanted: usize,
    want: Want,
    pages: &'a [u32],
    slot: SlotId,
}

fn all_rows(core: &mut Core, rows: &Rows<'_>) -> Result<Vec<f32>> {
    let mut results = Vec::new();
    let chunk = core.row_budget.min(core.output_budget);
    for from in (rows.first..rows.tokens.len()).step_by(chunk) {
        let to = rows.tokens.len().min(from + chunk);
        let positions: Vec<u32> = (from..to).map(|p| p as u32).collect();
        let want = |p: usize| match p < rows.wanted {
            true => Want::Nothing,
            false => rows.want,
        };
        let output = core.executable.run(&Step {
            tokens: &rows.tokens[from..to],
            positions: &positions,
            sequence_of: &vec![0; to - from],
            sequences: &[Sequence {
                pages: rows.pages,
                rope_length: rows.tokens.len() as u32,
            }],
            slots: &vec![rows.slot; to - from],
            wants: &(from..to).map(want).collect::<Vec<_>>(),
        })?;
        for (_, result) in output.results {
            if let RowResult::Logits(row) | RowResult::Hidden(row) = result {
                results.extend(row);
            }
        }
    }
    Ok(results)
}
