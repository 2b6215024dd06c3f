//! Whole weights that come with an adapter and are the model's own: PEFT saves embeddings and heads beside adapters
//! (`save_embedding_layers`), trained or not.
//!
//! Rows are compared one by one: of a whole vocabulary a few tokens may have been trained. What a model in blocks has lost by rounding is
//! more than most training changes, so beside one what is a copy of the checkpoint's and what is not can be told only of
//! rows that are far apart.

use crate::Result;
use crate::base_model::Base;
use rusty_loader::Format;
use std::borrow::Cow;
use std::path::Path;

/// Distance of a row from the model's, relative to that, up to which it is the same: by rounding, and by quantization to blocks.
const SAME: f64 = 0.01;
const SAME_BLOCKS: f64 = 0.2;

/// Whether `new` holds the rows of the weights `old`, one behind the other.
pub(super) fn is_copy(
    base: &Base<'_>,
    path: &Path,
    old: &[Cow<'_, str>],
    new: &[f32],
) -> Result<bool> {
    let mut rest = new;
    for name in old {
        let view = base.tensor(path, name)?;
        let width = view.shape.last().copied().unwrap_or(0).max(1);
        let same = match view.format {
            Format::Blocks(_) => SAME_BLOCKS,
            _ => SAME,
        };
        let (own, others) = rest.split_at(view.elements().min(rest.len()));
        rest = others;
        let row_bytes = view.bytes.len() / (view.elements() / width).max(1);
        let mut row = vec![0.0; width];
        let mut rows = own
            .chunks_exact(width)
            .zip(view.bytes.chunks_exact(row_bytes.max(1)));
        let all = rows.all(|(new, bytes)| {
            view.format.decode_row(bytes, &mut row);
            let square = |values: &mut dyn Iterator<Item = f32>| -> f64 {
                values.map(|v| f64::from(v).powi(2)).sum()
            };
            let apart = square(&mut row.iter().zip(new).map(|(a, b)| a - b));
            apart <= same * same * square(&mut row.iter().copied())
        });
        if !all {
            return Ok(false);
        }
    }
    Ok(true)
}
