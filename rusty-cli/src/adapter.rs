//! From `--adapter PATH[=WEIGHT]` arguments to attached adapters.

use anyhow::{Context, Error, Result, anyhow, bail};
use rusty_adapters::{Base, Cache, Mix, Precision, Stated};
use rusty_compiler::SlotData;
use rusty_engine::{AdapterId, AdapterSet, Engine, demo};
use rusty_graph::Site;
use std::path::Path;

/// Attaches the adapters; their mix is what sessions are to use.
pub fn attach(
    engine: &Engine,
    arguments: &[String],
    precision: Precision,
    mix: Mix,
) -> Result<AdapterSet> {
    let entries = arguments
        .iter()
        .map(|argument| {
            let (name, weight) = split(argument)?;
            Ok((read(engine, name, precision)?, weight))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(AdapterSet::mixed(entries, mix))
}

/// Splits `PATH[=WEIGHT]`; a path that exists as a whole has no weight.
pub fn split(argument: &str) -> Result<(&str, f32)> {
    match argument.rsplit_once('=') {
        Some((name, weight)) if !Path::new(argument).exists() => {
            let weight: f32 = weight
                .parse()
                .with_context(|| format!("--adapter {argument}: '{weight}' is no weight"))?;
            if !weight.is_finite() {
                bail!("--adapter {argument}: the weight must be finite");
            }
            Ok((name, weight))
        }
        _ => Ok((argument, 1.0)),
    }
}

fn read(engine: &Engine, name: &str, precision: Precision) -> Result<AdapterId> {
    let path = Path::new(name);
    match path.exists() {
        true => Ok(engine.attach_file(path, precision)?),
        false => Ok(engine.attach(prepare(name, &engine.adapter_base(), precision)?)?),
    }
}

/// Reads an adapter by its path, or one of the demo's by its name.
pub fn prepare(name: &str, base: &Base<'_>, precision: Precision) -> Result<SlotData> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(rusty_adapters::load(path, base, precision)?);
    }
    match demo::adapter(name, base) {
        Some(adapter) => Ok(precision.applied(adapter?)),
        None => Err(unknown(name)),
    }
}

/// Says that an adapter is nowhere.
fn unknown(name: &str) -> Error {
    let known: Vec<_> = demo::adapters().collect();
    anyhow!(
        "adapter '{name}': no such folder or file, nor an adapter of the demo model ({})",
        known.join(", ")
    )
}

/// Bytes of an adapter's tensors as they are stored, by its path or one of the demo's by its name.
pub fn stored_bytes(name: &str) -> Option<u64> {
    rusty_adapters::stored_bytes(Path::new(name)).or_else(|| demo::adapter_bytes(name))
}

/// What an adapter's file states of itself, by its path or one of the demo's by its name.
pub fn stated(name: &str) -> Result<Stated> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(Stated::read(path)?);
    }
    match demo::adapter_config(name) {
        Some(config) => Ok(Stated::of_config(path, config.as_bytes())?),
        None => Err(unknown(name)),
    }
}

/// What random adapter `number` is called.
pub fn random_name(number: usize) -> String {
    format!("random-{number}")
}

/// Random adapter `number`.
pub fn random(number: usize, rank: u32, sites: &[Site], precision: Precision) -> SlotData {
    rusty_adapters::random(&random_name(number), sites, rank, number as u64, precision)
}

/// Where prepared adapters are kept: as asked for, else beside what else is cached.
pub fn cache(folder: Option<&Path>) -> Option<Cache> {
    match folder {
        Some(folder) if folder == Path::new("none") => None,
        Some(folder) => Some(Cache::new(folder)),
        None => Some(Cache::new(rusty_backend::cache::folder()?.join("adapters"))),
    }
}
