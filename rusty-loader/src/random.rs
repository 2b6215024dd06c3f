//! Models of real shapes with random weights, in memory: for measuring speed without a download.
//!
//! Payloads are random bits; only the scales are set, so that weights have a mean near 0 and a standard
//! deviation near 0.02 and activations stay in a sane range. The same name always gives the same weights.

mod save;
mod spread;

use std::collections::HashMap;
use std::path::Path;

pub use save::save;
pub use spread::Spread;

use rayon::prelude::*;

use crate::formats;
use crate::meta::keys;
use crate::quantize::mix::{self, Mix};
use crate::{Error, Format, LoadedModel, Meta, ModelFile, PageBuffer, Result, WeightView};

const DEVIATION: f32 = 0.02;

struct Shape {
    name: &'static str,
    arch: &'static str,
    layers: usize,
    width: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    context: u64,
    rope_base: f64,
    tied: bool,
}

static SHAPES: &[Shape] = &[
    Shape {
        name: "qwen3-0.6b",
        arch: "qwen3",
        layers: 28,
        width: 1024,
        inner: 3072,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        vocab: 151_936,
        context: 40_960,
        rope_base: 1e6,
        tied: true,
    },
    Shape {
        name: "llama-3.2-1b",
        arch: "llama",
        layers: 16,
        width: 2048,
        inner: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocab: 128_256,
        context: 131_072,
        rope_base: 5e5,
        tied: true,
    },
    Shape {
        name: "mistral-7b",
        arch: "llama",
        layers: 32,
        width: 4096,
        inner: 14_336,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 32_000,
        context: 32_768,
        rope_base: 1e6,
        tied: false,
    },
    Shape {
        name: "llama-3-8b",
        arch: "llama",
        layers: 32,
        width: 4096,
        inner: 14_336,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 128_256,
        context: 8192,
        rope_base: 5e5,
        tied: false,
    },
    Shape {
        name: "llama-tiny",
        arch: "llama",
        layers: 2,
        width: 256,
        inner: 512,
        heads: 8,
        kv_heads: 1,
        head_dim: 32,
        vocab: 512,
        context: 1024,
        rope_base: 1e4,
        tied: true,
    },
    Shape {
        name: "qwen3-tiny",
        arch: "qwen3",
        layers: 2,
        width: 256,
        inner: 512,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        vocab: 512,
        context: 1024,
        rope_base: 1e6,
        tied: true,
    },
];

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
    let model = LoadedModel::new(described.label, found.arch, found.meta(), tensors);
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
            let known = mix::ALL.iter().map(|m| m.name);
            let known = known.chain(formats::ALL.iter().map(|c| c.name)).collect();
            return Err(unknown(format!("format '{format}'"), known));
        };
        let mut tensors = Vec::new();
        for (name, dims) in found.tensors() {
            let format = match dims[..] {
                [_, row] => recipe.format_of(&name, row, found),
                _ => Format::F32,
            };
            if !dims[dims.len() - 1].is_multiple_of(format.block_len()) {
                let what = format!("format {} for rows of {}", format.name(), dims[1]);
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
            experts: 0,
        };
        match self {
            Recipe::One(format) => *format,
            Recipe::Mix(mix) => mix.format_of(name, row, &model),
        }
    }
}

impl Shape {
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (width, inner) = (self.width, self.inner);
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut all = vec![("token_embd.weight".to_owned(), vec![self.vocab, width])];
        for layer in 0..self.layers {
            let mut add = |role: &str, dims: &[usize]| {
                all.push((format!("blk.{layer}.{role}.weight"), dims.to_vec()));
            };
            add("attn_norm", &[width]);
            add("attn_q", &[queries, width]);
            add("attn_k", &[keys, width]);
            add("attn_v", &[keys, width]);
            add("attn_output", &[width, queries]);
            if self.arch == "qwen3" {
                add("attn_q_norm", &[self.head_dim]);
                add("attn_k_norm", &[self.head_dim]);
            }
            add("ffn_norm", &[width]);
            add("ffn_gate", &[inner, width]);
            add("ffn_up", &[inner, width]);
            add("ffn_down", &[width, inner]);
        }
        all.push(("output_norm.weight".to_owned(), vec![width]));
        if !self.tied {
            all.push(("output.weight".to_owned(), vec![self.vocab, width]));
        }
        // How a GGUF states Llama 3's scaling.
        if self.name == "llama-3.2-1b" {
            all.push(("rope_freqs.weight".to_owned(), vec![self.head_dim / 2]));
        }
        all
    }

    fn meta(&self) -> HashMap<String, Meta> {
        let size = |n: usize| Meta::U64(n as u64);
        let llama = self.arch == "llama";
        let layout = if llama { "interleaved" } else { "half" };
        let all = [
            (keys::NAME, Meta::from(self.name)),
            (keys::BLOCK_COUNT, size(self.layers)),
            (keys::CONTEXT_LENGTH, Meta::U64(self.context)),
            (keys::EMBEDDING_LENGTH, size(self.width)),
            (keys::FEED_FORWARD_LENGTH, size(self.inner)),
            (keys::HEAD_COUNT, size(self.heads)),
            (keys::HEAD_COUNT_KV, size(self.kv_heads)),
            (keys::KEY_LENGTH, size(self.head_dim)),
            (keys::VALUE_LENGTH, size(self.head_dim)),
            (
                keys::RMS_EPSILON,
                Meta::F64(if llama { 1e-5 } else { 1e-6 }),
            ),
            (keys::ROPE_FREQ_BASE, Meta::F64(self.rope_base)),
            (keys::ROPE_LAYOUT, layout.into()),
            (keys::ROPE_SCALING_TYPE, "none".into()),
            (keys::VOCAB_SIZE, size(self.vocab)),
            (keys::TIE_WORD_EMBEDDINGS, Meta::Bool(self.tied)),
            (keys::HIDDEN_ACT, "silu".into()),
            (keys::EOS_TOKEN_IDS, Meta::Array([].into())),
        ];
        all.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
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
