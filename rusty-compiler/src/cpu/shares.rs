//! How threads share out the output columns of a contraction for one row, where cores read long runs of memory ahead on
//! their own.
//!
//! There few and long pieces are faster (supposed: until a core has noticed where a run goes, it waits for each line), but
//! threads have to end together. So each thread has an even share of the columns, and takes most of what is left of it at a
//! time, from its beginning on. A thread whose share is taken takes halves of what is left of the others', from their ends
//! (as thieves take the oldest task of a deque, which is the largest: Blumofe and Leiserson 1999, "Scheduling multithreaded
//! computations by work stealing").

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

/// How much of a thread's share is taken, in the kernel of a step that shared columns out last.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Tally(AtomicU64);

impl Tally {
    /// Makes ready for a step; nothing is taken in any of its turns.
    pub(super) fn clear(&self) {
        self.0.store(0, Relaxed);
    }
}

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

    /// The units that a thread multiplies next: of its own share, or of another's. `turn` is another number for each kernel of a
    /// step.
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
        let own = owner == thread;
        let mut word = tally.load(Relaxed);
        loop {
            let mut taken = Taken::of(word, turn);
            let left = share.start + taken.front..share.end - taken.back;
            let part = match own {
                true => left.len() * 3 / 4,
                false => left.len() / 2,
            };
            let units = part.max(self.least).min(left.len()).min(WIDEST / GROUP);
            if units == 0 {
                return None;
            }
            let from = match own {
                true => left.start,
                false => left.end - units,
            };
            *if own {
                &mut taken.front
            } else {
                &mut taken.back
            } += units;
            // Nothing else is told by it: what a kernel reads was made before a barrier.
            match tally.compare_exchange_weak(word, taken.word(), Relaxed, Relaxed) {
                Ok(_) => return Some(from..from + units),
                Err(now) => word = now,
            }
        }
    }

    /// The bundles' columns that lie in units.
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
    use std::sync::{Barrier, Mutex};

    fn shares(widths: &[usize], threads: usize) -> Option<Shares> {
        let width = |&columns| Width { columns, parts: 1 };
        let bundles: Vec<Width> = widths.iter().map(width).collect();
        Shares::new(&bundles, 576, threads)
    }

    #[test]
    fn threads_take_every_column_once() {
        for widths in [
            vec![32],
            vec![2048, 1024, 1024],
            vec![151_936],
            vec![100, 7],
        ] {
            for threads in [1, 2, 3, 8] {
                let shares = shares(&widths, threads).expect("countable");
                let tallies: Vec<Tally> = (0..threads).map(|_| Tally::default()).collect();
                let taken = Mutex::new(vec![]);
                let begin = Barrier::new(threads);
                let turns = 200;
                std::thread::scope(|scope| {
                    for thread in 0..threads {
                        let (shares, tallies, taken) = (&shares, &tallies, &taken);
                        let begin = &begin;
                        scope.spawn(move || {
                            for turn in 0..turns {
                                begin.wait();
                                let mut own = vec![];
                                while let Some(units) = shares.take(tallies, thread, turn) {
                                    own.extend(shares.pieces(units).map(|piece| (turn, piece)));
                                }
                                taken.lock().expect("no panic").extend(own);
                                // Kernels end at a barrier.
                                begin.wait();
                            }
                        });
                    }
                });
                let mut taken = taken.into_inner().expect("no panic");
                taken.sort_by_key(|(turn, p)| (*turn, p.bundle, p.column));
                let mut taken = taken.into_iter();
                for turn in 0..turns {
                    for (bundle, width) in widths.iter().enumerate() {
                        let mut end = 0;
                        while end < *width {
                            let (of, piece) = taken.next().expect("a piece");
                            assert_eq!((of, piece.bundle, piece.column), (turn, bundle, end));
                            assert!(piece.columns <= WIDEST && piece.column % GROUP == 0);
                            end += piece.columns;
                        }
                        assert_eq!(end, *width, "{widths:?}, {threads} threads");
                    }
                }
                assert!(taken.next().is_none(), "{widths:?}, {threads} threads");
            }
        }
    }

    #[test]
    fn most_of_the_own_share_is_taken_then_halves_of_others() {
        let shares = shares(&[2048], 2).expect("countable");
        let tallies = [Tally::default(), Tally::default()];
        let take = |thread: usize| shares.take(&tallies, thread, 5);
        // Two units have the least bytes.
        let own = [0..24, 24..30, 30..32];
        let others = [48..64, 40..48, 36..40, 34..36, 32..34];
        for units in own.into_iter().chain(others) {
            assert_eq!(take(0), Some(units));
        }
        assert_eq!((take(0), take(1)), (None, None));
        // The next kernel's shares are whole again.
        assert_eq!(shares.take(&tallies, 1, 6), Some(32..56));
    }

    #[test]
    fn more_columns_than_a_tally_counts_are_not_shared_out() {
        let columns = (usize::from(u16::MAX) * 2 + 1) * GROUP;
        assert!(shares(&[columns], 2).is_none());
        assert!(shares(&[columns], 3).is_some());
    }
}
