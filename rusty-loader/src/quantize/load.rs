//! Quantizing at load: float matrices become Q4_0 or Q8_0 in memory, everything else stays as it is.
//!
//! Tensors are worked through in order, each in slabs of rows whose rows are encoded in parallel; behind each
//! slab the mapped source pages are given back. Beyond the result, memory holds one slab and a few rows per
//! thread, whatever the model's size.

use std::collections::HashMap;

use rayon::prelude::*;

use crate::formats::{Encoder, Q4_0, Q8_0};
use crate::{Format, Meta, ModelFile, PageBuffer, Result, WeightView};

/// Stored bytes of the source handled between two reports of progress.
const SLAB_BYTES: usize = 32 << 20;
/// Elements handled by one task.
const TASK_ELEMENTS: usize = 1 << 15;

/// What float weights become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Q4_0: 4.5 bits per weight.
    Int4,
    /// Q8_0: 8.5 bits per weight.
    Int8,
}

impl Target {
    /// The format that weights get.
    pub const fn format(self) -> Format {
        match self {
            Target::Int4 => Format::Blocks(&Q4_0),
            Target::Int8 => Format::Blocks(&Q8_0),
        }
    }
}

/// Quantizes the float matrices of a model (linear weights and embeddings whose rows are whole blocks).
///
/// Norms, biases, routers and weights that are stored in blocks already stay as they are. `progress` is told
/// the source bytes done and to do, from this thread.
///
/// # Errors
/// Where memory for a tensor is not granted.
pub fn quantize(
    file: Box<dyn ModelFile>,
    target: Target,
    progress: &dyn Fn(u64, u64),
) -> Result<Box<dyn ModelFile>> {
    let format = target.format();
    let Some(encode) = format.encoder() else {
        return Ok(file);
    };
    let mut sources = Vec::new();
    for name in file.tensor_names() {
        let view = file.tensor(&name);
        sources.extend(
            view.filter(|v| is_matrix(&name, v, format))
                .map(|v| (name, v)),
        );
    }
    if sources.is_empty() {
        let (model, format) = (file.label(), format.name());
        tracing::warn!(
            "{model} has no matrices of floats that could become {format}: it stays as it is"
        );
    }
    let total = sources.iter().map(|(_, v)| v.bytes.len() as u64).sum();
    let mut done = 0;
    let mut tensors = HashMap::with_capacity(sources.len());
    for (name, source) in sources {
        let mut advance = |bytes: usize| {
            done += bytes as u64;
            progress(done, total);
        };
        let view = encode_tensor(&source, format, encode, file.label(), &mut advance)?;
        tensors.insert(name, view);
    }
    Ok(Box::new(Quantized { file, tensors }))
}

fn is_matrix(name: &str, view: &WeightView, format: Format) -> bool {
    let float = !matches!(view.format, Format::Blocks(_));
    let router = name.contains("ffn_gate_inp");
    float
        && !router
        && view.shape.len() >= 2
        && view.elements() > 0
        && view.row_len().is_multiple_of(format.block_len())
}

fn encode_tensor(
    source: &WeightView,
    format: Format,
    encode: Encoder,
    label: &str,
    advance: &mut dyn FnMut(usize),
) -> Result<WeightView> {
    let (row_len, row_in) = (source.row_len(), source.row_bytes());
    let row_out = format.row_bytes(row_len);
    let mut out = PageBuffer::new(source.rows() * row_out, label)?;
    let slab_rows = (SLAB_BYTES / row_in).max(1);
    let task_rows = (TASK_ELEMENTS / row_len).max(1);
    for (slab, out) in out.chunks_mut(slab_rows * row_out).enumerate() {
        let start = slab * slab_rows * row_in;
        let end = (start + slab_rows * row_in).min(source.bytes.len());
        let Some(stored) = source.bytes.slice(start..end) else {
            break;
        };
        let tasks = out
            .par_chunks_mut(task_rows * row_out)
            .zip(stored.par_chunks(task_rows * row_in));
        tasks.for_each_init(Vec::new, |values, (out, stored)| {
            values.resize(stored.len() / row_in * row_len, 0.0);
            source.format.decode_row(stored, values);
            encode.rows(values, out);
        });
        stored.release_pages();
        advance(end - start);
    }
    Ok(WeightView {
        bytes: out.freeze(),
        format,
        shape: source.shape.clone(),
    })
}

struct Quantized {
    file: Box<dyn ModelFile>,
    tensors: HashMap<String, WeightView>,
}

impl ModelFile for Quantized {
    fn arch(&self) -> &str {
        self.file.arch()
    }

    fn meta(&self, key: &str) -> Option<&Meta> {
        self.file.meta(key)
    }

    fn tensor(&self, name: &str) -> Option<WeightView> {
        let quantized = self.tensors.get(name).cloned();
        quantized.or_else(|| self.file.tensor(name))
    }

    fn tensor_names(&self) -> Vec<String> {
        self.file.tensor_names()
    }

    fn label(&self) -> &str {
        self.file.label()
    }
}
