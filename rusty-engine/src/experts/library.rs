//! A folder of experts.

use super::manifest::{FILE, Manifest};
use crate::adapters::AdapterId;
use crate::engine::Engine;
use crate::{Error, Result, demo};
use rusty_adapters::Precision;
use std::path::{Path, PathBuf};

/// Most experts of a library: all of them are attached at once.
const MAX_EXPERTS: usize = 256;

/// A manifest and where its adapter is.
#[derive(Clone, Debug)]
pub struct Expert {
    manifest: Manifest,
    path: PathBuf,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Path(PathBuf),
    /// One of the demo's, by its name.
    Demo(String),
}

impl Expert {
    /// Reads a folder with an `expert.toml`.
    ///
    /// # Errors
    /// As [`Manifest::read`], or the adapter is not where the manifest says.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let manifest = Manifest::read(&path)?;
        let adapter = folder.join(&manifest.adapter);
        if !adapter.exists() {
            let reason = format!("adapter {} does not exist", adapter.display());
            return Err(Error::Expert { path, reason });
        }
        Ok(Self {
            manifest,
            path,
            source: Source::Path(adapter),
        })
    }

    /// What the manifest says.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What the expert is called.
    pub fn name(&self) -> &str {
        &self.manifest.name
    }

    /// The manifest's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Attaches the adapter to an engine.
    ///
    /// # Errors
    /// It is malformed or does not fit.
    pub fn attach(&self, engine: &Engine, precision: Precision) -> Result<AdapterId> {
        match &self.source {
            Source::Path(path) => engine.attach_file(path, precision),
            Source::Demo(name) => {
                let adapter = demo::adapter(name, &engine.adapter_base());
                let missing = || Error::Expert {
                    path: self.path.clone(),
                    reason: format!("the demo has no adapter '{name}'"),
                };
                engine.attach(precision.applied(adapter.ok_or_else(missing)??))
            }
        }
    }
}

impl Source {
    /// Bytes of the adapter's tensors as they are stored, where they are there.
    fn bytes(&self) -> Option<u64> {
        match self {
            Source::Path(path) => rusty_adapters::stored_bytes(path),
            Source::Demo(name) => demo::adapter_bytes(name),
        }
    }
}

/// Experts in the order in which they are loaded.
#[derive(Clone, Debug, Default)]
pub struct Library {
    experts: Vec<Expert>,
}

impl Library {
    /// Bytes of the largest adapter's tensors as they are stored.
    pub fn largest_adapter(&self) -> u64 {
        let bytes = self.experts.iter().filter_map(|e| e.source.bytes());
        bytes.max().unwrap_or(0)
    }

    /// A library of these experts, sorted by load order and name.
    ///
    /// # Errors
    /// Two have the same name, whatever the case of its letters, or there are too many.
    pub fn new(mut experts: Vec<Expert>) -> Result<Self> {
        if let Some(expert) = experts.get(MAX_EXPERTS) {
            return Err(Error::Expert {
                path: expert.path.clone(),
                reason: format!("a library holds at most {MAX_EXPERTS} experts"),
            });
        }
        experts.sort_by(|a, b| {
            let key = |e: &Expert| (e.manifest.load_order, e.manifest.name.clone());
            key(a).cmp(&key(b))
        });
        for (index, expert) in experts.iter().enumerate() {
            let same =
                |other: &&Expert| other.name().to_lowercase() == expert.name().to_lowercase();
            if let Some(other) = experts[..index].iter().find(same) {
                let (name, other) = (expert.name(), other.path.display());
                return Err(Error::Expert {
                    path: expert.path.clone(),
                    reason: format!("the name '{name}' is taken by {other}"),
                });
            }
        }
        Ok(Self { experts })
    }

    /// Reads every subfolder that has an `expert.toml`.
    ///
    /// # Errors
    /// [`Error::Expert`] with the file that is wrong and why; the folder itself where it cannot be read. Where none of its subfolders
    /// has an `expert.toml` there are no experts, which is told.
    pub fn open(folder: &Path) -> Result<Self> {
        let wrong = |reason: String| Error::Expert {
            path: folder.into(),
            reason,
        };
        let io = |e: std::io::Error| wrong(e.to_string());
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            // A link whose target is gone is an error to be told, not a folder to be left out.
            if path.join(FILE).symlink_metadata().is_ok() {
                folders.push(path);
            }
        }
        // The order of a folder's entries is the file system's; which error is told should not be.
        folders.sort();
        if folders.is_empty() {
            let folder = folder.display();
            tracing::warn!(
                "{folder}: no folder in it has an {FILE}; the base model answers all messages"
            );
        }
        let experts = folders.iter().map(|path| Expert::open(path));
        Self::new(experts.collect::<Result<_>>()?)
    }

    /// The experts of the built-in demo model.
    ///
    /// # Errors
    /// None where the program was built from an intact tree.
    pub fn demo() -> Result<Self> {
        let experts = demo::experts().map(|(name, text)| {
            let path = Path::new("demo").join(name).join(FILE);
            Ok(Expert {
                manifest: Manifest::parse(&path, text)?,
                path,
                source: Source::Demo(name.into()),
            })
        });
        Self::new(experts.collect::<Result<_>>()?)
    }

    /// The experts, in the order in which they are loaded.
    pub fn experts(&self) -> &[Expert] {
        &self.experts
    }

    /// What the experts' manifests say, in the same order.
    pub fn manifests(&self) -> impl Iterator<Item = &Manifest> {
        self.experts.iter().map(Expert::manifest)
    }
}
