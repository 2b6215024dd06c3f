//! 8-bit floats (E4M3, arXiv 2209.05433): `weight [out, in]` times scales of tiles, rows, or all of it.
//!
//! DeepSeek's files call the factor `weight_scale_inv`, others `weight_scale`; both are multiplied.

use safetensors::Dtype;

use super::{Parts, floats, longest, matrix, part};
use crate::formats::{FP8_G32, FP8_G64, FP8_G128};
use crate::{Format, SharedBytes, WeightView};

/// The weight of a module; `tile` is what shares a scale where scales are a matrix.
pub(super) fn weight(parts: &Parts, tile: Option<[usize; 2]>) -> Result<WeightView, String> {
    let codes = part(parts, "weight")?;
    if codes.dtype != Dtype::F8_E4M3 {
        return Err(format!("has a 'weight' of dtype {:?}", codes.dtype));
    }
    let [n, k] = matrix(codes, "weight", 1)?;
    let name = ["weight_scale_inv", "weight_scale"];
    let name = name.into_iter().find(|name| parts.contains_key(*name));
    let name = name.ok_or("has no 'weight_scale'")?;
    let stored = part(parts, name)?;
    let scales = floats(stored, name)?;
    let [rows, columns] = match (stored.shape.as_slice(), tile) {
        ([] | [1] | [1, 1], _) => [n, k],
        ([per_row] | [per_row, 1], None) if *per_row == n => [1, k],
        ([a, b], Some([rows, columns]))
            if [n.div_ceil(rows.max(1)), k.div_ceil(columns.max(1))] == [*a, *b] =>
        {
            [rows.max(1), columns.max(1)]
        }
        (shape, _) => return Err(format!("is [{n}, {k}], its '{name}' {shape:?}")),
    };
    let across = k.div_ceil(columns);
    if scales.len() != n.div_ceil(rows) * across {
        return Err(format!("has {} scales", scales.len()));
    }
    let codec = longest([&FP8_G128, &FP8_G64, &FP8_G32], k, columns);
    let codec = codec.ok_or_else(|| format!("is [{n}, {k}] with a scale per {columns} inputs"))?;
    let mut bytes = Vec::with_capacity(Format::Blocks(codec).row_bytes(k) * n);
    for (row, codes) in codes.bytes.chunks_exact(k).enumerate() {
        for (b, codes) in codes.chunks_exact(codec.block_len).enumerate() {
            let scale = scales[row / rows * across + b * codec.block_len / columns];
            bytes.extend(scale.to_le_bytes());
            bytes.extend(codes);
        }
    }
    Ok(WeightView {
        bytes: SharedBytes::from_vec(bytes),
        format: Format::Blocks(codec),
        shape: vec![n, k],
    })
}
