//! How long there is, and programs that stop with it.

use crate::outcome::Found;
use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time for a stopped program to end; one that a driver holds is left behind.
const GRACE: Duration = Duration::from_secs(5);

/// A file or folder of this run alone, which nobody keeps.
pub fn scratch(end: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gpu-check-{}.{end}", std::process::id()))
}

/// A file for what a program says; programs that run beside each other have different ones.
struct Words(PathBuf);

impl Words {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(scratch(&format!("{number}.words")))
    }

    fn create(&self) -> Result<File> {
        let path = &self.0;
        File::create(path).with_context(|| format!("{}: cannot be written", path.display()))
    }

    fn text(&self) -> String {
        let bytes = std::fs::read(&self.0).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // One that was never made need not go.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The time that is left, and where programs' words go.
#[derive(Clone)]
pub struct Clock {
    end: Instant,
    /// Every program's output, one after the other.
    log: PathBuf,
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
    /// Stopped, for no time was left.
    Late,
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
            End::Late => "no time was left".into(),
            _ if lines.is_empty() => "ended by a signal or without a word".into(),
            _ => lines[lines.len().saturating_sub(2)..].join(" | "),
        }
    }

    /// Why it did not say more; none where it ended well.
    pub fn shortfall(&self) -> Option<Found> {
        match self.end {
            End::Well => None,
            End::Late => Some(Found::NoTime),
            End::Badly | End::Stopped => Some(Found::Error(self.reason())),
        }
    }
}

impl Clock {
    /// A clock of some minutes, whose programs are logged in a folder.
    pub fn new(minutes: f64, out: &Path) -> Self {
        Self {
            end: Instant::now() + Duration::from_secs_f64(minutes.max(0.0) * 60.0),
            log: out.join("log.txt"),
        }
    }

    /// The clock of a part that is over then, or when there is no time left.
    pub fn until(&self, end: Instant) -> Self {
        Self {
            end: end.min(self.end),
            ..self.clone()
        }
    }

    /// What is left.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Runs a program for at most `limit` seconds and what is left. Several may run at once.
    ///
    /// # Errors
    /// The program cannot be started, or its output not be stored.
    pub fn run(&self, name: &str, command: &mut Command, limit: u64) -> Result<Said> {
        let (out, err) = (Words::new(), Words::new());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let start = Instant::now();
        let mut child = command
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(out.create()?)
            .stderr(err.create()?)
            .spawn()
            .with_context(|| format!("{:?} does not start", command.get_program()))?;
        let (left, limit) = (self.left(), Duration::from_secs(limit));
        let end = start + left.min(limit);
        let late = match left < limit {
            true => End::Late,
            false => End::Stopped,
        };
        let end = awaited(&mut child, end, late)?;
        let (out, err) = (out.text(), err.text());
        let seconds = start.elapsed().as_secs_f64();
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)?;
        // In one piece, because others write there, too.
        let entry =
            format!("==== {name}: {end:?} after {seconds:.1} s\n{out}\n---- errors\n{err}\n");
        log.write_all(entry.as_bytes())?;
        Ok(Said { end, out, err })
    }
}

/// How a program ends: as `late`, where it is stopped at `end`.
fn awaited(child: &mut Child, end: Instant, late: End) -> Result<End> {
    let mut stopped = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match stopped {
                Some(_) => late,
                None if status.success() => End::Well,
                None => End::Badly,
            });
        }
        match stopped {
            None if Instant::now() >= end => {
                // With what it started itself.
                let group = format!("-{}", child.id());
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
                let _ = child.kill();
                stopped = Some(Instant::now());
            }
            Some(since) if since.elapsed() > GRACE => return Ok(late),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} s left", self.left().as_secs_f64())
    }
}
