//! The built-in demo model and its adapters, compiled into the program.

use crate::Result;
use rusty_adapters::{Base, Precision};
use rusty_compiler::SlotData;
use rusty_loader::{ModelFile, SharedBytes};
use std::path::Path;
use std::sync::Arc;

static MODEL: &[u8] = include_bytes!("../../assets/demo/model.gguf");

/// An adapter's folder: name, configuration, tensors.
type Adapter = (&'static str, &'static str, &'static [u8]);

static ADAPTERS: &[Adapter] = &[
    (
        "sql",
        include_str!("../../assets/demo/adapters/sql/adapter_config.json"),
        include_bytes!("../../assets/demo/adapters/sql/adapter_model.safetensors"),
    ),
    (
        "json",
        include_str!("../../assets/demo/adapters/json/adapter_config.json"),
        include_bytes!("../../assets/demo/adapters/json/adapter_model.safetensors"),
    ),
    (
        "cypher",
        include_str!("../../assets/demo/adapters/cypher/adapter_config.json"),
        include_bytes!("../../assets/demo/adapters/cypher/adapter_model.safetensors"),
    ),
];

static EXPERTS: &[(&str, &str)] = &[
    (
        "sql",
        include_str!("../../assets/demo/experts/sql/expert.toml"),
    ),
    (
        "json",
        include_str!("../../assets/demo/experts/json/expert.toml"),
    ),
    (
        "cypher",
        include_str!("../../assets/demo/experts/cypher/expert.toml"),
    ),
];

/// The demo model.
///
/// # Errors
/// None where the program was built from an intact tree.
pub fn model() -> Result<Box<dyn ModelFile>> {
    let bytes = SharedBytes::from_owner(Arc::new(MODEL));
    Ok(rusty_loader::open_gguf_bytes("demo", bytes)?)
}

/// Names of the demo's adapters.
pub fn adapters() -> impl Iterator<Item = &'static str> {
    ADAPTERS.iter().map(|(name, _, _)| *name)
}

/// One of the demo's adapters, prepared for the demo model; none where there is none of that name.
///
/// # Errors
/// `base` is another model.
pub fn adapter(name: &str, base: &Base<'_>) -> Option<Result<SlotData>> {
    let (_, config, tensors) = ADAPTERS.iter().find(|(n, _, _)| *n == name)?;
    let tensors = SharedBytes::from_owner(Arc::new(*tensors));
    let (path, precision) = (Path::new(name), Precision::Stored);
    let data = rusty_adapters::from_bytes(name, path, config.as_bytes(), tensors, base, precision);
    Some(data.map_err(crate::Error::from))
}

/// Bytes of the tensors of one of the demo's adapters; none where there is none of that name.
pub fn adapter_bytes(name: &str) -> Option<u64> {
    let (_, _, tensors) = ADAPTERS.iter().find(|(n, _, _)| *n == name)?;
    Some(tensors.len() as u64)
}

/// The `adapter_config.json` of one of the demo's adapters; none where there is none of that name.
pub fn adapter_config(name: &str) -> Option<&'static str> {
    let (_, config, _) = ADAPTERS.iter().find(|(n, _, _)| *n == name)?;
    Some(config)
}

/// Names and manifests of the demo's experts; each has the adapter of its name.
pub fn experts() -> impl Iterator<Item = (&'static str, &'static str)> {
    EXPERTS.iter().copied()
}
