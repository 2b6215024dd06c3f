//! Waiting for memory that nobody else reads.
//!
//! Other guests of a shared machine may take a part of its bandwidth for seconds or minutes, and works that memory bounds run on both sides
//! of such a change. Where it is asked for, a side of a round counts only if memory is read fast enough before it and behind it.

use super::Reply;
use rusty_benches::bandwidth;
use std::time::{Duration, Instant};

/// Longest time that a side is waited for and repeated.
const PATIENCE: Duration = Duration::from_secs(240);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(300);

/// What memory is to give.
#[derive(Clone, Copy)]
pub struct Quiet {
    /// Bytes per second.
    least: f64,
    threads: usize,
}

impl Quiet {
    /// As `RUSTY_PEERS_BANDWIDTH` says, in GB/s; none where it says nothing.
    pub fn asked(threads: usize) -> Option<Self> {
        let least = std::env::var("RUSTY_PEERS_BANDWIDTH").ok()?;
        let least = least.parse::<f64>().expect("a number of GB/s") * 1e9;
        Some(Self { least, threads })
    }

    /// GB/s that memory is to give.
    pub fn least(self) -> f64 {
        self.least / 1e9
    }

    fn is(self) -> bool {
        bandwidth::glance(self.threads) >= self.least
    }

    /// What `side` replies when memory gives what is asked for before and behind it; none where it does not for [long](PATIENCE).
    pub fn of(self, side: impl Fn() -> Reply) -> Option<Reply> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if !self.is() {
                std::thread::sleep(PAUSE);
                continue;
            }
            let reply = side();
            if self.is() {
                return Some(reply);
            }
        }
        None
    }
}
