//! Peers in Python, in an environment of their own.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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
        let mut child = Command::new(&self.0)
            .args(["-c", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a Python that starts");
        let (to, from) = (child.stdin.take(), child.stdout.take());
        Conversation {
            to: to.expect("was asked for"),
            from: BufReader::new(from.expect("was asked for")),
            child,
        }
    }
}

/// A running program that is asked and answers.
pub struct Conversation {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    child: Child,
}

impl Conversation {
    /// The answer to a line.
    ///
    /// # Errors
    /// The program has ended: it said why on this process's own standard error.
    pub fn ask(&mut self, line: &str) -> io::Result<String> {
        writeln!(self.to, "{line}")?;
        let mut answer = String::new();
        match self.from.read_line(&mut answer)? {
            0 => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the program ended without an answer",
            )),
            _ => Ok(answer),
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // It waits for the next line, which never comes. One that ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program prints.
///
/// # Panics
/// With its last words, where it fails: nothing can be compared then.
pub fn said(command: &mut Command) -> String {
    let output = command.output().expect("a program that starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run(command: &mut Command) {
    let status = command.status().expect("Python 3 with venv and pip");
    assert!(status.success(), "{command:?} failed");
}
