//! From `--adapter PATH[=WEIGHT]` arguments to one attached slot.

use anyhow::{Context, Result, bail};
use rusty_adapters::{combine, from_bytes, load};
use rusty_compiler::{SlotData, SlotId};
use rusty_engine::{Engine, demo};
use std::path::Path;

/// Attaches the weighted sum of the adapters; [`SlotId::BASE`] where there are none.
pub fn attach(engine: &Engine, arguments: &[String]) -> Result<SlotId> {
    let adapters = arguments
        .iter()
        .map(|argument| {
            let (name, weight) = split(argument)?;
            Ok((read(engine, name)?, weight))
        })
        .collect::<Result<Vec<_>>>()?;
    if adapters.is_empty() {
        return Ok(SlotId::BASE);
    }
    Ok(engine.attach(combine(&adapters))?)
}

/// Splits `PATH[=WEIGHT]`; a path that exists as a whole has no weight.
fn split(argument: &str) -> Result<(&str, f32)> {
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

fn read(engine: &Engine, name: &str) -> Result<SlotData> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(load(path, engine.graph())?);
    }
    match demo::adapter(name) {
        Some((config, tensors)) => Ok(from_bytes(
            name,
            path,
            config.as_bytes(),
            tensors,
            engine.graph(),
        )?),
        None => bail!(
            "--adapter {name}: no such folder, nor an adapter of the demo model ({})",
            demo::adapters().collect::<Vec<_>>().join(", ")
        ),
    }
}
