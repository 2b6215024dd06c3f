//! The matrix from which latent attention makes keys and values (MLA, arXiv 2405.04434), taken apart by heads.
//!
//! Checkpoints and older GGUFs store it as one, `[heads (plain + value), rank]`. Attention over latents needs each head's
//! part for keys transposed, which no view can do: that part is copied, in the stored format where its blocks are single
//! elements and in single precision where they are not. The part for values stays where it is.

use std::collections::HashMap;

use crate::meta::keys;
use crate::{Format, Meta, SharedBytes, WeightView};

/// Widths of a head's parts.
struct Widths {
    heads: usize,
    plain: usize,
    value: usize,
    rank: usize,
}

impl Widths {
    fn of(meta: &HashMap<String, Meta>) -> Option<Self> {
        let size = |key: &str| Some(meta.get(key)?.as_u64()? as usize);
        let rotated = size(keys::ROPE_DIMENSION_COUNT)?;
        Some(Self {
            heads: size(keys::HEAD_COUNT)?,
            plain: size(keys::KEY_LENGTH_LATENT)?.checked_sub(rotated)?,
            value: size(keys::VALUE_LENGTH_LATENT)?,
            rank: size(keys::KV_LORA_RANK)?,
        })
    }

    /// Whether a tensor is such a matrix, whole.
    fn fit(&self, view: &WeightView) -> bool {
        let rows = self.plain.checked_add(self.value);
        let rows = rows.and_then(|rows| rows.checked_mul(self.heads));
        let bytes = rows.and_then(|rows| rows.checked_mul(view.row_bytes()));
        // A tensor without bytes could claim any number of heads.
        self.plain > 0
            && !view.bytes.is_empty()
            && rows.is_some_and(|rows| view.shape == [rows, self.rank])
            && bytes == Some(view.bytes.len())
    }
}

/// Replaces each such matrix by those of its heads, `attn_k_b.HEAD` and `attn_v_b.HEAD`. One of another shape stays as it
/// is; the graph then misses its parts by name.
pub(crate) fn split(
    meta: &HashMap<String, Meta>,
    tensors: Vec<(String, WeightView)>,
) -> Vec<(String, WeightView)> {
    let widths = Widths::of(meta);
    let mut out = Vec::with_capacity(tensors.len());
    for (name, view) in tensors {
        let block = name.strip_suffix(".attn_kv_b.weight");
        let parts = match (block, &widths) {
            (Some(block), Some(widths)) if widths.fit(&view) => parts(block, &view, widths),
            _ => None,
        };
        match parts {
            Some(parts) => out.extend(parts),
            None => out.push((name, view)),
        }
    }
    out
}

fn parts(block: &str, view: &WeightView, widths: &Widths) -> Option<Vec<(String, WeightView)>> {
    let Widths {
        heads,
        plain,
        value,
        rank,
    } = *widths;
    let row = view.row_bytes();
    let mut parts = Vec::with_capacity(2 * heads);
    for head in 0..heads {
        let first = head * (plain + value) * row;
        let keys = view.bytes.slice(first..first + plain * row)?;
        let values = view
            .bytes
            .slice(first + plain * row..first + (plain + value) * row)?;
        let (format, bytes) = transposed(view.format, &keys, plain, rank);
        let keys = WeightView {
            bytes: SharedBytes::from_vec(bytes),
            format,
            shape: vec![rank, plain],
        };
        let values = WeightView {
            bytes: values,
            format: view.format,
            shape: vec![value, rank],
        };
        parts.push((format!("{block}.attn_k_b.{head}.weight"), keys));
        parts.push((format!("{block}.attn_v_b.{head}.weight"), values));
    }
    Some(parts)
}

/// `[rows, columns]` as `[columns, rows]`.
fn transposed(format: Format, bytes: &[u8], rows: usize, columns: usize) -> (Format, Vec<u8>) {
    if format.block_len() == 1 {
        return (format, swapped(bytes, format.block_bytes(), rows, columns));
    }
    let mut values = vec![0.0f32; rows * columns];
    format.decode_row(bytes, &mut values);
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (Format::F32, swapped(&bytes, 4, rows, columns))
}

fn swapped(bytes: &[u8], element: usize, rows: usize, columns: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            let at = (row * columns + column) * element;
            out.extend_from_slice(&bytes[at..at + element]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::split;
    use crate::meta::keys;
    use crate::{Format, Meta, SharedBytes, WeightView};

    fn names(heads: u64, rank: u64, bytes: usize, shape: [usize; 2]) -> Vec<String> {
        let meta = [
            (keys::HEAD_COUNT, heads),
            (keys::ROPE_DIMENSION_COUNT, 2),
            (keys::KEY_LENGTH_LATENT, 3),
            (keys::VALUE_LENGTH_LATENT, 1),
            (keys::KV_LORA_RANK, rank),
        ];
        let meta = meta.map(|(key, size)| (key.to_owned(), Meta::U64(size)));
        let view = WeightView {
            bytes: SharedBytes::from_vec(vec![0; bytes]),
            format: Format::F32,
            shape: shape.to_vec(),
        };
        let name = "blk.0.attn_kv_b.weight".to_owned();
        let parts = split(&meta.into(), vec![(name, view)]);
        parts.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn heads_are_taken_apart_where_they_are_there() {
        let parts = ["k_b.0", "v_b.0", "k_b.1", "v_b.1"];
        let parts = parts.map(|p| format!("blk.0.attn_{p}.weight"));
        assert_eq!(names(2, 5, 80, [4, 5]), parts);
        // Whatever number of heads a tensor without bytes claims.
        let whole = ["blk.0.attn_kv_b.weight"];
        assert_eq!(names(1 << 40, 0, 0, [2 << 40, 0]), whole);
        assert_eq!(names(3, 5, 80, [4, 5]), whole);
    }
}
