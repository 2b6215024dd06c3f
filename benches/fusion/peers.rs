//! The other sides: programs of their own.

use super::{Job, Reply};
use crate::python::{Conversation, Python, said};
use serde::Deserialize;
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
        let said = said(Command::new(burn).arg(text(job)));
        Some(serde_json::from_str(&said).expect("a reply"))
    }

    /// What PyTorch answers; nothing where it is not asked, or no more since it ended.
    ///
    /// # Errors
    /// Why it has no answer.
    pub(super) fn pytorch(&mut self, job: &Job) -> Result<Option<Reply>, String> {
        let Some(pytorch) = &mut self.pytorch else {
            return Ok(None);
        };
        match pytorch.ask(&text(job)) {
            Ok(said) => answered(&said).map(Some),
            Err(error) => {
                self.pytorch = None;
                Err(error.to_string())
            }
        }
    }
}

/// What PyTorch's side says where it failed.
#[derive(Deserialize)]
struct Failed {
    error: String,
}

/// The reply that a line holds, or why it holds none.
fn answered(line: &str) -> Result<Reply, String> {
    if let Ok(Failed { error }) = serde_json::from_str(line) {
        return Err(error);
    }
    serde_json::from_str(line).map_err(|error| format!("its answer cannot be read: {error}"))
}

fn text(job: &Job) -> String {
    serde_json::to_string(job).expect("JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_reply_is_a_reason() {
        let reply = answered(r#"{"seconds": [1, 0.5], "answer": [2.0], "device": "cpu"}"#);
        let reply = reply.expect("a reply");
        assert_eq!(
            (&reply.seconds[..], &reply.answer[..]),
            (&[1.0, 0.5][..], &[2.0][..])
        );
        assert_eq!(reply.device.as_deref(), Some("cpu"));
        let reason = |line| answered(line).err().expect("no reply");
        assert_eq!(reason(r#"{"error": "out of memory"}"#), "out of memory");
        let broken = reason(r#"{"seconds": [1.0], "answer": [NaN]}"#);
        assert!(broken.contains("cannot be read"), "{broken}");
    }
}
