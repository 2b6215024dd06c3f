//! Packages of kernels: folders with texts and machine code that were made before, perhaps on another machine. What is there is
//! neither made nor compiled again.

use crate::cuda::nvrtc;
use crate::{Error, KernelText, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// The file of a package that lists what it holds.
pub const MANIFEST: &str = "manifest.json";

/// What a package holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the program that wrote it.
    pub rusty: String,
    /// Architecture of the model.
    pub arch: String,
    /// Target that it was made for.
    pub target: String,
    /// Its kernels.
    pub kernels: Vec<Packed>,
}

/// A kernel of a package.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Packed {
    /// All but the source.
    #[serde(flatten)]
    pub kernel: KernelText,
    /// File of the source, named by its [digest](nvrtc::digest).
    #[serde(rename = "text")]
    pub file: String,
    /// File of the machine code, where there is some.
    pub code: Option<String>,
}

impl Packed {
    /// A kernel whose source and machine code lie in these files.
    pub fn new(text: &KernelText, file: String, code: Option<String>) -> Self {
        let kernel = KernelText {
            source: String::new(),
            ..text.clone()
        };
        Self { kernel, file, code }
    }

    /// The text, with its source out of a package's folder; none where the file is not what it was.
    fn text(&self, folder: &Path) -> Option<KernelText> {
        let source = fs::read_to_string(folder.join(plain(&self.file)?)).ok()?;
        if !self.file.starts_with(&nvrtc::digest(&source)) {
            let file = folder.join(&self.file);
            tracing::warn!("{} was changed: its kernel is made anew", file.display());
            return None;
        }
        Some(KernelText {
            source,
            ..self.kernel.clone()
        })
    }
}

/// A name without folders in it.
fn plain(name: &str) -> Option<&str> {
    (!name.contains(['/', '\\'])).then_some(name)
}

/// A package in use.
struct Package {
    folder: PathBuf,
    by_key: HashMap<String, Packed>,
}

static PACKAGES: RwLock<Vec<Package>> = RwLock::new(Vec::new());

fn packages() -> RwLockReadGuard<'static, Vec<Package>> {
    PACKAGES.read().unwrap_or_else(PoisonError::into_inner)
}

/// From now on kernels are looked for in this folder first.
///
/// # Errors
/// [`Error::Package`] where it is none.
pub fn use_package(folder: &Path) -> Result<()> {
    let refuse = |reason: String| Error::Package {
        folder: folder.display().to_string(),
        reason,
    };
    let manifest = fs::read(folder.join(MANIFEST));
    let manifest = manifest.map_err(|e| refuse(format!("{MANIFEST}: {e}")))?;
    let manifest: Manifest =
        serde_json::from_slice(&manifest).map_err(|e| refuse(format!("{MANIFEST}: {e}")))?;
    let by_key = manifest.kernels.into_iter();
    let mut packages = PACKAGES.write().unwrap_or_else(PoisonError::into_inner);
    packages.push(Package {
        folder: folder.into(),
        by_key: by_key.map(|k| (k.kernel.key.clone(), k)).collect(),
    });
    Ok(())
}

/// The text of this [key](KernelText::key), where a package has it.
pub fn text(key: &str) -> Option<KernelText> {
    packages()
        .iter()
        .find_map(|p| p.by_key.get(key)?.text(&p.folder))
}

/// The machine code of this name, where a package has it.
pub(crate) fn machine_code(name: &str) -> Option<Vec<u8>> {
    let packages = packages();
    packages
        .iter()
        .find_map(|p| fs::read(p.folder.join(name)).ok())
}

/// Whether some package has machine code.
pub(crate) fn has_machine_code() -> bool {
    let packages = packages();
    let mut kernels = packages.iter().flat_map(|p| p.by_key.values());
    kernels.any(|k| k.code.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Language;

    fn kernel(key: &str, source: &str) -> KernelText {
        KernelText {
            entry: "main".into(),
            source: source.into(),
            language: Language::Wgsl,
            bindings: vec![],
            info: true,
            unit_dim: [64, 1, 1],
            shared_bytes: 0,
            key: key.into(),
        }
    }

    #[test]
    fn texts_are_found_by_key_as_they_were_written() {
        let folder = std::env::temp_dir().join(format!("rusty-package-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let refused = use_package(&folder).expect_err("no manifest").to_string();
        assert!(refused.contains(MANIFEST), "{refused}");
        let made =
            ["whole", "changed", "outside"].map(|key| kernel(key, &format!("fn {key}() {{}}")));
        let packed = made.iter().map(|text| {
            let file = format!("{}.wgsl", nvrtc::digest(&text.source));
            let written = match text.key.as_str() {
                "changed" => "fn other() {}",
                _ => &text.source,
            };
            fs::write(folder.join(&file), written).expect("written");
            let file = match text.key.as_str() {
                "outside" => format!("../{file}"),
                _ => file,
            };
            Packed::new(text, file, None)
        });
        let manifest = Manifest {
            rusty: "0".into(),
            arch: "test".into(),
            target: "test".into(),
            kernels: packed.collect(),
        };
        let manifest = serde_json::to_vec(&manifest).expect("JSON");
        fs::write(folder.join(MANIFEST), manifest).expect("written");
        use_package(&folder).expect("a package");
        assert_eq!(text("whole").as_ref(), Some(&made[0]));
        for key in ["changed", "outside", "absent"] {
            assert_eq!(text(key), None, "{key}");
        }
        fs::remove_dir_all(folder).expect("removed");
    }
}
