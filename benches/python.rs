//! Peers in Python, in an environment of their own.

use crate::conversation::Conversation;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flags of llama.cpp's compilation: without AMX, whose kernels in this version crash on virtual machines that have it.
const FLAGS: &str = match cfg!(target_arch = "x86_64") {
    true => "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16",
    false => "",
};

/// An interpreter that has the packages of `peers/requirements.txt`.
pub struct Python(PathBuf);

impl Python {
    /// One that has what is needed of them.
    pub fn named(program: impl Into<PathBuf>) -> Self {
        Self(program.into())
    }

    /// The one that `RUSTY_PEERS_PYTHON` names, or an environment below `target/`, made where it is missing.
    pub fn ready() -> Self {
        if let Some(named) = std::env::var_os("RUSTY_PEERS_PYTHON") {
            return Self::named(named);
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = here.join("../target/peers");
        let python = folder.join("bin/python");
        let done = folder.join("requirements.txt");
        let wanted = here.join("peers/requirements.txt");
        let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        if text(&done) != text(&wanted) {
            eprintln!("installing peers in {}", folder.display());
            run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
            run(Command::new(&python)
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-binary",
                    "llama-cpp-python",
                    "-r",
                ])
                .arg(&wanted)
                .env("CFLAGS", FLAGS)
                .env("CXXFLAGS", FLAGS)
                .env(
                    "CMAKE_ARGS",
                    "-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF",
                ));
            std::fs::copy(&wanted, &done).expect("a note of what is installed");
        }
        Self(python)
    }

    /// What a script of this folder prints about a job.
    pub fn run(&self, script: &str, job: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
        said(Command::new(&self.0).arg(path).arg(job))
    }

    /// A program, given as text, that answers each line that it is told with a line.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn conversation(&self, program: &str) -> Conversation {
        Conversation::start(Command::new(&self.0).args(["-c", program]))
    }
}

/// What a program prints.
///
/// # Panics
/// With its last words, where it fails: nothing can be compared then.
fn said(command: &mut Command) -> String {
    let output = command.output().expect("a program that starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run(command: &mut Command) {
    let status = command.status().expect("Python 3 with venv and pip");
    assert!(status.success(), "{command:?} failed");
}
