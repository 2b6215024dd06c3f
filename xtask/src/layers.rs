//! The layering of the workspace: each library may use only crates on its left, read from `cargo metadata`.

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};

/// Layers from the bottom up; crates of one layer do not know each other.
const LAYERS: &[&[&str]] = &[
    &["rusty-loader"],
    &["rusty-graph", "rusty-backend"],
    &["rusty-compiler"],
    &["rusty-adapters"],
    &["rusty-engine"],
    &["rusty-serve"],
    &["rusty-cli"],
    &["benches", "rusty-examples"],
    &["rusty-gpu-check"],
];

/// Fails with every dependency that points upwards or sideways.
pub fn check() -> Result<()> {
    let metadata = MetadataCommand::new()
        .current_dir(crate::root())
        .no_deps()
        .exec()?;
    let layer = |name: &str| LAYERS.iter().position(|crates| crates.contains(&name));
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        if name == "xtask" {
            continue;
        }
        let Some(own) = layer(name) else {
            wrong.push(format!(
                "{name} has no layer; add it to xtask/src/layers.rs"
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let used = layer(&dependency.name);
            if dependency.kind != DependencyKind::Development
                && used.is_some_and(|used| used >= own)
            {
                wrong.push(format!(
                    "{name} uses {}, which is not below it",
                    dependency.name
                ));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}
