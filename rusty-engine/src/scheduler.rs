//! Which rows of which sequences make the next step.
//!
//! Decode rows first, so that running answers never wait for somebody's prompt; then prompts in chunks, within
//! the budgets of rows and of rows that want an output. One row and one output are kept for prompts, so that these do not
//! wait for ever beside many answers. Who comes first turns round from step to step.

use crate::generation::Sequence;

/// Rows `from..from + rows` of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Index of the sequence in the list that was scheduled.
    pub sequence: usize,
    /// First token.
    pub from: usize,
    /// Tokens.
    pub rows: usize,
    /// Whether the last row is the sequence's last token, which wants an output.
    pub last: bool,
}

/// Chooses chunks; `turn` rotates who comes first.
pub(crate) fn schedule(
    sequences: &[&Sequence],
    row_budget: usize,
    output_budget: usize,
    turn: usize,
) -> Vec<Chunk> {
    let count = sequences.len();
    let order = (0..count).map(|i| (i + turn) % count.max(1));
    let (decode, prefill): (Vec<usize>, Vec<usize>) = order
        .filter(|&s| sequences[s].waiting() > 0)
        .partition(|&s| sequences[s].waiting() == 1);
    let (mut rows_left, mut outputs_left) = (row_budget, output_budget);
    let kept = |budget: usize| usize::from(budget > 1 && !prefill.is_empty());
    let decoding = (row_budget - kept(row_budget)).min(output_budget - kept(output_budget));
    let mut chunks = Vec::new();
    for sequence in decode
        .into_iter()
        .take(decoding)
        .chain(prefill.iter().copied())
    {
        let waiting = sequences[sequence].waiting();
        let mut rows = waiting.min(rows_left);
        if rows == waiting && outputs_left == 0 {
            rows -= 1;
        }
        if rows == 0 {
            continue;
        }
        let last = rows == waiting;
        rows_left -= rows;
        outputs_left -= usize::from(last);
        chunks.push(Chunk {
            sequence,
            from: sequences[sequence].computed,
            rows,
            last,
        });
    }
    chunks
}
