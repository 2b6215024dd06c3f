//! A step as one block of words: the run-time operands of every kernel, uploaded in one write.
//!
//! The header says where each section starts, so a step takes only the room that it needs and the kernels'
//! scalars never change.

use super::attention_cuts::{Room, Split, cuts};
use super::kernels::env::{SPLIT_WORDS, header};
use crate::plan::Plan;
use crate::slots::{EmbeddingDelta, RowChange};
use crate::step::CHOSEN;
use crate::{PAGE_TOKENS, SlotId, Step};
use rusty_graph::{RopeSpec, Turns};

/// What recordings depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// Rows for which groups are launched, at least the step's.
    pub rows: u32,
    /// Rows that want an output, likewise.
    pub selected: u32,
    /// Attention tiles, likewise.
    pub tiles: u32,
    /// Splits of the rows that are attended to alone, likewise.
    pub splits: u32,
    /// Whether rows have splits that a launch behind adds up.
    pub adds_splits: bool,
    /// Whether every row is of another sequence.
    pub decode: bool,
    /// Whether a row names an adapter.
    pub adapted: bool,
    /// Whether a row wants its most likely token.
    pub argmax: bool,
    /// Whether a row wants its hidden state.
    pub hidden: bool,
}

/// A step ready for upload.
pub(super) struct Encoded {
    pub words: Vec<u32>,
    pub shape: Shape,
}

/// Encodes a checked step. `room` is what attention's kernels take of it, `embedding` what a slot does to embeddings.
pub(super) fn encode<'a>(
    step: &Step<'_>,
    plan: &Plan,
    room: Room,
    embedding: impl Fn(SlotId) -> Option<&'a EmbeddingDelta>,
) -> Encoded {
    let ropes = &plan.ropes;
    let rows = step.rows();
    let selected = step.selected();
    let cuts = cuts(step, room, plan.tuning.attention);
    let shape = Shape {
        rows: bucket(rows as u32),
        selected: bucket(selected.len() as u32),
        tiles: bucket(cuts.tiles.len() as u32),
        splits: bucket(cuts.splits.len() as u32),
        adds_splits: room.behind && cuts.splits.iter().any(|split| split.of > 1),
        decode: cuts.apart,
        adapted: step.slots.iter().any(|s| *s != crate::SlotId::BASE),
        argmax: step.wants.contains(&crate::Want::ArgMax),
        hidden: step.wants.contains(&crate::Want::Hidden),
    };
    let mut words = vec![0; header::ROPES + ropes.len()];
    words[header::ROWS] = rows as u32;
    words[header::SELECTED] = selected.len() as u32;
    // A virtual token's own row is never read, but it must be in some chunk of the table.
    let known = |t: u32| t < plan.vocab || t >= CHOSEN;
    let own = |t: &u32| if known(*t) { *t } else { 0 };
    section(&mut words, header::TOKENS, step.tokens.iter().map(own));
    section(
        &mut words,
        header::POSITIONS,
        step.positions.iter().copied(),
    );
    section(&mut words, header::SLOTS, step.slots.iter().map(|s| s.0));
    section(&mut words, header::OUTPUTS, selected.iter().copied());
    words[header::HEADS] = u32::from(!cuts.apart);
    let tiles = cuts.tiles.into_iter().map(|(first, n)| [first, n]);
    padded(&mut words, header::TILES, tiles, shape.tiles);
    let splits = cuts.splits.into_iter().map(split_words);
    padded(&mut words, header::SPLITS, splits, shape.splits);
    pages(step, &mut words);
    if shape.adapted {
        changes(step, plan, embedding, &mut words);
    }
    for (i, rope) in ropes.iter().enumerate() {
        words[header::ROPES + i] = words.len() as u32;
        rotary(step, rope, &mut words);
    }
    Encoded { words, shape }
}

fn section(words: &mut Vec<u32>, at: usize, values: impl Iterator<Item = u32>) {
    words[at] = words.len() as u32;
    words.extend(values);
}

/// A section of `count` entries: those behind the last are zeros, which kernels leave alone.
fn padded<const N: usize>(
    words: &mut Vec<u32>,
    at: usize,
    entries: impl Iterator<Item = [u32; N]>,
    count: u32,
) {
    section(words, at, entries.flatten());
    words.resize(words[at] as usize + count as usize * N, 0);
}

/// A split as the kernel reads it.
fn split_words(split: Split) -> [u32; SPLIT_WORDS as usize] {
    [split.row, split.number, split.of, split.first]
}

/// Page lists, and for each row the word where its sequence's list starts.
fn pages(step: &Step<'_>, words: &mut Vec<u32>) {
    let mut used = vec![0; step.sequences.len()];
    for (row, sequence) in step.sequence_of.iter().enumerate() {
        let pages = step.positions[row] as usize / PAGE_TOKENS + 1;
        let most = &mut used[*sequence as usize];
        *most = pages.max(*most);
    }
    let mut starts = Vec::with_capacity(step.sequences.len());
    for (sequence, used) in step.sequences.iter().zip(used) {
        starts.push(words.len() as u32);
        words.extend(&sequence.pages[..used]);
    }
    let of_row = step.sequence_of.iter().map(|s| starts[*s as usize]);
    section(words, header::PAGES, of_row);
}

/// Changed embeddings, and for each row where its change is.
fn changes<'a>(
    step: &Step<'_>,
    plan: &Plan,
    embedding: impl Fn(SlotId) -> Option<&'a EmbeddingDelta>,
    words: &mut Vec<u32>,
) {
    let mut entries = Vec::with_capacity(2 * step.rows());
    let mut change = vec![0.0; plan.value(plan.hidden).width as usize];
    for (token, slot) in step.tokens.iter().zip(step.slots) {
        let delta = embedding(*slot).filter(|_| *token < CHOSEN);
        let kind = delta.map_or(RowChange::Kept, |e| e.row(*token, plan.vocab, &mut change));
        if kind == RowChange::Kept {
            entries.extend([0, 1]);
            continue;
        }
        entries.extend([words.len() as u32, u32::from(kind == RowChange::Added)]);
        words.extend(change.iter().map(|v| v.to_bits()));
    }
    section(words, header::CHANGES, entries.into_iter());
}

/// `(cos, sin)` of every row.
fn rotary(step: &Step<'_>, rope: &RopeSpec, words: &mut Vec<u32>) {
    let sequences = step.sequences.iter();
    let turns: Vec<Turns> = sequences.map(|s| rope.turns(s.rope_length)).collect();
    for (sequence, position) in step.sequence_of.iter().zip(step.positions) {
        let pairs = turns[*sequence as usize].at(*position);
        words.extend(pairs.flat_map(|(cos, sin)| [cos.to_bits(), sin.to_bits()]));
    }
}

/// Rounded up where counts are many, so that steps of nearly equal size share a recording.
fn bucket(count: u32) -> u32 {
    if count <= 8 {
        count
    } else {
        count.next_multiple_of(16)
    }
}
