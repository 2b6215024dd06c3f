//! Asking for memory ahead of its use.
//!
//! Weights are few long streams: panels [one, two or four](super::stream), [rows](super::row_tiles) several. A core's own guesses mostly run only a
//! little ahead of each.
//!
//! Tables of adapters are many short runs of bytes (a strip's panels are one to four KiB), each too short for the
//! hardware to notice the stream before it ends. A core waits for a few dozen lines at most; asked for all at once
//! they would hold up the loads behind them. So products ask for a few at every step of their inner loops,
//! and what arrives meanwhile costs little where arithmetic is the limit. `B` is asked for by the product whose results it is
//! added to, the next kernel's `A` by all products of the kernel before: nothing else runs while `A x` is made.

/// Bytes that memory is fetched in.
pub(super) const LINE: usize = 64;

/// How far ahead of their use lines are asked for, of all the streams of a tile together.
const STREAMS_BYTES: usize = 6 << 10;

/// What is asked for while rows of a matrix are read.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    /// What follows.
    Along,
    /// What lies so many bytes from them.
    Elsewhere(isize),
    Nothing,
    /// Nothing: cores read ahead on their own, of one row's [few streams](super::row_tiles::UNASKED_STREAMS).
    LeftToCores,
}

impl Ask {
    /// Bytes from what is read to what is asked for, where `streams` rows are read together.
    #[inline(always)]
    pub(super) fn distance(self, streams: usize) -> Option<isize> {
        match self {
            Ask::Along => Some((STREAMS_BYTES / streams).cast_signed()),
            Ask::Elsewhere(distance) => Some(distance),
            Ask::Nothing | Ask::LeftToCores => None,
        }
    }
}

/// A run of lines: the first one's address, and the one's behind the last.
type Run = (usize, usize);

fn lines(runs: &[Run]) -> usize {
    runs.iter().map(|(first, end)| (end - first) / LINE).sum()
}

/// What a thread asks for while it multiplies.
#[derive(Default)]
pub(super) struct Ahead {
    /// What is read after the coming product, and the first run that was not begun.
    due: Vec<Run>,
    next: usize,
    /// What the next kernel reads and nobody asked for yet, the last run first, and the lines of all that it reads.
    later: Vec<Run>,
    later_lines: usize,
    /// Units of work over which they are asked for, and those that were begun.
    work: (usize, usize),
    /// The current run's next line, and its end.
    at: usize,
    end: usize,
    /// Lines of a step. It is the same for all steps of a product, so that nothing is mispredicted.
    chunk: usize,
}

impl Ahead {
    /// What is read after the coming product, as address and length.
    pub(super) fn push_due(&mut self, (at, bytes): (usize, usize)) {
        if bytes > 0 {
            self.due.push(run(at, bytes));
        }
    }

    /// What the next kernel reads first, as addresses and lengths in its order; it is asked for in the course of so many units
    /// of work, such as products.
    pub(super) fn set_later(&mut self, bytes: impl Iterator<Item = (usize, usize)>, work: usize) {
        self.later.clear();
        self.later.extend(bytes.map(|(at, bytes)| run(at, bytes)));
        self.later.reverse();
        self.later_lines = lines(&self.later);
        self.work = (work.max(1), 0);
    }

    /// Adds the portion of so much work of what is read later to what is due.
    fn take_portion(&mut self, work: usize) {
        let (all, before) = self.work;
        self.work.1 = (before + work).min(all);
        let behind = |done: usize| (self.later_lines * done).div_ceil(all.max(1));
        let mut left = (behind(self.work.1) - behind(before)) * LINE;
        while left > 0
            && let Some((first, end)) = self.later.last_mut()
        {
            let to = (*end).min(*first + left);
            self.due.push((*first, to));
            left -= to - *first;
            *first = to;
            if to == *end {
                self.later.pop();
            }
        }
    }

    /// Spreads what is due over `steps` steps of a product, which is so many units of work.
    pub(super) fn start_product(&mut self, steps: usize, work: usize) {
        self.take_portion(work);
        self.chunk = lines(&self.due).div_ceil(steps.max(1));
        self.advance();
    }

    /// Goes on with the next run.
    fn advance(&mut self) {
        (self.at, self.end) = self.due.get(self.next).copied().unwrap_or((0, 0));
        self.next += 1;
    }

    /// Asks for the last lines that are due.
    pub(super) fn end_product(&mut self) {
        while self.at < self.end {
            self.step();
        }
        self.due.clear();
        self.next = 0;
    }

    /// Asks for the lines of a step. A hint: nothing waits for it.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        if self.at < self.end {
            // A run's last lines are asked for together with some before them.
            let at = self.at.min(self.end - (self.chunk * LINE).min(self.end));
            for line in 0..self.chunk {
                ask_for(at + line * LINE);
            }
            self.at += self.chunk * LINE;
            if self.at >= self.end {
                self.advance();
            }
        }
    }
}

/// The lines that hold `bytes` bytes from `at` on.
fn run(at: usize, bytes: usize) -> Run {
    (at / LINE * LINE, (at + bytes).next_multiple_of(LINE))
}

/// Asks for a line to be brought into the second-level cache.
#[inline(always)]
pub(super) fn ask_for(at: usize) {
    ask::<false>(at);
}

/// Asks for a line to be brought into the first-level cache: for what is read next.
#[inline(always)]
pub(super) fn ask_for_soon(at: usize) {
    ask::<true>(at);
}

#[inline(always)]
fn ask<const FIRST: bool>(at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of the baseline instruction set; prefetches read nothing that a program can see, and addresses
    // that are not mapped are ignored.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        let at = std::ptr::without_provenance(at);
        match FIRST {
            true => _mm_prefetch::<_MM_HINT_T0>(at),
            false => _mm_prefetch::<_MM_HINT_T1>(at),
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::asm;
        match FIRST {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_later_is_asked_for_evenly_over_the_work() {
        let runs = [(3 * LINE + 5, 10 * LINE), (100 * LINE, 90 * LINE)];
        let all = 11 + 90;
        for works in [vec![1; 7], vec![24, 6, 2, 0], vec![1; 300], vec![5, 500]] {
            let total: usize = works.iter().sum();
            let mut ahead = Ahead::default();
            ahead.set_later(runs.into_iter(), total);
            let (mut done, mut asked) = (0, 0);
            for work in works {
                ahead.start_product(4, work);
                done += work;
                asked += lines(&ahead.due);
                assert_eq!(asked, (all * done).div_ceil(total), "{done} of {total}");
                ahead.end_product();
            }
            assert_eq!(asked, all);
        }
    }
}
