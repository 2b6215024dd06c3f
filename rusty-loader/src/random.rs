//! Models of real shapes with random weights, in memory: for measuring speed without a download.
//!
//! Payloads are random bits; only the scales, and the biases of experts' scores, are set, so that weights have a mean near 0 and a standard
//! deviation near 0.02 and activations stay in a sane range. The same name always gives the same weights. Matrices are made by a
//! [`Pattern`], which a device can follow, too.

mod pattern;
mod save;
mod shape;
mod spread;

use std::path::Path;
use std::sync::Arc;

pub use pattern::Pattern;
pub use save::save;
pub use spread::Spread;

use crate::quantize::mix::{self, Mix};
use crate::{Error, Format, LoadedModel, ModelFile, PageBuffer, Result, SharedBytes, WeightView};
use crate::{formats, fused};
use shape::{SHAPES, Shape};

const DEVIATION: f32 = 0.02;

/// Names of the shapes that [`model`] knows.
pub fn shapes() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|s| s.name)
}

/// A model of a known shape with random weights in a format by name (`q4_0`, `bf16`, ...), or in a [mixture](Mix) whose
/// name no format has (`q4_k_m`).
///
/// # Errors
/// [`Error::Unsupported`] for an unknown shape or format; [`Error::Malformed`] where memory is not granted.
pub fn model(shape: &str, format: &str) -> Result<Box<dyn ModelFile>> {
    made(shape, format, |pattern, mut pages| {
        pattern.fill(&mut pages);
        pages.freeze()
    })
}

/// As [`model`], but a matrix is made when it is first read, or by a device in its own memory
/// ([`SharedBytes::pattern`]): then the host neither makes nor holds it.
///
/// # Errors
/// As [`model`].
pub fn promised(shape: &str, format: &str) -> Result<Box<dyn ModelFile>> {
    made(shape, format, |pattern, pages| {
        SharedBytes::promised(Arc::new(pattern), pages)
    })
}

/// As [`model`], but bytes of matrices are zero and take no memory: for planning.
///
/// # Errors
/// As [`model`].
pub fn outline(shape: &str, format: &str) -> Result<Box<dyn ModelFile>> {
    made(shape, format, |_, pages| pages.freeze())
}

/// A model whose matrices come of their patterns and of zeros that they are to replace.
fn made(
    shape: &str,
    format: &str,
    matrix: fn(Pattern, PageBuffer) -> SharedBytes,
) -> Result<Box<dyn ModelFile>> {
    let described = Described::new(shape, format)?;
    let mut tensors = Vec::new();
    for (name, dims, format) in described.tensors {
        let mut pages = PageBuffer::new(format.row_bytes(dims.iter().product()), &described.label)?;
        let bytes = match dims[..] {
            [_] => {
                fill_vector(&name, &mut pages);
                pages.freeze()
            }
            _ => matrix(Pattern::new(&name, format), pages),
        };
        let view = WeightView {
            bytes,
            format,
            shape: dims,
        };
        tensors.push((name, view));
    }
    let found = described.shape;
    let meta = found.meta();
    let tensors = fused::split(&meta, tensors);
    let model = LoadedModel::new(described.label, found.arch, meta, tensors);
    Ok(Box::new(model))
}

/// A model before its weights are made.
struct Described {
    label: String,
    shape: &'static Shape,
    /// Name, shape and format of each tensor.
    tensors: Vec<(String, Vec<usize>, Format)>,
}

impl Described {
    fn new(shape: &str, format: &str) -> Result<Self> {
        let label = format!("random:{shape}:{format}");
        let unknown = |what: String, known: Vec<&str>| {
            let hint = format!("known ones are {}", known.join(", "));
            Error::unsupported(Path::new(&label), what, hint)
        };
        let Some(found) = SHAPES.iter().find(|s| s.name == shape) else {
            return Err(unknown(format!("shape '{shape}'"), shapes().collect()));
        };
        let Some(recipe) = Recipe::by_name(format) else {
            let mut known: Vec<&str> = mix::ALL.iter().map(|m| m.name).collect();
            let blocks = formats::ALL.iter().map(|c| c.name);
            known.extend(blocks.filter(|name| mix::Mix::by_name(name).is_none()));
            return Err(unknown(format!("format '{format}'"), known));
        };
        let mut tensors = Vec::new();
        for (name, dims) in found.tensors() {
            let row = dims[dims.len() - 1];
            let format = match dims[..] {
                [_] => Format::F32,
                _ => recipe.format_of(&name, row, found),
            };
            if !row.is_multiple_of(format.block_len()) {
                let what = format!("format {} for rows of {row}", format.name());
                return Err(unknown(what, vec!["q4_0", "q8_0", "f16"]));
            }
            tensors.push((name, dims, format));
        }
        Ok(Self {
            label,
            shape: found,
            tensors,
        })
    }
}

enum Recipe {
    One(Format),
    Mix(&'static Mix),
}

impl Recipe {
    fn by_name(name: &str) -> Option<Self> {
        let one = Format::by_name(name).map(Recipe::One);
        one.or_else(|| Mix::by_name(name).map(Recipe::Mix))
    }

    fn format_of(&self, name: &str, row: usize, shape: &Shape) -> Format {
        let model = mix::Model {
            layers: shape.layers,
            tied: shape.tied,
            weighted: false,
            queries_per_key: shape.heads / shape.kv_heads,
            experts: shape.experts.as_ref().map_or(0, |e| e.count),
        };
        match self {
            // As quantizers keep them.
            _ if name.contains(".ffn_gate_inp.") => Format::F32,
            Recipe::One(format) if row.is_multiple_of(format.block_len()) => *format,
            Recipe::One(_) if name.contains(".attn_k_b.") => Format::F16,
            Recipe::One(format) => *format,
            Recipe::Mix(mix) => mix.format_of(name, row, &model),
        }
    }
}

/// Fills a vector, in single precision: a norm with values around 1, or the bias of experts' scores.
fn fill_vector(name: &str, bytes: &mut [u8]) {
    let [inner, outer] = pattern::seed(name);
    let bias = name.ends_with(".exp_probs_b.bias");
    for (i, value) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let number: f32 = match bias {
            // Lifts every other pair of experts above what scores can be: which ones are chosen does not hang on how they
            // are rounded.
            true if i / 2 % 2 == 1 => 4.0,
            true => 0.0,
            false => {
                let random = pattern::random(i as u32, inner, outer);
                0.9 + 0.2 * (f32::from(random as u16) / 65536.0)
            }
        };
        *value = number.to_le_bytes();
    }
}
