//! How threads share out the output columns of a contraction for one row, where cores read long runs of memory ahead on
//! their own.
//!
//! A run that ends costs such a core the time until it has noticed where the next one goes. So each thread has an even
//! share of the columns, and takes most of what is left of it at a time, from its beginning on. A thread whose share is
//! taken takes halves of what is left of the others', from their ends, so that all end together (as thieves take the
//! oldest task of a deque, which is the largest: Blumofe and Leiserson 1999, "Scheduling multithreaded computations by
//! work stealing").

use super::panel::GROUP;
use super::strips::Width;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Widest piece.
pub(super) const WIDEST: usize = 2048;
/// Least bytes that are taken, unless fewer are left: one or two microseconds of work.
const LEAST_BYTES: usize = 32 << 10;

/// The columns of a contraction's bundles, one behind the other. They are counted in units of [`GROUP`].
pub(super) struct Shares {
    /// First unit of each bundle, and its columns.
    bundles: Vec<(usize, usize)>,
    units: usize,
    threads: usize,
    /// Units that are taken at least.
    least: usize,
}

/// Columns of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) bundle: usize,
    pub(super) column: usize,
    pub(super) columns: usize,
}

/// How much of a thread's share is taken, in the kernel that ran last.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Tally(AtomicU64);

/// What a tally says: the kernel, and the units that were taken from the share's beginning and its end.
#[derive(Clone, Copy)]
struct Taken {
    turn: u32,
    front: usize,
    back: usize,
}

impl Taken {
    /// What a word says of kernel `turn`: nothing is taken where it speaks of another.
    fn of(word: u64, turn: u32) -> Self {
        let units = |shift: u32| match word >> 32 == u64::from(turn) {
            true => usize::from((word >> shift) as u16),
            false => 0,
        };
        Self {
            turn,
            front: units(16),
            back: units(0),
        }
    }

    fn word(self) -> u64 {
        u64::from(self.turn) << 32 | (self.front as u64) << 16 | self.back as u64
    }
}

impl Shares {
    /// Of bundles, of which a column has so many bytes; none where a share has more units than a tally counts.
    pub(super) fn new(bundles: &[Width], column_bytes: usize, threads: usize) -> Option<Self> {
        let mut units = 0;
        let place = |bundle: &Width| {
            let first = units;
            units += bundle.columns.div_ceil(GROUP);
            (first, bundle.columns)
        };
        let bundles = bundles.iter().map(place).collect();
        let countable = units.div_ceil(threads) <= usize::from(u16::MAX);
        countable.then(|| Self {
            bundles,
            units,
            threads,
            least: LEAST_BYTES.div_ceil(column_bytes.max(1) * GROUP),
        })
    }

    /// Units of a thread's share, about.
    pub(super) fn each(&self) -> usize {
        self.units.div_ceil(self.threads)
    }

    fn share(&self, thread: usize) -> Range<usize> {
        self.units * thread / self.threads..self.units * (thread + 1) / self.threads
    }

    /// The units that a thread multiplies next in kernel `turn`, whose number is another one than the last kernel's: of its
    /// own share, or of another's.
    pub(super) fn take(&self, tallies: &[Tally], thread: usize, turn: u32) -> Option<Range<usize>> {
        let mut owners = (thread..self.threads).chain(0..thread);
        owners.find_map(|owner| self.take_of(tallies, (owner, thread), turn))
    }

    fn take_of(
        &self,
        tallies: &[Tally],
        (owner, thread): (usize, usize),
        turn: u32,
    ) -> Option<Range<usize>> {
        let (share, tally) = (self.share(owner), &tallies[owner].0);
        let mut word = tally.load(Relaxed);
        loop {
            let taken = Taken::of(word, turn);
            let left = share.start + taken.front..share.end - taken.back;
            let part = match owner == thread {
                true => left.len() * 3 / 4,
                false => left.len() / 2,
            };
            let units = part.max(self.least).min(left.len()).min(WIDEST / GROUP);
            if units == 0 {
                return None;
            }
            let (after, units) = match owner == thread {
                true => (
                    Taken {
                        front: taken.front + units,
                        ..taken
                    },
                    left.start..left.start + units,
                ),
                false => (
                    Taken {
                        back: taken.back + units,
                        ..taken
                    },
                    left.end - units..left.end,
                ),
            };
            // Nothing else is told by it: what a kernel reads was made before a barrier.
            match tally.compare_exchange_weak(word, after.word(), Relaxed, Relaxed) {
                Ok(_) => return Some(units),
                Err(now) => word = now,
            }
        }
    }

    /// The columns that units are.
    pub(super) fn pieces(&self, units: Range<usize>) -> impl Iterator<Item = Piece> {
        let bundles = self.bundles.iter().enumerate();
        bundles.filter_map(move |(bundle, &(first, columns))| {
            let column = (units.start.max(first) - first) * GROUP;
            let end = ((units.end.max(first) - first) * GROUP).min(columns);
            (column < end).then(|| Piece {
                bundle,
                column,
                columns: end - column,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn threads_take_every_column_once() {
        for widths in [
            vec![32],
            vec![2048, 1024, 1024],
            vec![151_936],
            vec![100, 7],
        ] {
            let width = |&columns| Width { columns, parts: 1 };
            let bundles: Vec<Width> = widths.iter().map(width).collect();
            for threads in [1, 2, 3, 8] {
                let shares = Shares::new(&bundles, 576, threads).expect("countable");
                let tallies: Vec<Tally> = (0..threads).map(|_| Tally::default()).collect();
                for turn in [7, 9] {
                    let covered: Vec<_> = widths.iter().map(|n| Mutex::new(vec![0; *n])).collect();
                    std::thread::scope(|scope| {
                        for thread in 0..threads {
                            let (shares, tallies, covered) = (&shares, &tallies, &covered);
                            scope.spawn(move || {
                                // Threads that come late find their share taken by others.
                                std::thread::sleep(std::time::Duration::from_micros(
                                    200 * thread as u64,
                                ));
                                while let Some(units) = shares.take(tallies, thread, turn) {
                                    for p in shares.pieces(units) {
                                        let mut covered = covered[p.bundle].lock().expect("alone");
                                        let columns = &mut covered[p.column..][..p.columns];
                                        columns.iter_mut().for_each(|c| *c += 1);
                                    }
                                }
                            });
                        }
                    });
                    for columns in covered {
                        let columns = columns.into_inner().expect("no panic");
                        assert!(columns.iter().all(|c| *c == 1), "{widths:?} {threads}");
                    }
                }
            }
        }
    }

    #[test]
    fn more_columns_than_a_tally_counts_are_not_shared_out() {
        let bundles = [Width {
            columns: (usize::from(u16::MAX) * 2 + 1) * GROUP,
            parts: 1,
        }];
        assert!(Shares::new(&bundles, 576, 2).is_none());
        assert!(Shares::new(&bundles, 576, 3).is_some());
    }
}
