//! A persistent pool of threads that run one job together and meet at spinning barriers.
//!
//! A step is one job: every thread walks the plan's kernels and the barrier stands between them, because a
//! decoded token passes two hundred kernels of a few microseconds each. Who waits, for others or for the next job,
//! spins for a moment, as it seldom takes longer, and then sleeps ([`Patience`]). The caller is thread 0.

use super::patience::Patience;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Spins between two looks at the clock.
const LOOK: u32 = 64;

type Job<'a> = &'a (dyn Fn(usize) + Sync);

#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    threads: usize,
    /// Number of jobs started.
    epoch: Padded<AtomicUsize>,
    /// Workers that finished the current job.
    done: Padded<AtomicUsize>,
    arrived: Padded<AtomicUsize>,
    generation: Padded<AtomicUsize>,
    patience: Patience,
    /// Threads that sleep, or are about to, until something changes.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
    stop: AtomicBool,
    /// A job runs.
    busy: AtomicBool,
    /// A thread panicked; the others must not wait for it.
    failed: AtomicBool,
    job: UnsafeCell<Option<Job<'static>>>,
}

// SAFETY: `job` is written by the caller while no worker runs a job, and published by `epoch`.
unsafe impl Sync for Shared {}

/// The threads.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// A thread panicked in a job: a defect; the pool is of no further use.
#[derive(Debug)]
pub(super) struct JobFailed;

