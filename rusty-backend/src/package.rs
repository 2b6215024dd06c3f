//! Packages of kernels: folders with texts and machine code that were made before, perhaps on another machine. What is there is
//! neither made nor compiled again. Texts depend on the facts that kernels were planned for, so a device that serves a package's target
//! has its kernels planned for that ([`facts`]).

use crate::cuda::{cubin, nvrtc};
use crate::{Error, KernelText, Result, Target};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard};

/// The file of a package that lists what it holds.
pub const MANIFEST: &str = "manifest.json";

/// What a package holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Build of the program that wrote it: another one may plan other kernels, and make other texts.
    pub rusty: String,
    /// Architecture of the model.
    pub arch: String,
    /// Facts that its kernels were planned for.
    pub target: Target,
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
    build: String,
    target: Target,
    by_key: HashMap<String, Packed>,
    /// Whether it was said that it is of no use.
    said: Once,
}

impl Package {
    /// Whether plans of a build for its target find their kernels in it and run on a device; else why not, and what to do.
    fn serves(&self, device: &Target, build: &str) -> Result<(), String> {
        if self.build != build {
            return Err(format!(
                "another build of Rusty wrote it ({}, this is {build}): write it anew",
                self.build
            ));
        }
        device.serves(&self.target).map_err(|lack| {
            let (name, target) = (&device.name, &self.target.name);
            // So it is too where the device has them and they are not wanted of it.
            if device.serves(&self.target.in_single_precision()).is_ok() {
                return format!(
                    "kernels for {target} may need {lack}, without which {name} is planned for here: write one with `rusty compile --single-precision`"
                );
            }
            format!(
                "{name} lacks {lack}, which kernels for {target} may need: write one for a target that has what {name} has"
            )
        })
    }
}

static PACKAGES: RwLock<Vec<Package>> = RwLock::new(Vec::new());

fn packages() -> RwLockReadGuard<'static, Vec<Package>> {
    PACKAGES.read().unwrap_or_else(PoisonError::into_inner)
}

/// From now on kernels are looked for in this folder first. One that is in use already stays as it was read.
///
/// # Errors
/// [`Error::Package`] where it is none, or one whose target's facts are not told, as those of earlier versions.
pub fn use_package(folder: &Path) -> Result<()> {
    let refuse = |reason: String| Error::Package {
        folder: folder.display().to_string(),
        reason,
    };
    let manifest = fs::read(folder.join(MANIFEST));
    let manifest = manifest.map_err(|e| refuse(format!("{MANIFEST}: {e}")))?;
    let manifest: Manifest = serde_json::from_slice(&manifest)
        .map_err(|e| refuse(format!("{MANIFEST}: {e}; was it another version's?")))?;
    let by_key = manifest.kernels.into_iter();
    let mut packages = PACKAGES.write().unwrap_or_else(PoisonError::into_inner);
    if packages.iter().all(|p| p.folder != folder) {
        packages.push(Package {
            folder: folder.into(),
            build: manifest.rusty,
            target: manifest.target,
            by_key: by_key.map(|k| (k.kernel.key.clone(), k)).collect(),
            said: Once::new(),
        });
    }
    Ok(())
}

/// What a build is to plan kernels for on a device, of whose facts only those that are wanted are told, so that they are found in a
/// package: the device [as](Target::planned_as) the target of the first that it [serves](Target::serves). None where it serves none; why
/// is said once.
pub fn facts(device: &Target, build: &str) -> Option<Target> {
    let packages = packages();
    let serves = |package: &Package| package.serves(device, build);
    if let Some(package) = packages.iter().find(|p| serves(p).is_ok()) {
        return Some(device.planned_as(&package.target));
    }
    for package in packages.iter() {
        if let Err(reason) = serves(package) {
            let folder = package.folder.display();
            package.said.call_once(|| {
                tracing::warn!(
                    "{folder}: kernels are compiled here, not taken from this package: {reason}"
                );
            });
        }
    }
    None
}

/// The text of this [key](KernelText::key), where a package has it.
pub fn text(key: &str) -> Option<KernelText> {
    packages()
        .iter()
        .find_map(|p| p.by_key.get(key)?.text(&p.folder))
}

/// The machine code of this name, where a package has it whole.
pub(crate) fn machine_code(name: &str) -> Option<Vec<u8>> {
    let packages = packages();
    let mut files = packages.iter().map(|package| package.folder.join(name));
    files.find_map(|file| {
        let code = fs::read(&file).ok()?;
        let whole = cubin::is_whole(&code);
        if !whole {
            tracing::warn!("{} is damaged, and not used", file.display());
        }
        whole.then_some(code)
    })
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

    fn write(folder: &Path, build: &str, target: Target, kernels: Vec<Packed>) {
        let manifest = Manifest {
            rusty: build.into(),
            arch: "test".into(),
            target,
            kernels,
        };
        let manifest = serde_json::to_vec(&manifest).expect("JSON");
        fs::write(folder.join(MANIFEST), manifest).expect("written");
    }

    fn named(target: &str) -> Target {
        Target::named(target).expect(target)
    }

    /// Builds of their own keep what other tests use apart.
    #[test]
    fn devices_plan_for_packages_that_they_serve() {
        let folder = std::env::temp_dir().join(format!("rusty-facts-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        write(&folder, "facts", named("vulkan"), vec![]);
        use_package(&folder).expect("a package");
        let here = named("llvmpipe");
        let planned = here.planned_as(&named("vulkan"));
        assert_eq!(facts(&here, "facts"), Some(planned));
        // Who wants no inputs rounded is served by a package that was written for it, and so is anybody else.
        let single = here.in_single_precision();
        assert_eq!(facts(&single, "facts"), None);
        let other = folder.join("single");
        fs::create_dir_all(&other).expect("a folder");
        let wanted = named("vulkan").in_single_precision();
        write(&other, "single", wanted.clone(), vec![]);
        use_package(&other).expect("a package");
        for device in [&here, &single] {
            assert_eq!(facts(device, "single"), Some(here.planned_as(&wanted)));
        }
        // Another language, another build.
        assert_eq!(facts(&named("h200"), "facts"), None);
        assert_eq!(facts(&here, "another"), None);
        // A second reading changes nothing.
        write(&folder, "another", named("vulkan"), vec![]);
        use_package(&folder).expect("a package");
        assert_eq!(facts(&here, "another"), None);
        // Earlier versions told the target's name alone.
        let old = r#"{"rusty": "0", "arch": "test", "target": "vulkan", "kernels": []}"#;
        fs::write(folder.join(MANIFEST), old).expect("written");
        let refused = use_package(&folder).expect_err("no facts").to_string();
        assert!(
            refused.contains("another version") && refused.contains("rusty compile"),
            "{refused}"
        );
        fs::remove_dir_all(folder).expect("removed");
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
        write(&folder, "0", named("vulkan"), packed.collect());
        use_package(&folder).expect("a package");
        assert_eq!(text("whole").as_ref(), Some(&made[0]));
        for key in ["changed", "outside", "absent"] {
            assert_eq!(text(key), None, "{key}");
        }
        fs::remove_dir_all(folder).expect("removed");
    }
}
