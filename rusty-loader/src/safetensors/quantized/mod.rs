//! Weights of checkpoints that others quantized: each method's parts become the blocks of one
//! [format](crate::formats::OF_CHECKPOINTS), so that all that lies above knows one kind of quantized weight.
//!
//! Nothing is rounded. What is made is our own memory and counts as weights; the mapped parts are read once.

mod float8;
mod int4;
mod normal_float;

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;
use serde_json::Value;

use super::file::Stored;
use crate::{Codec, Error, Format, Result, WeightView};

/// How a checkpoint's linear layers are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Method {
    /// 4-bit codes around a zero per group, see [`int4`].
    Int4(int4::Layout),
    /// 8-bit floats with scales for rows or tiles, `[rows, columns]` of a tile where it is stated.
    Float8(Option<[usize; 2]>),
    /// 4-bit normal floats of bitsandbytes.
    NormalFloat,
}

/// The parts of a module by their names: `qweight` of `model.layers.0.mlp.up_proj.qweight`.
type Parts = BTreeMap<String, Stored>;

/// Names of parts; what has one of them is part of a quantized module.
const PARTS: [&str; 16] = [
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
    "weight.nested_quant_map",
    "weight.nested_absmax",
    "weight.quant_map",
    "weight.absmax",
    "weight_scale_inv",
    "weight_scale",
    "input_scale",
    "activation_scale_inv",
    "k_scale",
    "v_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
];

impl Method {
    /// What `config.json` states; `None` for floats.
    pub(super) fn of(path: &Path, config: &Value) -> Result<Option<Self>> {
        let Some(about) = config.get("quantization_config").filter(|q| !q.is_null()) else {
            return Ok(None);
        };
        let text = |key: &str| about.get(key).and_then(Value::as_str);
        let unsupported = |what: String| {
            let hint = "known: AWQ and GPTQ of 4 bits, FP8 (E4M3), bitsandbytes' NF4";
            Err(Error::unsupported(path, what, hint))
        };
        let method = match text("quant_method").unwrap_or_default() {
            "awq" | "gptq" => match int4::Layout::of(about) {
                Ok(layout) => Method::Int4(layout),
                Err(what) => return unsupported(what),
            },
            "fp8" => Method::Float8(tile(about)),
            "compressed-tensors" => match text("format") {
                Some("float-quantized") => Method::Float8(tile_of_group(about)),
                other => {
                    return unsupported(format!("compressed tensors in the format {other:?}"));
                }
            },
            "bitsandbytes" => match text("bnb_4bit_quant_type") {
                Some("nf4") => Method::NormalFloat,
                other => {
                    return unsupported(format!("bitsandbytes' {}", other.unwrap_or("8 bits")));
                }
            },
            other => return unsupported(format!("quantization method '{other}'")),
        };
        Ok(Some(method))
    }

    /// Weights with the names of unquantized checkpoints.
    pub(super) fn weights(
        self,
        path: &Path,
        tensors: Vec<(String, Stored)>,
    ) -> Result<Vec<(String, WeightView)>> {
        let mut modules: BTreeMap<String, Parts> = BTreeMap::new();
        let mut weights = Vec::with_capacity(tensors.len());
        for (name, tensor) in tensors {
            let part = PARTS.iter().find_map(|part| {
                let module = name.strip_suffix(part)?.strip_suffix('.')?;
                Some((module.to_owned(), *part))
            });
            match part {
                Some((module, part)) => {
                    let parts = modules.entry(module).or_default();
                    parts.insert(part.to_owned(), tensor);
                }
                None => weights.push((name, tensor)),
            }
        }
        // What is called `weight` beside parts is one itself.
        weights.retain(|(name, tensor)| {
            let parts = name
                .strip_suffix(".weight")
                .and_then(|m| modules.get_mut(m));
            match parts {
                Some(parts) => parts.insert("weight".to_owned(), tensor.clone()).is_some(),
                None => true,
            }
        });
        // Scales of cached keys and values belong to no weight.
        modules.retain(|_, parts| parts.keys().any(|p| p != "k_scale" && p != "v_scale"));
        let made = modules.into_par_iter().map(|(module, parts)| {
            let view = self
                .weight(&parts)
                .map_err(|reason| Error::malformed(path, format!("module '{module}' {reason}")))?;
            Ok((format!("{module}.weight"), view))
        });
        let made = made.collect::<Result<Vec<_>>>()?;
        let whole: Vec<usize> = made
            .iter()
            .filter(|(_, view)| view.format == Format::F32)
            .map(|(_, view)| view.bytes.len())
            .collect();
        if !whole.is_empty() {
            tracing::warn!(
                "{} of {} quantized matrices fit no blocks (act-order, or scales that are no half-precision numbers): they \
                 take {} MiB in single precision",
                whole.len(),
                made.len(),
                whole.iter().sum::<usize>() >> 20
            );
        }
        let mut all = plain(path, weights)?;
        all.extend(made);
        Ok(all)
    }

