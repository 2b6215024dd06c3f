//! `rusty quantize`: a GGUF once more with its weights in other formats.

use crate::args::QuantizeFile;
use crate::{model, progress};
use anyhow::{Result, bail};
use rusty_loader::Format;
use rusty_loader::output_file::is_taken;
use rusty_loader::quantize::imatrix::Importance;
use rusty_loader::quantize::{file, mix};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Writes the file and prints what became of it.
pub fn run(options: &QuantizeFile) -> Result<()> {
    let job = checked(options)?;
    let start = Instant::now();
    let bar = progress::bar("quantizing", false);
    let written = file::write(
        &job.source,
        &options.out,
        job.mix,
        job.importance.as_ref(),
        &|done, total| {
            bar.set_length(total);
            bar.set_position(done);
        },
    )?;
    bar.finish_and_clear();
    report(&options.out, &job, &written, start.elapsed())
}

/// What is asked for.
struct Job {
    source: PathBuf,
    mix: &'static mix::Mix,
    importance: Option<Importance>,
}

/// The job, where nothing speaks against it.
fn checked(options: &QuantizeFile) -> Result<Job> {
    let Some(mix) = mix::Mix::by_name(&options.format) else {
        let names: Vec<_> = mix::ALL.iter().map(|m| m.name).collect();
        let read = match Format::by_name(&options.format) {
            Some(_) => " is read, not written",
            None => " is unknown",
        };
        bail!(
            "--format {}{read}; known ones are {}",
            options.format,
            names.join(", ")
        );
    };
    if options.out.is_dir() {
        bail!("{} is a folder: name a GGUF file", options.out.display());
    }
    if is_taken(&options.out) && !options.force {
        bail!("{} exists; --force overwrites it", options.out.display());
    }
    let importance = options
        .imatrix
        .as_deref()
        .map(Importance::open)
        .transpose()?;
    let source = rusty_loader::model_path(&model::resolve(&options.source)?)?;
    if source.is_dir() {
        bail!(
            "{} holds safetensors: IN must be a GGUF (llama.cpp's convert_hf_to_gguf.py makes one of a folder; --quantize of \
             other commands quantizes a folder while it is loaded)",
            source.display()
        );
    }
    let read = [Some(&*source), options.imatrix.as_deref()];
    model::check_kept(read.into_iter().flatten(), &options.out)?;
    Ok(Job {
        source,
        mix,
        importance,
    })
}

/// Prints what became of a file.
fn report(path: &Path, job: &Job, written: &file::Report, took: Duration) -> Result<()> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let formats = written
        .formats
        .iter()
        .map(|(name, n)| format!("{n} {name}"));
    let formats: Vec<_> = formats.collect();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: {:.1} MiB, was {:.1} MiB; tensors: {}; {:.1} s",
        path.display(),
        mib(written.after),
        mib(written.before),
        formats.join(", "),
        took.as_secs_f64()
    )?;
    if written.again > 0 {
        writeln!(
            out,
            "{} matrices had been quantized before: what that lost stays lost; a file of floats is the better source",
            written.again
        )?;
    }
    if written.shorter > 0 {
        writeln!(
            out,
            "{} matrices got a format of shorter blocks: their rows are no whole blocks of {}'s",
            written.shorter, job.mix.name
        )?;
    }
    if let Some(importance) = &job.importance {
        let (weighted, known) = (written.weighted, importance.len());
        writeln!(
            out,
            "{weighted} matrices weighted by importance; {known} are known"
        )?;
    }
    Ok(())
}
