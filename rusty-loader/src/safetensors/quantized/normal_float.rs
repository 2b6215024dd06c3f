//! bitsandbytes' NF4 (QLoRA, arXiv 2305.14314): 4-bit codes of normal quantiles, two in a byte, the first in its high
//! half; a scale per block of inputs, which may itself be an 8-bit code (`nested_*`) around an offset.

use safetensors::Dtype;
use serde_json::Value;

use super::{Parts, floats, part};
use crate::formats::{NF4_G64, NORMAL_FLOATS};
use crate::{Format, SharedBytes, WeightView};

/// What a module's `quant_state` says.
struct State {
    n: usize,
    k: usize,
    /// Elements that share a scale.
    block: usize,
    /// Scales that share a scale of their own, and what is added.
    nested: Option<(usize, f32)>,
}

impl State {
    fn read(parts: &Parts) -> Result<Self, String> {
        let stored = part(parts, "weight.quant_state.bitsandbytes__nf4")?;
        let json: Value = serde_json::from_slice(&stored.bytes)
            .map_err(|e| format!("has a quant_state that is not JSON: {e}"))?;
        let size = |key: &str| json.get(key).and_then(Value::as_u64).map(|v| v as usize);
        let shape = json.get("shape").and_then(Value::as_array);
        let shape: Option<Vec<u64>> = shape.and_then(|s| s.iter().map(Value::as_u64).collect());
        let (Some([n, k]), Some(block)) = (shape.as_deref(), size("blocksize")) else {
            return Err("has a quant_state without shape or blocksize".into());
        };
        let offset = json.get("nested_offset").and_then(Value::as_f64);
        Ok(Self {
            n: *n as usize,
            k: *k as usize,
            block,
            nested: size("nested_blocksize").zip(offset.map(|o| o as f32)),
        })
    }
}

/// The weight of a module.
pub(super) fn weight(parts: &Parts) -> Result<WeightView, String> {
    let state = State::read(parts)?;
    let (n, k, len) = (state.n, state.k, NF4_G64.block_len);
    let codes = part(parts, "weight")?;
    let bytes = n.checked_mul(k).map(|elements| elements / 2);
    let fits = codes.dtype == Dtype::U8 && bytes == Some(codes.bytes.len());
    let blocks = state.block > 0 && state.block.is_multiple_of(len) && k.is_multiple_of(len);
    if !fits || !blocks || n == 0 || k == 0 {
        let (shape, block) = (&codes.shape, state.block);
        return Err(format!(
            "is [{n}, {k}] in blocks of {block}, stored {shape:?}"
        ));
    }
    let table = floats(part(parts, "weight.quant_map")?, "weight.quant_map")?;
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
    if table.len() != 16 || !table.iter().zip(&NORMAL_FLOATS).all(near) {
        return Err("has other levels than NF4's".into());
    }
    let scales = scales(parts, &state)?;
    if scales.len() != (n * k).div_ceil(state.block) {
        return Err(format!("has {} scales for [{n}, {k}]", scales.len()));
    }
    let mut out = Vec::with_capacity(n * k / len * NF4_G64.block_bytes);
    for (b, pairs) in codes.bytes.chunks_exact(len / 2).enumerate() {
        out.extend(scales[b * len / state.block].to_le_bytes());
        // Our nibbles lie sixteen elements apart.
        let code = |i: usize| pairs[i / 2] >> (4 * (1 - i % 2)) & 15;
        for half in 0..2 {
            out.extend((0..16).map(|i| code(half * 32 + i) | code(half * 32 + 16 + i) << 4));
        }
    }
    Ok(WeightView {
        bytes: SharedBytes::from_vec(out),
        format: Format::Blocks(&NF4_G64),
        shape: vec![n, k],
    })
}

fn scales(parts: &Parts, state: &State) -> Result<Vec<f32>, String> {
    let stored = part(parts, "weight.absmax")?;
    let Some((block, offset)) = state.nested else {
        return floats(stored, "weight.absmax");
    };
    let outer = floats(part(parts, "weight.nested_absmax")?, "weight.nested_absmax")?;
    let map = floats(
        part(parts, "weight.nested_quant_map")?,
        "weight.nested_quant_map",
    )?;
    let sound = map.len() == 256
        && block > 0
        && stored.dtype == Dtype::U8
        && outer.len() == stored.bytes.len().div_ceil(block);
    if !sound {
        return Err("has nested scales that do not fit each other".into());
    }
    let codes = stored.bytes.iter().enumerate();
    let scale = |(i, code): (usize, &u8)| map[usize::from(*code)] * outer[i / block] + offset;
    Ok(codes.map(scale).collect())
}
