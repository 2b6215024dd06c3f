//! Changes of the token embedding.

use crate::delta_table::DeltaTable;

/// What an adapter does to token embeddings `E[token]`; computed on the host, row by row.
#[derive(Clone, Debug, Default)]
pub struct EmbeddingDelta {
    /// Replaces the embedding, `[vocab, width]`.
    pub table: Option<DeltaTable>,
    /// Added.
    pub low_ranks: Vec<LowRankRows>,
    /// Rows of virtual tokens, whose ids follow the vocabulary's, `[count, width]`.
    pub prompt: Option<DeltaTable>,
}

/// `scale * B A[token]`.
#[derive(Clone, Debug)]
pub struct LowRankRows {
    /// `[vocab, rank]`.
    pub a: DeltaTable,
    /// `[width, rank]`.
    pub b: DeltaTable,
    /// Factor.
    pub scale: f32,
}

/// How a row of the embedding is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowChange {
    /// It is not.
    Kept,
    /// Something is added.
    Added,
    /// It is replaced.
    Replaced,
}

impl EmbeddingDelta {
    /// Whether tokens of the vocabulary have other embeddings, not virtual ones alone.
    pub fn changes_tokens(&self) -> bool {
        self.table.is_some() || !self.low_ranks.is_empty()
    }

    /// Virtual tokens that have an embedding.
    pub fn prompt_rows(&self) -> u32 {
        self.prompt.as_ref().map_or(0, |p| p.rows() as u32)
    }

    /// Whether its tables are those of a model of `vocab` tokens with embeddings of `width` values.
    ///
    /// # Errors
    /// The first that is not, with both sizes.
    pub(super) fn check(&self, vocab: usize, width: usize) -> Result<(), String> {
        let check = |name: &str, table: &DeltaTable, want: (usize, usize)| {
            let have = (table.rows(), table.columns());
            match have == want {
                true => Ok(()),
                false => Err(format!(
                    "{name} is {have:?}, not {want:?} ({vocab} tokens of {width} values)"
                )),
            }
        };
        if let Some(table) = &self.table {
            check("the table", table, (vocab, width))?;
        }
        if let Some(prompt) = &self.prompt {
            check("the prompt", prompt, (prompt.rows(), width))?;
        }
        for low in &self.low_ranks {
            let rank = low.a.columns();
            check("A", &low.a, (vocab, rank))?;
            check("B", &low.b, (width, rank))?;
        }
        Ok(())
    }

    /// Fills `out`, `[width]`, with what is added to, or stands in place of, the embedding of `token`; ids from `vocab` on
    /// are virtual tokens.
    pub fn row(&self, token: u32, vocab: u32, out: &mut [f32]) -> RowChange {
        if let Some(virtual_token) = token.checked_sub(vocab) {
            match &self.prompt {
                Some(prompt) if (virtual_token as usize) < prompt.rows() => {
                    prompt.read_row(virtual_token as usize, out);
                }
                _ => out.fill(0.0),
            }
            return RowChange::Replaced;
        }
        let mut change = RowChange::Kept;
        if let Some(table) = &self.table {
            table.read_row(token as usize, out);
            change = RowChange::Replaced;
        }
        for low in &self.low_ranks {
            if change == RowChange::Kept {
                out.fill(0.0);
                change = RowChange::Added;
            }
            low.add(token, out);
        }
        change
    }
}

impl LowRankRows {
    fn add(&self, token: u32, out: &mut [f32]) {
        let mut a = vec![0.0; self.a.columns()];
        let mut b = a.clone();
        self.a.read_row(token as usize, &mut a);
        for (i, out) in out.iter_mut().enumerate() {
            self.b.read_row(i, &mut b);
            let sum: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            *out += self.scale * sum;
        }
    }
}
