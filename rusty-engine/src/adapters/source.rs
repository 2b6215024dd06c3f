//! Where an adapter's tables come from, and come from again after they were dropped.

use crate::{Error, Result};
use rusty_adapters::{Base, Cache, Precision, Stamp};
use rusty_compiler::SlotData;
use rusty_graph::Graph;
use rusty_loader::ModelFile;
use std::path::PathBuf;
use std::sync::Arc;

/// See the module head.
#[derive(Clone)]
pub(crate) enum Source {
    /// Given ready; it cannot be dropped.
    Given,
    /// A file or folder, with what it takes to prepare it.
    File {
        path: PathBuf,
        precision: Precision,
        graph: Arc<Graph>,
        base: Option<Arc<dyn ModelFile>>,
        cache: Option<Cache>,
        /// Of the file when it was attached.
        stamp: Option<Stamp>,
    },
}

impl Source {
    /// Reads and prepares the tables.
    ///
    /// # Errors
    /// The file is gone, malformed or does not fit.
    pub fn read(&self) -> Result<Arc<SlotData>> {
        match self {
            Source::Given => Err(Error::Request("a given adapter was dropped".into())),
            Source::File {
                path,
                precision,
                graph,
                base,
                cache,
                stamp,
            } => {
                let now = Stamp::of(path);
                let same = |(now, then): (&Stamp, &Stamp)| now.same_content(then);
                if now.is_some() && !now.as_ref().zip(stamp.as_ref()).is_some_and(same) {
                    // Caches of sessions hold the work of what it was.
                    return Err(Error::Request(format!(
                        "{} changed since it was attached; attach it anew",
                        path.display()
                    )));
                }
                let base = Base {
                    graph,
                    file: base.as_deref(),
                };
                Ok(Arc::new(match cache {
                    Some(cache) => cache.load(path, &base, *precision)?,
                    None => rusty_adapters::load(path, &base, *precision)?,
                }))
            }
        }
    }
}
