//! Asking for memory ahead of its use.
//!
//! Weights are one long stream, but a core's own guesses run only a little ahead of it: products ask for what
//! lies [`STREAM`] bytes further.
//!
//! Tables of adapters are many short runs of bytes (a strip's panels are one to four KiB), each too short for the
//! hardware to notice the stream before it ends. A core waits for a few dozen lines at most; asked for all at once
//! they would hold up the loads behind them. So products ask for a few at every step of their inner loops,
//! and what arrives meanwhile costs little where arithmetic is the limit.

/// Bytes that memory is fetched in.
const LINE: usize = 64;

/// How far ahead of its use a stream of weights is asked for: more than memory's latency times a core's
/// share of its bandwidth, and little beside the second-level cache.
pub(super) const STREAM: usize = 12 << 10;

/// Asks for `lines` lines of a stream from `at` on. They come into the second-level cache: what waits for the first
/// holds up the loads there.
#[inline(always)]
pub(super) fn ask_lines(at: *const u8, lines: usize) {
    for line in 0..lines {
        ask_for::<false>(at.addr() + line * LINE);
    }
}

/// Lines of memory, in the order in which they are wanted.
#[derive(Default)]
struct Lines {
    /// First address and number of lines.
    runs: Vec<(usize, usize)>,
    next: usize,
    at: usize,
    left: usize,
    total: usize,
}

impl Lines {
    fn clear(&mut self) {
        self.runs.clear();
        (self.next, self.left, self.total) = (0, 0, 0);
    }

    fn push(&mut self, (at, bytes): (usize, usize)) {
        let first = at / LINE * LINE;
        let lines = (at + bytes).div_ceil(LINE) - first / LINE;
        if bytes > 0 {
            self.runs.push((first, lines));
            self.total += lines;
        }
    }

    /// Asks for up to `count` lines, `SOON` or later read; how many of them there were not.
    #[inline(always)]
    fn ask<const SOON: bool>(&mut self, mut count: usize) -> usize {
        while count > 0 {
            if self.left == 0 {
                let Some(run) = self.runs.get(self.next) else {
                    return count;
                };
                (self.at, self.left) = *run;
                self.next += 1;
            }
            let lines = count.min(self.left);
            for line in 0..lines {
                ask_for::<SOON>(self.at + line * LINE);
            }
            self.at += lines * LINE;
            self.left -= lines;
            count -= lines;
        }
        0
    }
}

/// What a thread asks for while it multiplies.
#[derive(Default)]
pub(super) struct Ahead {
    /// For the end of the product that is being made.
    due: Lines,
    /// For the next kernel.
    later: Lines,
    per_step: usize,
}

impl Ahead {
    /// Forgets everything; the next kernel's bytes are pushed afterwards.
    pub(super) fn start_kernel(&mut self) {
        self.due.clear();
        self.later.clear();
        self.per_step = 0;
    }

    /// What the next kernel reads, as address and length.
    pub(super) fn push_later(&mut self, bytes: (usize, usize)) {
        self.later.push(bytes);
    }

    /// What is read after the coming product, as address and length.
    pub(super) fn push_due(&mut self, bytes: (usize, usize)) {
        self.due.push(bytes);
    }

    /// Spreads what is due, and the later bytes' share of one among `products`, over `steps` steps. What is due is
    /// asked for in the first two thirds, so that the last lines have time to arrive.
    pub(super) fn start_product(&mut self, steps: usize, products: usize) {
        let lines = self.due.total * 3 / 2 + self.later.total.div_ceil(products.max(1));
        self.per_step = lines.div_ceil(steps.max(1));
    }

    /// Asks for the last lines that are due.
    pub(super) fn end_product(&mut self) {
        self.due.ask::<true>(usize::MAX);
        self.due.clear();
        self.per_step = 0;
    }

    /// Asks for the lines of a step. A hint: nothing waits for it.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        if self.per_step > 0 {
            let missing = self.due.ask::<true>(self.per_step);
            self.later.ask::<false>(missing);
        }
    }
}

/// Asks for a line to be brought into the first-level cache where it is read soon, else into the second.
#[inline(always)]
pub(super) fn ask_for<const SOON: bool>(at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of the baseline instruction set; prefetches read nothing that a program can see, and addresses
    // that are not mapped are ignored.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        let at = std::ptr::without_provenance(at);
        match SOON {
            true => _mm_prefetch::<_MM_HINT_T0>(at),
            false => _mm_prefetch::<_MM_HINT_T1>(at),
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::asm;
        match SOON {
            true => {
                asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags))
            }
            false => {
                asm!("prfm pldl2keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags))
            }
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
