//! Models of real shapes with random weights, in memory: for measuring speed without a download.
//!
//! Payloads are random bits; only the scales, and the biases of experts' scores, are set, so that weights have a mean near 0 and a standard
//! deviation near 0.02 and activations stay in a sane range. The same name always gives the same weights.

mod save;
mod shape;
mod spread;

use std::path::Path;

pub use save::save;
pub use spread::Spread;

use rayon::prelude::*;

use crate::quantize::mix::{self, Mix};
use crate::{Error, Format, LoadedModel, ModelFile, PageBuffer, Result, WeightView};
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
    made(shape, format, fill)
}

/// As [`model`], but bytes of matrices are zero and take no memory: for planning.
///
/// # Errors
/// As [`model`].
pub fn outline(shape: &str, format: &str) -> Result<Box<dyn ModelFile>> {
    made(shape, format, |name, format, vector, bytes| {
        if vector {
            fill(name, format, vector, bytes);
        }
    })
}

fn made(
    shape: &str,
    format: &str,
    fill: fn(&str, Format, bool, &mut [u8]),
) -> Result<Box<dyn ModelFile>> {
    let described = Described::new(shape, format)?;
    let mut tensors = Vec::new();
    for (name, dims, format) in described.tensors {
        let mut bytes = PageBuffer::new(format.row_bytes(dims.iter().product()), &described.label)?;
        fill(&name, format, dims.len() == 1, &mut bytes);
        let view = WeightView {
            bytes: bytes.freeze(),
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

/// Fills a tensor in parallel; the stream of each piece depends on the name and the piece only.
fn fill(name: &str, format: Format, norm: bool, bytes: &mut [u8]) {
    // FNV-1a, so that tensors differ.
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    let piece = format.block_bytes() * 1024;
    let spread = match format {
        Format::Blocks(codec) => Some(Spread::of(codec, DEVIATION)),
        _ => None,
    };
    bytes
        .par_chunks_mut(piece)
        .enumerate()
        .for_each(|(i, bytes)| {
            let mut stream = Stream::new(seed ^ (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            stream.fill(bytes);
            match (format, &spread) {
                (Format::Blocks(codec), Some(spread)) => {
                    for block in bytes.chunks_exact_mut(codec.block_bytes) {
                        spread.set(codec, block, stream.next());
                    }
                }
                (Format::F32, _) if name.ends_with(".exp_probs_b.bias") => score_bias(bytes),
                (Format::F32, _) if norm => {
                    for b in bytes.as_chunks_mut::<4>().0 {
                        let unit = f32::from(u16::from_le_bytes([b[0], b[1]])) / 65536.0;
                        *b = (0.9 + 0.2 * unit).to_le_bytes();
                    }
                }
                (float, _) => floats(float, bytes),
            }
        });
}

/// Lifts every other pair of experts above what scores can be: which ones are chosen does not hang on how they are rounded.
fn score_bias(bytes: &mut [u8]) {
    for (i, b) in bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let bias: f32 = if i / 2 % 2 == 1 { 4.0 } else { 0.0 };
        *b = bias.to_le_bytes();
    }
}

/// Keeps sign and mantissa bits and sets the exponent to 2^-6: magnitudes from 1/64 to 1/32.
fn floats(format: Format, bytes: &mut [u8]) {
    let (mantissa, exponent) = match format {
        Format::F16 => (10, 9 << 10),
        _ => (7, 121 << 7),
    };
    let kept = 1 << 15 | ((1 << mantissa) - 1);
    // Of an f32 the upper half is patched; its lower half is all mantissa.
    let (step, at) = if format == Format::F32 {
        (4, 2)
    } else {
        (2, 0)
    };
    for b in bytes.chunks_exact_mut(step) {
        let bits = u16::from_le_bytes([b[at], b[at + 1]]) & kept | exponent;
        b[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
}

/// xorshift64*, eight bytes at a time.
struct Stream(u64);

impl Stream {
    fn new(seed: u64) -> Self {
        // A few steps spread the bits of neighbouring seeds; zero would stay zero.
        let mut stream = Self(seed | 1);
        for _ in 0..4 {
            stream.next();
        }
        stream
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}
