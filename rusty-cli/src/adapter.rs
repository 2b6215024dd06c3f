//! From `--adapter PATH[=WEIGHT]` arguments to attached adapters.

use anyhow::{Context, Result, bail};
use rusty_adapters::Precision;
use rusty_engine::{AdapterId, AdapterSet, Engine, demo};
use std::path::Path;

/// Attaches the adapters; their weighted sum is what sessions are to use.
pub fn attach(engine: &Engine, arguments: &[String], precision: Precision) -> Result<AdapterSet> {
    let entries = arguments
        .iter()
        .map(|argument| {
            let (name, weight) = split(argument)?;
            Ok((read(engine, name, precision)?, weight))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(AdapterSet::sum(entries))
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

fn read(engine: &Engine, name: &str, precision: Precision) -> Result<AdapterId> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(engine.attach_file(path, precision)?);
    }
    match demo::adapter(name, &engine.adapter_base()) {
        Some(adapter) => Ok(engine.attach(adapter?)?),
        None => bail!(
            "--adapter {name}: no such folder or file, nor an adapter of the demo model ({})",
            demo::adapters().collect::<Vec<_>>().join(", ")
        ),
    }
}
