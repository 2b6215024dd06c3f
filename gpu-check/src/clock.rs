//! How long there is, and programs that stop with it.

use anyhow::{Context, Result};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time that is left.
pub struct Clock {
    end: Instant,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, well.
    Well,
    /// By itself, with a failure.
    Badly,
    /// Stopped, for it took too long.
    Stopped,
}

impl Clock {
    pub fn new(minutes: f64) -> Self {
        Self {
            end: Instant::now() + Duration::from_secs_f64(minutes.max(0.0) * 60.0),
        }
    }

    /// What is left.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Runs a program for at most `limit` seconds and what is left; its output goes to files `LOG.out` and `LOG.err`.
    ///
    /// # Errors
    /// The program cannot be started, or its output not be stored.
    pub fn run(&self, command: &mut Command, log: &Path, limit: u64) -> Result<End> {
        let file = |end: &str| {
            let path = log.with_extension(end);
            File::create(&path).with_context(|| format!("{}: cannot be written", path.display()))
        };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(file("out")?)
            .stderr(file("err")?)
            .spawn()
            .with_context(|| format!("{:?} does not start", command.get_program()))?;
        let end = Instant::now() + self.left().min(Duration::from_secs(limit));
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(if status.success() {
                    End::Well
                } else {
                    End::Badly
                });
            }
            if Instant::now() >= end {
                child.kill()?;
                child.wait()?;
                return Ok(End::Stopped);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} s left", self.left().as_secs_f64())
    }
}
