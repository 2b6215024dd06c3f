//! How long a waiting thread spins before it sleeps.
//!
//! On a core of its own a thread waits for the others some microseconds at a barrier, and spinning through them is best:
//! to be woken takes longer. Where the cores are shared, with other programs or with other guests of a host, that
//! turns against it: spinning uses up the share of the core that the work needs, so that the system takes
//! the core away in the middle of a kernel, for milliseconds, and all others spin for those. Measured on two such
//! cores, with decoding that one thread alone does at 75 tokens per second: 35 with spins of 100 µs, 60 with 5.
//!
//! So long waits are counted. Where they take a part of the time worth mentioning, threads sleep almost at once for a
//! while, and then it is tried again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Spinning where all is quiet: longer than even shares of work differ.
const PATIENT: Duration = Duration::from_micros(400);
/// Spinning where it is not.
const HASTY: Duration = Duration::from_micros(4);
/// A wait longer than this is counted; kernels of a decoded token take less.
const LONG: Duration = Duration::from_micros(200);
/// Time over which waits are counted.
const WINDOW: Duration = Duration::from_millis(20);
/// Part of the window that all threads' long waits may take.
const MOST: f64 = 0.1;
/// How long threads stay hasty: doubled each time that trying again shows no better.
const HOLD: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(6)];

/// What the threads of a pool know of their waits.
pub(super) struct Patience {
    begin: Instant,
    /// Nanoseconds of long waits since the window began.
    lost: AtomicU64,
    /// Start of the window, and until when to be hasty, in nanoseconds since `begin`.
    window: AtomicU64,
    hasty: AtomicU64,
    /// How long to be hasty next time.
    hold: AtomicU64,
    /// Nanoseconds to spin.
    limit: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Patience {
    pub(super) fn new() -> Self {
        Self {
            begin: Instant::now(),
            lost: AtomicU64::new(0),
            window: AtomicU64::new(0),
            hasty: AtomicU64::new(0),
            hold: AtomicU64::new(nanos(HOLD[0])),
            limit: AtomicU64::new(nanos(PATIENT)),
        }
    }

    /// How long to spin.
    pub(super) fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit.load(Ordering::Relaxed))
    }

    /// Counts a wait for threads that work.
    pub(super) fn waited(&self, time: Duration) {
        if time > LONG {
            self.lost.fetch_add(nanos(time), Ordering::Relaxed);
        }
    }

    /// To be called before a job.
    pub(super) fn start_job(&self) {
        self.open_window(nanos(self.begin.elapsed()));
    }

    /// To be called after a job.
    pub(super) fn end_job(&self) {
        self.judge(nanos(self.begin.elapsed()));
    }

    /// Opens a window where none is: what was waited for before, between jobs, does not count.
    fn open_window(&self, now: u64) {
        if self.window.load(Ordering::Relaxed) == 0 {
            self.lost.store(0, Ordering::Relaxed);
            self.window.store(now.max(1), Ordering::Relaxed);
        }
    }

    /// Judges a window that has been long enough.
    fn judge(&self, now: u64) {
        if now < self.hasty.load(Ordering::Relaxed) {
            return;
        }
        if self.limit() < PATIENT {
            // Tried again from the next job on.
            self.limit.store(nanos(PATIENT), Ordering::Relaxed);
            self.window.store(0, Ordering::Relaxed);
            return;
        }
        let window = now - self.window.load(Ordering::Relaxed);
        if window < nanos(WINDOW) {
            return;
        }
        let lost = self.lost.load(Ordering::Relaxed);
        let mut hold = nanos(HOLD[0]);
        if lost as f64 > window as f64 * MOST {
            hold = self.hold.load(Ordering::Relaxed);
            self.limit.store(nanos(HASTY), Ordering::Relaxed);
            self.hasty.store(now + hold, Ordering::Relaxed);
            hold = (2 * hold).min(nanos(HOLD[1]));
        }
        self.hold.store(hold, Ordering::Relaxed);
        self.window.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patience and the time, which passes by itself nowhere.
    struct Clock(Patience, u64);

    impl Clock {
        /// Spinning after a job of a window's length with a wait.
        fn job(&mut self, wait: Duration) -> Duration {
            self.0.open_window(self.1);
            self.1 += nanos(WINDOW);
            self.0.waited(wait);
            self.0.judge(self.1);
            self.0.limit()
        }
    }

    #[test]
    fn long_waits_make_hasty_for_a_while() {
        let mut clock = Clock(Patience::new(), 0);
        let (none, many) = (Duration::ZERO, WINDOW / 2);
        assert_eq!(clock.job(LONG), PATIENT);
        assert_eq!(clock.job(many), HASTY);
        assert_eq!(clock.job(none), HASTY);
        clock.1 += nanos(HOLD[0]);
        assert_eq!(clock.job(none), PATIENT);
        // No better: longer.
        assert_eq!(clock.job(many), HASTY);
        clock.1 += nanos(HOLD[0]);
        assert_eq!(clock.job(none), HASTY);
        clock.1 += nanos(HOLD[0]);
        assert_eq!(clock.job(none), PATIENT);
        // Between jobs nobody is waited for.
        assert_eq!(clock.job(none), PATIENT);
        clock.0.waited(WINDOW * 10);
        assert_eq!(clock.job(none), PATIENT);
        // That was better: not so long.
        assert_eq!(clock.job(many), HASTY);
        clock.1 += nanos(HOLD[0]);
        assert_eq!(clock.job(none), PATIENT);
    }
}
