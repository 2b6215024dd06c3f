//! A GGUF once more, its matrices in other formats.
//!
//! Keys and the order of tensors stay as they are. Each tensor is read from the mapping, encoded in parallel by slabs of
//! rows and written before the next is looked at, so memory holds one slab, whatever the model's size.

use std::io::Write;
use std::path::Path;

use rayon::prelude::*;

use super::imatrix::Importance;
use super::mix::{Mix, Model};
use crate::formats::Encoder;
use crate::gguf::write::GgufWriter;
use crate::gguf::{Gguf, TensorInfo};
use crate::{Error, Format, Meta, Result, SharedBytes};

/// Elements that are encoded between two writes.
const SLAB: usize = 1 << 22;

/// Keys that are stated anew.
const OWN: [&str; 2] = ["general.file_type", "general.quantization_version"];

/// What became of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Bytes of tensors before.
    pub before: u64,
    /// Bytes of tensors after.
    pub after: u64,
    /// Formats written, with their number of tensors.
    pub formats: Vec<(&'static str, usize)>,
    /// Matrices whose importance was known.
    pub weighted: usize,
    /// Matrices whose rows are no whole blocks of the format that the mixture has for them, and got one of shorter blocks.
    pub shorter: usize,
    /// Matrices that had been quantized before, to another format: what that lost stays lost.
    pub again: usize,
}

/// Writes `source` to `out` in a mixture of formats; `progress` is told the elements done and to do.
///
/// # Errors
/// Where the source cannot be read, stores a tensor in an unknown format or lacks the number of its layers, or `out` cannot
/// be written. What was written of it is removed then.
pub fn write(
    source: &Path,
    out: &Path,
    mix: &Mix,
    importance: Option<&Importance>,
    progress: &dyn Fn(u64, u64),
) -> Result<Report> {
    let file = Gguf::open(source)?;
    let model = model(source, &file, importance.is_some())?;
    let arch = file.meta.get("general.architecture").and_then(Meta::as_str);
    let mut writer = GgufWriter::new(arch.unwrap_or_default());
    writer.copy_keys(&file, &OWN);
    writer.meta("general.file_type", mix.file_type);
    writer.meta("general.quantization_version", 2u64);
    let mut report = Report::default();
    let mut jobs = Vec::with_capacity(file.tensors.len());
    for info in &file.tensors {
        let job = Job::new(source, &file, info, mix, &model, importance)?;
        writer.tensor(&info.name, job.to, &job.shape);
        report.add(&job);
        jobs.push(job);
    }
    let total = jobs.iter().map(Job::elements).sum();
    let (mut done, mut next) = (0, jobs.iter());
    let mut data = |_: &str, to: &mut dyn Write| {
        let job = next.next().ok_or(std::io::ErrorKind::UnexpectedEof)?;
        job.write(to, &mut |elements| {
            done += elements as u64;
            progress(done, total);
        })
    };
    writer.save(out, &mut data)?;
    Ok(report)
}

fn model(path: &Path, file: &Gguf, weighted: bool) -> Result<Model> {
    let ends_with = |end: &str| {
        let found = file.meta.iter().find(|(key, _)| key.ends_with(end));
        found.and_then(|(_, value)| value.as_u64())
    };
    let layers = ends_with(".block_count")
        .ok_or_else(|| Error::malformed(path, "states no number of blocks"))?;
    let heads = ends_with(".attention.head_count").unwrap_or(1);
    let shared = ends_with(".attention.head_count_kv").unwrap_or(heads);
    Ok(Model {
        layers: layers as usize,
        tied: file.tensors.iter().all(|t| t.name != "output.weight"),
        weighted,
        queries_per_key: heads.checked_div(shared).unwrap_or(1) as usize,
        experts: ends_with(".expert_count").unwrap_or(0) as usize,
    })
}

/// One tensor's way.
struct Job<'a> {
    bytes: SharedBytes,
    from: Format,
    to: Format,
    /// Whether the mixture has another format for it.
    shorter: bool,
    encoder: Option<Encoder>,
    shape: Vec<usize>,
    importance: Option<&'a [f32]>,
}

