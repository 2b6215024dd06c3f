//! From `--experts DIR` to answers whose adapter follows the message.

use crate::args::{self, Load};
use crate::{engine, stderr};
use anyhow::{Result, bail};
use rusty_engine::experts::{Experts, Library, Router};
use rusty_engine::{Engine, Session, Tier};
use std::path::Path;

/// The name of the built-in experts.
const DEMO: &str = "demo";

/// Who answers: the experts where there are some, or what `--adapter` says.
pub struct Answering {
    experts: Option<Experts>,
    verbose: bool,
}

/// What is asked for a message.
pub struct Asked {
    /// The message in its expert's template.
    pub prompt: String,
    /// Who is asked; none where there are no experts.
    pub expert: Option<String>,
}

/// Loads the model and attaches experts or adapters.
pub fn load(
    model: Option<&str>,
    options: &Load,
    experts: &args::Experts,
    verbose: bool,
) -> Result<(Engine, Session, Answering)> {
    // Before the model: a wrong manifest should not cost the time of loading one.
    let library = experts.experts.as_deref().map(open).transpose()?;
    let (engine, adapters) = engine::load(
        model,
        options,
        library.as_ref().map(Library::largest_adapter),
    )?;
    let mut session = engine.session();
    session.set_adapter(adapters)?;
    let attach = |library: Library| {
        for manifest in library.manifests() {
            let (lacks, other) = match experts.router {
                args::Router::Keywords if manifest.keywords.is_empty() => ("keywords", "embedding"),
                args::Router::Embedding if manifest.examples.is_empty() => ("examples", "keywords"),
                _ => continue,
            };
            let name = &manifest.name;
            tracing::warn!(
                "expert '{name}' has no {lacks}: it is chosen with --router {other} only"
            );
        }
        let router = match experts.router {
            args::Router::Keywords => Router::keywords(&library),
            args::Router::Embedding => Router::embedding(&library, &engine)?,
        };
        Experts::attach(&engine, library, router, options.adapter_precision.into())
    };
    let experts = library.map(attach).transpose()?;
    Ok((engine, session, Answering { experts, verbose }))
}

impl Answering {
    /// Seats the expert for a message in the session; what it is to be asked.
    pub fn prepare(&self, session: &mut Session, message: &str) -> Result<Asked> {
        let Some(experts) = &self.experts else {
            return Ok(Asked {
                prompt: message.into(),
                expert: None,
            });
        };
        let choice = experts.choose(message);
        let name = experts.name(&choice);
        if self.verbose {
            let score = choice.score;
            let reason = &choice.reason;
            stderr::line(format_args!("expert: {name} (score {score:.2}: {reason})"));
        }
        experts.seat(&choice, session)?;
        Ok(Asked {
            prompt: experts.prompt(&choice, message),
            expert: Some(name.into()),
        })
    }

    /// Says with `--verbose` where adapters are by now.
    pub fn tell_tiers(&self, engine: &Engine) {
        if !self.verbose {
            return;
        }
        for adapter in engine.adapters() {
            let place = match adapter.tier {
                Tier::Device => "in a slot",
                Tier::Host => "in memory",
                Tier::Disk => "in its file",
            };
            let (name, kib) = (&adapter.name, adapter.bytes.div_ceil(1024));
            stderr::line(format_args!("adapter: {name} is {place} ({kib} KiB)"));
        }
    }
}

fn open(folder: &str) -> Result<Library> {
    let path = Path::new(folder);
    if path.exists() {
        return Ok(Library::open(path)?);
    }
    match folder {
        DEMO => Ok(Library::demo()?),
        _ => bail!("--experts {folder}: no such folder; '{DEMO}' are the demo model's"),
    }
}
