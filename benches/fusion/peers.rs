//! The other sides: programs of their own, each one process for all chains.

use super::{Job, Reply};
use crate::conversation::Conversation;
use crate::python::Python;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What PyTorch's side does; as text, so that it goes wherever this program goes.
const SCRIPT: &str = include_str!("run_pytorch.py");

/// Those that are asked.
#[derive(Default)]
pub struct Peers {
    /// Burn, where it is asked.
    pub(super) burn: Peer,
    /// PyTorch, where it is asked.
    pub(super) pytorch: Peer,
}

impl Peers {
    /// Burn too, by [its program](burn_program).
    ///
    /// # Panics
    /// Where it does not start.
    pub fn with_burn(self, program: &Path) -> Self {
        let burn = Peer(Some(Conversation::start(&mut Command::new(program))));
        Self { burn, ..self }
    }

    /// PyTorch too, by an interpreter that has it.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn with_pytorch(self, python: &Python) -> Self {
        let pytorch = Peer(Some(python.conversation(SCRIPT)));
        Self { pytorch, ..self }
    }
}

/// Burn's side (`benches/burn`), which is compiled now where it is not up to date.
///
/// # Panics
/// Where it cannot be.
pub fn burn_program() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = here.join("../target/burn");
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--manifest-path"]);
    build.arg(here.join("burn/Cargo.toml"));
    build.arg("--target-dir").arg(&target);
    let status = build.status().expect("cargo");
    assert!(status.success(), "{build:?} failed");
    target.join("release/rusty-bench-burn")
}

/// One of them; none where it is not asked, or no more since it ended.
#[derive(Default)]
pub(super) struct Peer(Option<Conversation>);

impl Peer {
    /// What it answers; nothing where it is not asked.
    ///
    /// # Errors
    /// Why it has no answer.
    pub(super) fn ask(&mut self, job: &Job) -> Result<Option<Reply>, String> {
        let Some(running) = &mut self.0 else {
            return Ok(None);
        };
        let text = serde_json::to_string(job).expect("JSON");
        match running.ask(&text) {
            Ok(said) => answered(&said).map(Some),
            Err(error) => {
                self.0 = None;
                Err(error.to_string())
            }
        }
    }
}

/// What a side says where it failed.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::chains::Dims;

    #[test]
    fn what_is_no_reply_is_a_reason() {
        let reply = answered(r#"{"seconds": [1, 0.5], "answer": [2.0], "device": "cpu"}"#);
        let reply = reply.expect("a reply");
        assert_eq!(
            (&reply.seconds[..], &reply.answer[..]),
            (&[1.0, 0.5][..], &[2.0][..])
        );
        assert_eq!(reply.device, "cpu");
        let reason = |line| answered(line).err().expect("no reply");
        assert_eq!(reason(r#"{"error": "out of memory"}"#), "out of memory");
        let broken = reason(r#"{"seconds": [1.0], "answer": [NaN]}"#);
        assert!(broken.contains("cannot be read"), "{broken}");
    }

    #[test]
    fn who_ended_is_not_asked_again() {
        // It says one line, which is no answer, and ends.
        let mut ends = Command::new(env!("CARGO"));
        let mut peer = Peer(Some(Conversation::start(ends.arg("--version"))));
        let job = Job {
            chain: "norm",
            device: "cpu".into(),
            gpu: false,
            threads: 1,
            warm_up: 0.0,
            timed: 0.0,
            dims: Dims::of(1),
        };
        assert!(peer.ask(&job).is_err());
        assert!(peer.ask(&job).expect("no more").is_none());
    }
}