impl<'a> Job<'a> {
    fn new(
        path: &Path,
        file: &Gguf,
        info: &TensorInfo,
        mix: &Mix,
        model: &Model,
        importance: Option<&'a Importance>,
    ) -> Result<Self> {
        let unknown = || {
            let what = format!("format {} of tensor '{}'", info.kind.name, info.name);
            Error::unsupported(path, what, "this format cannot be decoded")
        };
        let from = Format::by_ggml_type(info.kind.id).ok_or_else(unknown)?;
        let outside = || Error::malformed(path, format!("tensor '{}' lies outside", info.name));
        let shape: Vec<usize> = info.shape.iter().map(|d| *d as usize).collect();
        let row = shape.last().copied().unwrap_or(0);
        let (mut to, mut shorter) = (from, false);
        if is_matrix(&info.name, &shape) && row.is_multiple_of(from.block_len()) {
            to = mix.format_of(&info.name, row, model);
            shorter = to != mix.wanted(&info.name, model);
        }
        Ok(Self {
            bytes: file.tensor_bytes(info).ok_or_else(outside)?,
            encoder: to.encoder().filter(|_| to != from),
            importance: importance.and_then(|i| i.of(&info.name, experts(&shape) * row)),
            from,
            to,
            shorter,
            shape,
        })
    }

    fn elements(&self) -> u64 {
        self.shape.iter().map(|d| *d as u64).product()
    }

    /// The importance of each column of a row, which all rows of an expert share.
    fn importance_of(&self, row: usize) -> Option<&'a [f32]> {
        let [.., rows, columns] = self.shape[..] else {
            return self.importance;
        };
        self.importance?
            .chunks_exact(columns.max(1))
            .nth(row / rows.max(1))
    }

    fn write(&self, out: &mut dyn Write, done: &mut dyn FnMut(usize)) -> std::io::Result<()> {
        let Some(encoder) = self.encoder else {
            out.write_all(&self.bytes)?;
            done(self.elements() as usize);
            return Ok(());
        };
        let row = self.shape.last().copied().unwrap_or(1);
        let (row_in, row_out) = (self.from.row_bytes(row), self.to.row_bytes(row));
        let slab = (SLAB / row).max(1);
        let mut encoded = vec![0; slab * row_out];
        let mut first = 0;
        for stored in self.bytes.chunks(slab * row_in) {
            let rows = stored.len() / row_in;
            let encoded = &mut encoded[..rows * row_out];
            let tasks = encoded
                .par_chunks_mut(row_out)
                .zip(stored.par_chunks(row_in));
            let tasks = tasks.enumerate();
            tasks.for_each_init(Vec::new, |values, (i, (to, from))| {
                values.resize(row, 0.0);
                self.from.decode_row(from, values);
                encoder.row(values, self.importance_of(first + i), to);
            });
            first += rows;
            out.write_all(encoded)?;
            done(rows * row);
        }
        self.bytes.release_pages();
        Ok(())
    }
}

/// Matrices that lie behind each other under one name.
fn experts(shape: &[usize]) -> usize {
    shape[..shape.len().saturating_sub(2)].iter().product()
}

/// Linear weights and embeddings; routers and the rest stay as they are.
fn is_matrix(name: &str, shape: &[usize]) -> bool {
    let kept = ["_norm.weight", "ffn_gate_inp.weight"];
    shape.len() >= 2
        && shape.iter().all(|d| *d > 0)
        && name.ends_with(".weight")
        && kept.iter().all(|end| !name.ends_with(end))
}

impl Report {
    fn add(&mut self, job: &Job<'_>) {
        self.before += job.bytes.len() as u64;
        self.after += job.to.row_bytes(job.elements() as usize) as u64;
        self.weighted += usize::from(
            job.importance.is_some() && job.encoder.is_some_and(|e| e.uses_importance()),
        );
        self.shorter += usize::from(job.shorter);
        let quantized = matches!(job.from, Format::Blocks(_));
        self.again += usize::from(quantized && job.from != job.to);
        let name = job.to.name();
        match self.formats.iter_mut().find(|(n, _)| *n == name) {
            Some((_, count)) => *count += 1,
            None => self.formats.push((name, 1)),
        }
    }
}
