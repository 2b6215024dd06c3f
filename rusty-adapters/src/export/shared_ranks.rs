//! Pairs that become one have one number of ranks, at least as many as each had alone.

use super::Pair;
use rusty_loader::Format;

/// Files state one alpha, which counts for each rank the less the more there are: what a pair's `B` and bias are multiplied with.
pub(super) fn factor(pair: &Pair, rank: usize) -> f32 {
    rank as f32 / pair.a.rows as f32
}

/// Writes a pair's `B` to rows of `rank` values, from value `first` of each on.
pub(super) fn widen(pair: &Pair, rank: usize, first: usize, to: &mut [f32]) {
    let factor = factor(pair, rank);
    let lines = pair.b.values.chunks_exact(pair.b.columns);
    for (line, wide) in lines.zip(to.chunks_exact_mut(rank)) {
        let own = wide[first..].iter_mut().zip(line);
        own.for_each(|(to, v)| *to = v * factor);
    }
}

/// What the `A` of all are stored in; single precision where that differs.
pub(super) fn format_of_a<'a>(pairs: impl Iterator<Item = &'a Pair>) -> Format {
    same(pairs.map(|pair| pair.a.format))
}

/// What the `B` of all are stored in; single precision where that differs or some are multiplied.
pub(super) fn format_of_b<'a>(pairs: impl Iterator<Item = &'a Pair>, rank: usize) -> Format {
    same(pairs.map(|pair| match pair.a.rows == rank {
        true => pair.b.format,
        false => Format::F32,
    }))
}

fn same(mut formats: impl Iterator<Item = Format>) -> Format {
    let first = formats.next().unwrap_or(Format::F32);
    match formats.all(|format| format == first) {
        true => first,
        false => Format::F32,
    }
}