impl Pool {
    /// A pool of `threads` threads, the caller included.
    pub(super) fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            threads: threads.max(1),
            epoch: Padded(AtomicUsize::new(0)),
            done: Padded(AtomicUsize::new(0)),
            arrived: Padded(AtomicUsize::new(0)),
            generation: Padded(AtomicUsize::new(0)),
            patience: Patience::new(),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            job: UnsafeCell::new(None),
        });
        let mut pool = Self {
            shared,
            workers: vec![],
        };
        // Where a thread cannot be started, dropping the pool ends the others.
        for i in 1..threads {
            let shared = pool.shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("rusty-cpu-{i}"))
                .spawn(move || work(&shared, i))?;
            pool.workers.push(handle);
        }
        Ok(pool)
    }

    /// Number of threads.
    pub(super) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` once on every thread and returns when all are done. One job at a time: a second one fails.
    pub(super) fn run(&self, job: Job<'_>) -> Result<(), JobFailed> {
        let s = &*self.shared;
        if s.failed.load(Ordering::Acquire) || s.busy.swap(true, Ordering::Acquire) {
            return Err(JobFailed);
        }
        // SAFETY: the lifetime is extended only until all workers are done, which is awaited below, and no
        // worker reads the job before the epoch changes.
        unsafe { *s.job.get() = Some(std::mem::transmute::<Job<'_>, Job<'static>>(job)) };
        s.done.0.store(0, Ordering::Relaxed);
        s.epoch.0.fetch_add(1, Ordering::SeqCst);
        s.patience.start_job();
        s.announce();
        run_guarded(s, job, 0);
        let waited = s.wait_until(|| s.done.0.load(Ordering::Acquire) == s.threads - 1);
        s.patience.waited(waited);
        s.patience.end_job();
        s.busy.store(false, Ordering::Release);
        if s.failed.load(Ordering::Acquire) {
            return Err(JobFailed);
        }
        Ok(())
    }

    /// The barrier for the threads of a job.
    pub(super) fn barrier(&self) -> Barrier<'_> {
        Barrier(&self.shared)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        self.shared.announce();
        for handle in self.workers.drain(..) {
            // A worker's panic was reported by `run`.
            let _ = handle.join();
        }
    }
}

fn run_guarded(s: &Shared, job: Job<'_>, thread: usize) {
    let result: Result<(), Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(|| job(thread)));
    if result.is_err() {
        s.failed.store(true, Ordering::SeqCst);
        s.announce();
    }
}

fn work(s: &Shared, thread: usize) {
    let mut seen = 0;
    loop {
        s.wait_until(|| s.epoch.0.load(Ordering::Acquire) != seen);
        seen += 1;
        if s.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the caller published the job before it raised the epoch and keeps it until `done`.
        if let Some(job) = unsafe { *s.job.get() } {
            run_guarded(s, job, thread);
        }
        s.done.0.fetch_add(1, Ordering::SeqCst);
        s.announce();
    }
}

impl Shared {
    /// Returns when `ready`, which some thread makes true before it announces a change; how long that took, about.
    fn wait_until(&self, ready: impl Fn() -> bool) -> Duration {
        let spun = |count: u32| {
            (0..count).any(|_| {
                std::hint::spin_loop();
                ready()
            })
        };
        // Most waits end before a clock is worth asking.
        if ready() || spun(LOOK) {
            return Duration::ZERO;
        }
        let (begin, limit) = (Instant::now(), self.patience.limit());
        while begin.elapsed() < limit {
            if spun(LOOK) {
                return begin.elapsed();
            }
        }
        // Either the changing thread sees the sleeper, or the sleeper sees the change: both are in one order.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !ready() {
            guard = (self.changed.wait(guard)).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        begin.elapsed()
    }

    /// Wakes who sleeps. What changed was stored in sequentially consistent order.
    fn announce(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A sleeper holds the lock from its last look until it sleeps.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}

/// Where the threads of a job wait for each other.
#[derive(Clone, Copy)]
pub(super) struct Barrier<'a>(&'a Shared);

impl Barrier<'_> {
    /// Adds this thread to `arrived`; what it wrote before is visible to those who [await](Barrier::await_arrivals) it.
    pub(super) fn arrive(self, arrived: &AtomicUsize) {
        arrived.fetch_add(1, Ordering::SeqCst);
        self.0.announce();
    }

    /// Returns when every thread of the job has arrived, which unlike [`Barrier::wait`] lets a thread do other work
    /// between its own arrival and here.
    ///
    /// # Panics
    /// As [`Barrier::wait`].
    pub(super) fn await_arrivals(self, arrived: &AtomicUsize) {
        let s = self.0;
        let all = || arrived.load(Ordering::Acquire) >= s.threads;
        let waited = s.wait_until(|| all() || s.failed.load(Ordering::Relaxed));
        s.patience.waited(waited);
        assert!(all(), "another thread of the pool failed");
    }

    /// Returns when every thread has called it; what they wrote before is visible after.
    ///
    /// # Panics
    /// Where another thread of the job panicked, so that the job ends.
    pub(super) fn wait(self) {
        let s = self.0;
        if s.threads == 1 {
            return;
        }
        let generation = s.generation.0.load(Ordering::Acquire);
        if s.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == s.threads {
            s.arrived.0.store(0, Ordering::Relaxed);
            s.generation.0.store(generation + 1, Ordering::SeqCst);
            s.announce();
            return;
        }
        let waited = s.wait_until(|| {
            s.generation.0.load(Ordering::Acquire) != generation || s.failed.load(Ordering::Relaxed)
        });
        s.patience.waited(waited);
        assert!(
            s.generation.0.load(Ordering::Acquire) != generation,
            "another thread of the pool failed"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_meet_at_barriers_and_jobs_repeat() {
        let pool = Pool::new(4).expect("threads");
        let shared = pool.shared.clone();
        for round in 0..200 {
            let count = AtomicUsize::new(0);
            let wrong = AtomicUsize::new(0);
            pool.run(&|_| {
                for phase in 1..=5 {
                    count.fetch_add(1, Ordering::Relaxed);
                    Barrier(&shared).wait();
                    if count.load(Ordering::Relaxed) != 4 * phase {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    Barrier(&shared).wait();
                }
            })
            .expect("job");
            assert_eq!(wrong.into_inner(), 0, "round {round}");
            if round % 50 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
    }

    #[test]
    fn a_panic_ends_the_job_with_an_error() {
        let pool = Pool::new(3).expect("threads");
        let shared = pool.shared.clone();
        let result = pool.run(&|t| {
            assert!(t != 1, "thread 1 fails");
            Barrier(&shared).wait();
        });
        assert!(result.is_err());
        assert!(pool.run(&|_| {}).is_err());
    }
}