    fn weight(self, parts: &Parts) -> Result<WeightView, String> {
        match self {
            Method::Int4(layout) => layout.weight(parts),
            Method::Float8(tile) => float8::weight(parts, tile),
            Method::NormalFloat => normal_float::weight(parts),
        }
    }
}

/// Weights that are stored as floats.
pub(super) fn plain(
    path: &Path,
    tensors: Vec<(String, Stored)>,
) -> Result<Vec<(String, WeightView)>> {
    let views = tensors
        .into_iter()
        .map(|(name, tensor)| tensor.view(path, &name).map(|view| (name, view)));
    views.collect()
}

/// The longest block of which each lies within one run of `run` inputs, of rows of `k`.
fn longest(codecs: [&'static Codec; 3], k: usize, run: usize) -> Option<&'static Codec> {
    let fits = |c: &&Codec| k.is_multiple_of(c.block_len) && run.is_multiple_of(c.block_len);
    codecs.into_iter().find(fits)
}

/// Rows and columns of a tile that shares a scale.
fn tile(about: &Value) -> Option<[usize; 2]> {
    extents(about.get("weight_block_size")?)
}

/// The same as compressed tensors state it, for the first of their groups of modules.
fn tile_of_group(about: &Value) -> Option<[usize; 2]> {
    let groups = about.get("config_groups")?.as_object()?;
    extents(
        groups
            .values()
            .next()?
            .get("weights")?
            .get("block_structure")?,
    )
}

fn extents(sizes: &Value) -> Option<[usize; 2]> {
    let sizes = sizes.as_array()?;
    match sizes.iter().map(Value::as_u64).collect::<Vec<_>>()[..] {
        [Some(rows), Some(columns)] => Some([rows as usize, columns as usize]),
        _ => None,
    }
}

/// A part that must be there.
fn part<'a>(parts: &'a Parts, name: &str) -> Result<&'a Stored, String> {
    parts.get(name).ok_or_else(|| format!("has no '{name}'"))
}

/// Rows and columns of a matrix whose bytes are all there.
fn matrix(stored: &Stored, name: &str, element: usize) -> Result<[usize; 2], String> {
    match stored.shape[..] {
        [rows, columns]
            if rows
                .checked_mul(columns)
                .and_then(|n| n.checked_mul(element))
                == Some(stored.bytes.len())
                && rows > 0
                && columns > 0 =>
        {
            Ok([rows, columns])
        }
        _ => Err(format!("has a '{name}' of shape {:?}", stored.shape)),
    }
}

/// A small tensor of floats, decoded.
fn floats(stored: &Stored, name: &str) -> Result<Vec<f32>, String> {
    let view = stored
        .clone()
        .view(Path::new(""), name)
        .map_err(|_| format!("has a '{name}' of dtype {:?}", stored.dtype))?;
    let count = view.bytes.len() / view.format.block_bytes();
    let mut values = vec![0.0; count];
    view.format.decode_row(
        &view.bytes[..count * view.format.block_bytes()],
        &mut values,
    );
    Ok(values)
}
