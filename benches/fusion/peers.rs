//! The other sides: programs of their own.

use super::{Job, Reply};
use crate::python::{Conversation, Python, said};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What PyTorch's side does; as text, so that it goes wherever this program goes.
const SCRIPT: &str = include_str!("run_pytorch.py");

/// Those that are asked.
#[derive(Default)]
pub struct Peers {
    burn: Option<PathBuf>,
    pytorch: Option<Conversation>,
}

impl Peers {
    /// Burn too, as a program that is compiled now.
    ///
    /// # Panics
    /// Where it cannot be.
    pub fn with_burn(self) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let target = here.join("../target/burn");
        let mut build = Command::new("cargo");
        build.args(["build", "--release", "--manifest-path"]);
        build.arg(here.join("burn/Cargo.toml"));
        build.arg("--target-dir").arg(&target);
        let status = build.status().expect("cargo");
        assert!(status.success(), "{build:?} failed");
        Self {
            burn: Some(target.join("release/rusty-bench-burn")),
            ..self
        }
    }

    /// PyTorch too, by an interpreter that has it: one process for all chains.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn with_pytorch(self, python: &Python) -> Self {
        Self {
            pytorch: Some(python.conversation(SCRIPT)),
            ..self
        }
    }

    pub(super) fn burn(&self, job: &Job) -> Option<Reply> {
        let burn = self.burn.as_ref()?;
        Some(reply(&said(Command::new(burn).arg(text(job)))))
    }

    pub(super) fn pytorch(&mut self, job: &Job) -> Option<Reply> {
        let pytorch = self.pytorch.as_mut()?;
        Some(reply(&pytorch.ask(&text(job))))
    }
}

fn text(job: &Job) -> String {
    serde_json::to_string(job).expect("JSON")
}

fn reply(said: &str) -> Reply {
    serde_json::from_str(said).expect("a reply")
}
