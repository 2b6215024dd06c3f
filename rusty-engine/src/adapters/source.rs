//! Where an adapter's tables come from, and come from again after they were dropped.

use crate::{Error, Result};
use rusty_adapters::{Base, Cache, Precision};
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
            } => {
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
