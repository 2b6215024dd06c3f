//! Which rows of which sequences make the next step.
//!
//! Decode rows first, so that running answers never wait for somebody's prompt; then prompts in chunks, within
//! the budgets of rows and of rows that want an output. One row and one output are kept for prompts, so that these do not
//! wait for ever beside many answers (budgets are of two and more). Who comes first turns round from step to step.

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

/// What a sequence could run now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// First token that is not computed.
    pub from: usize,
    /// Tokens from there on.
    pub rows: usize,
}

/// Chooses chunks of the sequences; `turn` rotates who comes first.
pub(crate) fn schedule(
    sequences: &[Waiting],
    row_budget: usize,
    output_budget: usize,
    turn: usize,
) -> Vec<Chunk> {
    let count = sequences.len();
    let order = (0..count).map(|i| (i + turn) % count.max(1));
    let (decode, prefill): (Vec<usize>, Vec<usize>) = order
        .filter(|&s| sequences[s].rows > 0)
        .partition(|&s| sequences[s].rows == 1);
    let kept = |budget: usize| usize::from(budget > 1 && !prefill.is_empty());
    let decoding = (row_budget - kept(row_budget)).min(output_budget - kept(output_budget));
    let decode = decode.into_iter().take(decoding);
    let (mut rows_left, mut outputs_left) = (row_budget, output_budget);
    let mut chunks = Vec::new();
    for sequence in decode.chain(prefill) {
        let waiting = sequences[sequence];
        let mut rows = waiting.rows.min(rows_left);
        if rows == waiting.rows && outputs_left == 0 {
            rows -= 1;
        }
        if rows == 0 {
            continue;
        }
        let last = rows == waiting.rows;
        rows_left -= rows;
        outputs_left -= usize::from(last);
        chunks.push(Chunk {
            sequence,
            from: waiting.from,
            rows,
            last,
        });
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(rows: &[usize]) -> Vec<Waiting> {
        rows.iter().map(|&rows| Waiting { from: 7, rows }).collect()
    }

    proptest! {
        #[test]
        fn budgets_are_kept_and_no_sequence_waits_for_ever(
            rows in prop::collection::vec(0usize..6, 1..12),
            row_budget in 2usize..9,
            output_budget in 2usize..5,
        ) {
            let output_budget = output_budget.min(row_budget);
            let mut left = rows.clone();
            // A sequence that ran its last row has another one: it decodes.
            let mut outputs = vec![0; rows.len()];
            for turn in 0..200 {
                let chunks = schedule(&of(&left), row_budget, output_budget, turn);
                prop_assert!(chunks.iter().map(|c| c.rows).sum::<usize>() <= row_budget);
                prop_assert!(chunks.iter().filter(|c| c.last).count() <= output_budget);
                prop_assert_eq!(chunks.is_empty(), left.iter().all(|&l| l == 0));
                for chunk in chunks {
                    let left = &mut left[chunk.sequence];
                    prop_assert!(chunk.rows >= 1 && chunk.from == 7);
                    prop_assert_eq!(chunk.last, chunk.rows == *left);
                    *left -= chunk.rows;
                    if chunk.last {
                        *left = 1;
                        outputs[chunk.sequence] += 1;
                    }
                }
            }
            for (rows, outputs) in rows.iter().zip(outputs) {
                prop_assert_eq!(*rows > 0, outputs > 0);
            }
        }
    }
}
