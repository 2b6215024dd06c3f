//! A persistent pool of threads that run one job together and meet at spinning barriers.
//!
//! A step is one job: every thread walks the plan's kernels and the barrier stands between them, because a
//! decoded token passes two hundred kernels of a few microseconds each. Between jobs workers spin for a
//! moment, as the next token usually follows at once, and then sleep. The caller is thread 0.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle worker spins before it sleeps.
const SPIN: Duration = Duration::from_millis(1);
/// Spins at a barrier before the core is offered to others (more threads than free cores).
const POLITE: u32 = 20_000;

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
    sleeping: AtomicUsize,
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
    workers: Vec<(JoinHandle<()>, Thread)>,
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
            sleeping: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            job: UnsafeCell::new(None),
        });
        let mut workers = Vec::new();
        for i in 1..threads {
            let shared = shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("rusty-cpu-{i}"))
                .spawn(move || work(&shared, i))?;
            let thread = handle.thread().clone();
            workers.push((handle, thread));
        }
        Ok(Self { shared, workers })
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
        if s.sleeping.load(Ordering::SeqCst) > 0 {
            self.workers.iter().for_each(|(_, t)| t.unpark());
        }
        run_guarded(s, job, 0);
        spin_until(|| s.done.0.load(Ordering::Acquire) == s.threads - 1);
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
        for (handle, thread) in self.workers.drain(..) {
            thread.unpark();
            // A worker's panic was reported by `run`.
            let _ = handle.join();
        }
    }
}

fn run_guarded(s: &Shared, job: Job<'_>, thread: usize) {
    let result: Result<(), Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(|| job(thread)));
    if result.is_err() {
        s.failed.store(true, Ordering::Release);
    }
}

fn work(s: &Shared, thread: usize) {
    let mut seen = 0;
    loop {
        await_epoch(s, seen);
        seen += 1;
        if s.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the caller published the job before it raised the epoch and keeps it until `done`.
        if let Some(job) = unsafe { *s.job.get() } {
            run_guarded(s, job, thread);
        }
        s.done.0.fetch_add(1, Ordering::Release);
    }
}

fn await_epoch(s: &Shared, seen: usize) {
    let begin = Instant::now();
    loop {
        for _ in 0..200 {
            if s.epoch.0.load(Ordering::Acquire) != seen {
                return;
            }
            std::hint::spin_loop();
        }
        if begin.elapsed() > SPIN {
            break;
        }
    }
    s.sleeping.fetch_add(1, Ordering::SeqCst);
    while s.epoch.0.load(Ordering::SeqCst) == seen {
        std::thread::park();
    }
    s.sleeping.fetch_sub(1, Ordering::SeqCst);
}

fn spin_until(ready: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !ready() {
        spins += 1;
        if spins.is_multiple_of(POLITE) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Where the threads of a job wait for each other.
#[derive(Clone, Copy)]
pub(super) struct Barrier<'a>(&'a Shared);

impl Barrier<'_> {
    /// Returns when every thread of the job has added one to `arrived` (releasing what it wrote before), which
    /// unlike [`Barrier::wait`] lets a thread do other work between its own arrival and here.
    ///
    /// # Panics
    /// As [`Barrier::wait`].
    pub(super) fn await_arrivals(self, arrived: &AtomicUsize) {
        let s = self.0;
        let all = || arrived.load(Ordering::Acquire) >= s.threads;
        spin_until(|| all() || s.failed.load(Ordering::Relaxed));
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
            s.generation.0.store(generation + 1, Ordering::Release);
            return;
        }
        spin_until(|| {
            s.generation.0.load(Ordering::Acquire) != generation || s.failed.load(Ordering::Relaxed)
        });
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
