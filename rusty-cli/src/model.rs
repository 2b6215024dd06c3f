//! From the MODEL argument to an opened model.

use crate::args::{AdapterMix, AdapterPrecision, Kv, Quantize, RandomModel, Rope, RopeScaling};
use crate::progress;
use anyhow::{Context, Result, ensure};
use rusty_adapters::{Mix, Precision};
use rusty_compiler::KvFormat;
use rusty_loader::ModelFile;
use rusty_loader::quantize::{Target, quantize};
use rusty_loader::rope_override::{RopeKind, RopeOverride};
use std::path::{Path, PathBuf};

/// The path of a MODEL argument: a file, a folder, or a hub id that is looked up in the local cache and
/// downloaded where it is not there.
pub fn resolve(model: &str) -> Result<PathBuf> {
    let bar = progress::bar("downloading", true);
    let path = rusty_loader::hub::resolve(model, &|progress| {
        bar.set_message(progress.file.clone());
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    })?;
    bar.finish_and_clear();
    Ok(path)
}

/// Refuses to write over what is read: these files, those in these folders, and all parts of a model in several.
pub fn check_kept<'a>(read: impl IntoIterator<Item = &'a Path>, out: &Path) -> Result<()> {
    // Where nothing is, nothing is lost.
    let Ok(there) = out.canonicalize() else {
        return Ok(());
    };
    let mut files = read.into_iter().flat_map(rusty_loader::files_at);
    ensure!(
        !files.any(|file| file.canonicalize().is_ok_and(|file| file == there)),
        "{} is among the files that are read: name another path",
        out.display()
    );
    Ok(())
}

/// Opens a MODEL argument; none is the built-in demo.
pub fn open(model: Option<&str>) -> Result<Box<dyn ModelFile>> {
    match model {
        Some(model) => Ok(rusty_loader::open(&resolve(model)?)?),
        None => Ok(rusty_engine::demo::model()?),
    }
}

/// Opens a MODEL argument with the rotary scaling that the options choose.
pub fn open_scaled(model: Option<&str>, rope: &Rope) -> Result<Box<dyn ModelFile>> {
    let Some(scaling) = rope.rope_scaling else {
        return open(model);
    };
    ensure!(
        scaling != RopeScaling::None || rope.rope_factor.is_none(),
        "--rope-factor: there is nothing to stretch with --rope-scaling none; leave one of them out"
    );
    let file = match model {
        Some(model) => rusty_loader::open_any_rope(resolve(model)?)?,
        None => open(None)?,
    };
    let kind = match scaling {
        RopeScaling::Yarn128k => {
            if file.arch() != "qwen3" {
                let label = file.label();
                tracing::warn!("yarn-128k is made for Qwen3, which {label} is not");
            }
            let factor = rope.rope_factor.or(RopeOverride::YARN_128K.factor);
            let preset = RopeOverride {
                factor,
                ..RopeOverride::YARN_128K
            };
            return Ok(preset.apply(file)?);
        }
        RopeScaling::None => RopeKind::None,
        RopeScaling::Linear => RopeKind::Linear,
        RopeScaling::Ntk => RopeKind::Ntk,
        RopeScaling::Yarn => RopeKind::Yarn,
        RopeScaling::Llama3 => RopeKind::Llama3,
        RopeScaling::Longrope => RopeKind::LongRope,
    };
    let chosen = RopeOverride {
        kind,
        factor: rope.rope_factor,
        original: None,
    };
    Ok(chosen.apply(file)?)
}

/// Opens a MODEL argument as [`open_scaled`] does, or makes the random one that is asked for instead.
pub fn open_or_make(
    model: Option<&str>,
    random: &RandomModel,
    rope: &Rope,
) -> Result<Box<dyn ModelFile>> {
    made(model, random, rope, rusty_loader::random::model)
}

/// As [`open_or_make`]; of a random model only the shapes are there, which is all that a plan takes.
pub fn open_or_outline(
    model: Option<&str>,
    random: &RandomModel,
    rope: &Rope,
) -> Result<Box<dyn ModelFile>> {
    made(model, random, rope, rusty_loader::random::outline)
}

fn made(
    model: Option<&str>,
    random: &RandomModel,
    rope: &Rope,
    make: fn(&str, &str) -> rusty_loader::Result<Box<dyn ModelFile>>,
) -> Result<Box<dyn ModelFile>> {
    let Some(shape) = &random.random else {
        return open_scaled(model, rope);
    };
    ensure!(
        rope.rope_scaling.is_none(),
        "--rope-scaling is for files, not for --random"
    );
    Ok(make(shape, &random.format)?)
}

/// A described target by its name.
pub fn target(name: &str) -> Result<rusty_backend::Target> {
    let known = rusty_backend::Target::names().join(", ");
    rusty_backend::Target::named(name).with_context(|| {
        format!("no target '{name}'; there are {known}, and cuda:sm_NN from sm_70 on")
    })
}

/// Quantizes float weights where asked, with a progress bar.
pub fn quantized(file: Box<dyn ModelFile>, format: Option<Quantize>) -> Result<Box<dyn ModelFile>> {
    let Some(format) = format else {
        return Ok(file);
    };
    let bar = progress::bar("quantizing", true);
    let file = quantize(file, format.into(), &|done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    Ok(file)
}

impl From<Kv> for KvFormat {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::F32 => KvFormat::F32,
            Kv::F16 => KvFormat::F16,
            Kv::Bf16 => KvFormat::Bf16,
            Kv::Q8_0 => KvFormat::Q8_0,
            Kv::Q4_0 => KvFormat::Q4_0,
        }
    }
}

impl From<AdapterMix> for Mix {
    fn from(mix: AdapterMix) -> Self {
        match mix {
            AdapterMix::Sum => Mix::Sum,
            AdapterMix::Linear => Mix::Linear,
        }
    }
}

impl From<AdapterPrecision> for Precision {
    fn from(precision: AdapterPrecision) -> Self {
        match precision {
            AdapterPrecision::Stored => Precision::Stored,
            AdapterPrecision::F16 => Precision::F16,
            AdapterPrecision::Int8 => Precision::Int8,
            AdapterPrecision::Int4 => Precision::Int4,
        }
    }
}

impl From<Quantize> for Target {
    fn from(quantize: Quantize) -> Self {
        match quantize {
            Quantize::Int4 => Target::Int4,
            Quantize::Int8 => Target::Int8,
        }
    }
}
