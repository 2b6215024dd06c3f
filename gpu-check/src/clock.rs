//! How long there is, and programs that stop with it.

use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time for a stopped program to end; one that a driver holds is left behind.
const GRACE: Duration = Duration::from_secs(5);

/// The time that is left, and where programs' words go.
pub struct Clock {
    end: Instant,
    /// Every program's output, one after the other.
    log: PathBuf,
    /// Where a running program writes.
    scratch: PathBuf,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, well.
    Well,
    /// By itself, with a failure or by a signal.
    Badly,
    /// Stopped, for it took too long.
    Stopped,
}

/// What a program said.
pub struct Said {
    pub end: End,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Its last words of a failure, without the advice behind them.
    pub fn reason(&self) -> String {
        let advice = |l: &&str| !l.trim().is_empty() && !l.starts_with("note: run with");
        let lines: Vec<&str> = self.err.lines().filter(advice).collect();
        match self.end {
            End::Stopped => "took too long".into(),
            _ if lines.is_empty() => "ended by a signal or without a word".into(),
            _ => lines[lines.len().saturating_sub(2)..].join(" | "),
        }
    }
}

impl Clock {
    /// A clock of some minutes, whose programs are logged in a folder.
    pub fn new(minutes: f64, out: &Path) -> Self {
        Self {
            end: Instant::now() + Duration::from_secs_f64(minutes.max(0.0) * 60.0),
            log: out.join("log.txt"),
            scratch: std::env::temp_dir().join(format!("gpu-check-{}", std::process::id())),
        }
    }

    /// What is left.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Runs a program for at most `limit` seconds and what is left.
    ///
    /// # Errors
    /// The program cannot be started, or its output not be stored.
    pub fn run(&self, name: &str, command: &mut Command, limit: u64) -> Result<Said> {
        let file = |end: &str| {
            let path = self.scratch.with_extension(end);
            File::create(&path).with_context(|| format!("{}: cannot be written", path.display()))
        };
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let start = Instant::now();
        let mut child = command
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(file("out")?)
            .stderr(file("err")?)
            .spawn()
            .with_context(|| format!("{:?} does not start", command.get_program()))?;
        let end = start + self.left().min(Duration::from_secs(limit));
        let mut stopped = None;
        let end = loop {
            if let Some(status) = child.try_wait()? {
                break match stopped {
                    Some(_) => End::Stopped,
                    None if status.success() => End::Well,
                    None => End::Badly,
                };
            }
            match stopped {
                None if Instant::now() >= end => {
                    // With what it started itself.
                    let group = format!("-{}", child.id());
                    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
                    let _ = child.kill();
                    stopped = Some(Instant::now());
                }
                Some(since) if since.elapsed() > GRACE => break End::Stopped,
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let text = |end: &str| {
            let bytes = std::fs::read(self.scratch.with_extension(end)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (out, err) = (text("out"), text("err"));
        let seconds = start.elapsed().as_secs_f64();
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        write!(
            log,
            "==== {name}: {end:?} after {seconds:.1} s\n{out}\n---- errors\n{err}\n"
        )?;
        Ok(Said { end, out, err })
    }
}

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} s left", self.left().as_secs_f64())
    }
}
