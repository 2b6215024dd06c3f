//! The factors of a delta in single precision, turned where files have them the other way, and the weight that a delta
//! makes of the model's.

use crate::{Error, Result};
use rayon::prelude::*;
use rusty_compiler::{DeltaTable, SiteDelta, SlotData};
use rusty_loader::Format;
use std::borrow::Cow;

/// An adapter whose sites all have plain factors.
pub(crate) fn plain(adapter: &SlotData) -> Result<Cow<'_, SlotData>> {
    adapter.plain().map_err(|error| Error::Mix {
        adapters: adapter.name.clone(),
        reason: error.to_string(),
    })
}

/// Rows of `A`, `[rank, k]`, the identity's too, of plain factors.
pub(crate) fn a_values(delta: &SiteDelta, k: usize) -> Vec<f32> {
    if let Some(a) = &delta.a {
        return a.values();
    }
    let rank = delta.rank as usize;
    let mut values = vec![0.0; rank * k];
    (0..rank).for_each(|i| values[i * k + i] = 1.0);
    values
}

/// `B`, `[n, rank]`.
pub(crate) fn b_values(delta: &SiteDelta, n: usize) -> Vec<f32> {
    let rank = delta.rank as usize;
    let mut values = vec![0.0; n * rank];
    if rank > 0 {
        for (c, row) in values.chunks_exact_mut(rank).enumerate() {
            delta.b_row(c, row);
        }
    }
    values
}

/// `u [rows, rank] v [rank, columns]`.
pub(crate) fn product(u: &[f32], v: &[f32], rank: usize, columns: usize) -> Vec<f32> {
    let rows = u.len() / rank.max(1);
    let mut out = vec![0.0; rows * columns];
    let lines = out.par_chunks_exact_mut(columns.max(1));
    lines
        .zip(u.par_chunks_exact(rank.max(1)))
        .for_each(|(out, u)| {
            for (factor, v) in u.iter().zip(v.chunks_exact(columns.max(1))) {
                out.iter_mut().zip(v).for_each(|(o, v)| *o += factor * v);
            }
        });
    out
}

/// The columns of a matrix `[rows, columns]`, one behind the other: `[columns, rows]`.
pub(crate) fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let at = |i: usize| values[i % rows * columns + i / rows];
    (0..rows * columns).map(at).collect()
}

/// The format that holds what all of some tables do.
pub(crate) fn shared_format<'a>(tables: impl Iterator<Item = &'a DeltaTable>) -> Format {
    let mut formats: Vec<Format> = tables.map(DeltaTable::format).collect();
    formats.dedup();
    match formats[..] {
        [format] => format,
        _ => Format::F32,
    }
}

/// `A` in a format, or in single precision where values leave its range.
pub(crate) fn a_table(format: Format, rank: usize, k: usize, values: &[f32]) -> Option<DeltaTable> {
    in_range(format, |format| DeltaTable::ranks(format, rank, k, values))
}

/// `B` in a format, or in single precision where values leave its range; `value` is that of an output and a rank.
pub(crate) fn b_table(
    format: Format,
    n: usize,
    rank: usize,
    value: impl Fn(usize, usize) -> f32,
) -> Option<DeltaTable> {
    in_range(format, |format| DeltaTable::panels(format, n, rank, &value))
}

fn in_range(format: Format, table: impl Fn(Format) -> Option<DeltaTable>) -> Option<DeltaTable> {
    let is_finite = |table: &DeltaTable| table.values().iter().all(|v| v.is_finite());
    table(format)
        .filter(is_finite)
        .or_else(|| table(Format::F32).filter(is_finite))
}

/// What a delta with plain factors changes of a weight `[n, k]`: `gain_out (W gain_in) + B s A - W`.
pub(crate) fn change(delta: &SiteDelta, weight: &[f32], k: usize) -> Vec<f32> {
    let n = weight.len() / k;
    let rank = delta.rank as usize;
    let (a, b) = (a_values(delta, k), b_values(delta, n));
    let mut change = vec![0.0; weight.len()];
    let rows = change
        .par_chunks_exact_mut(k)
        .zip(weight.par_chunks_exact(k));
    rows.enumerate().for_each(|(c, (out, w))| {
        if delta.gain_in.is_some() || delta.gain_out.is_some() {
            let row_gain = delta.gain_out.as_ref().map_or(1.0, |g| g[c]);
            for (i, (out, w)) in out.iter_mut().zip(w).enumerate() {
                let gain = delta.gain_in.as_ref().map_or(1.0, |g| g[i]);
                *out = row_gain * gain * w - w;
            }
        }
        for r in 0..rank {
            let factor = delta.scale[r] * b[c * rank + r];
            let a = &a[r * k..(r + 1) * k];
            out.iter_mut().zip(a).for_each(|(o, a)| *o += factor * a);
        }
    });
    change
}
