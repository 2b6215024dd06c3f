//! How a step's attention is cut: into tiles of rows of one sequence, and rows alone whose keys are split among cubes.
//!
//! A tile reads its sequence's keys once for all of its rows, but with few cubes; a row alone reads them with as many as it is
//! split among. So rows of which a step has few of a sequence are alone where there are keys to split, whether others decode beside
//! them or read a prompt. How often a row is split depends on its own keys, unless all splits together are more than there is room for:
//! then splits are longer for all rows alike, so that none waits for one that was cut less.

use crate::Step;
use crate::plan::AttentionCut;

/// What the attention kernels of an executable take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Rows of a tile at most.
    pub tile_rows: u32,
    /// Whether there is a kernel for rows alone.
    pub alone: bool,
    /// Splits of rows that have several, all together.
    pub splits: u32,
    /// Whether these are added up by a launch behind, as cubes do not see what others of theirs leave.
    pub behind: bool,
}

/// A share of a row's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// The row.
    pub row: u32,
    /// Which of the row's splits it is.
    pub number: u32,
    /// How many the row has.
    pub of: u32,
    /// Splits of the rows before it, where those have several: none has the same place.
    pub first: u32,
}

/// A step's attention.
#[derive(Clone, Debug)]
pub(super) struct Cuts {
    /// First row and number of rows of each tile.
    pub tiles: Vec<(u32, u32)>,
    /// All splits of the rows that are alone.
    pub splits: Vec<Split>,
    /// Whether every row is of another sequence, so that none sees another's keys.
    pub apart: bool,
}

/// Cuts a checked step.
pub(super) fn cuts(step: &Step<'_>, room: Room, how: AttentionCut) -> Cuts {
    let apart = all_apart(step);
    let keys = |row: u32| step.positions[row as usize] + 1;
    let alone = |first: u32, rows: u32| {
        let few = rows <= how.alone_rows && room.splits > 1;
        let many_keys = wanted(keys(first + rows - 1), how.split_keys, how) > 1;
        room.alone && (apart || (few && many_keys))
    };
    let mut tiles: Vec<(u32, u32)> = Vec::new();
    let mut rows: Vec<u32> = Vec::new();
    for (first, count) in runs(step) {
        if alone(first, count) {
            rows.extend(first..first + count);
            continue;
        }
        let tile = room.tile_rows.max(1);
        let starts = (0..count).step_by(tile as usize);
        tiles.extend(starts.map(|at| (first + at, tile.min(count - at))));
    }
    let keys: Vec<u32> = rows.iter().map(|row| keys(*row)).collect();
    let counts = split_counts(&keys, room.splits, how);
    Cuts {
        tiles,
        splits: placed(&rows, &counts),
        apart,
    }
}

/// Among how many cubes each row's `keys` are split: of those of several, at most `room` together.
pub(super) fn split_counts(keys: &[u32], room: u32, how: AttentionCut) -> Vec<u32> {
    let mut length = how.split_keys.max(1);
    loop {
        let counts: Vec<u32> = keys.iter().map(|k| wanted(*k, length, how)).collect();
        if counts.iter().filter(|c| **c > 1).sum::<u32>() <= room {
            return counts;
        }
        // At last a split has room for any number of keys.
        length = length.saturating_mul(2);
    }
}

/// Splits of so many keys, each of about `length`: a power of two, so that few recordings serve a growing text.
fn wanted(keys: u32, length: u32, how: AttentionCut) -> u32 {
    let wanted = keys.div_ceil(length.max(1)).next_power_of_two();
    wanted.min(how.most_splits.max(1))
}

/// The splits of some rows one after the other; a row that is not split leaves nothing, and takes no place.
fn placed(rows: &[u32], counts: &[u32]) -> Vec<Split> {
    let mut splits = Vec::new();
    let mut first = 0;
    for (row, of) in rows.iter().zip(counts) {
        let split = |number| Split {
            row: *row,
            number,
            of: *of,
            first,
        };
        splits.extend((0..*of).map(split));
        first += if *of > 1 { *of } else { 0 };
    }
    splits
}

/// Whether no row sees another's keys.
fn all_apart(step: &Step<'_>) -> bool {
    let mut seen = vec![false; step.sequences.len()];
    let first = |s: &u32| !std::mem::replace(&mut seen[*s as usize], true);
    step.sequence_of.iter().all(first)
}

/// First row and number of rows of each run of rows of one sequence.
fn runs(step: &Step<'_>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for row in 0..step.rows() {
        let same = row > 0 && step.sequence_of[row] == step.sequence_of[row - 1];
        match runs.last_mut() {
            Some((_, count)) if same => *count += 1,
            _ => runs.push((row as u32, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sequence, SlotId, Want};
    use proptest::prelude::*;

    const ROOM: Room = Room {
        tile_rows: 32,
        alone: true,
        splits: 64,
        behind: false,
    };

    /// The cuts of a step of runs, each of another sequence: rows, and the first one's position.
    fn of_runs(runs: &[(u32, u32)], room: Room, how: AttentionCut) -> Cuts {
        let (mut positions, mut sequence_of) = (vec![], vec![]);
        for (sequence, (rows, first)) in (0..).zip(runs) {
            positions.extend(*first..first + rows);
            sequence_of.extend((0..*rows).map(|_| sequence));
        }
        let sequence = Sequence {
            pages: &[],
            rope_length: 1,
        };
        let rows = positions.len();
        let step = Step {
            tokens: &vec![0; rows],
            positions: &positions,
            sequence_of: &sequence_of,
            sequences: &vec![sequence; runs.len()],
            slots: &vec![SlotId::BASE; rows],
            wants: &vec![Want::Nothing; rows],
        };
        cuts(&step, room, how)
    }

    /// Splits of a row; 0 where it is not alone.
    fn splits_of(cuts: &Cuts, row: u32) -> u32 {
        let mut of_row = cuts.splits.iter().filter(|s| s.row == row);
        of_row.next().map_or(0, |s| s.of)
    }

    #[test]
    fn rows_of_many_keys_keep_their_splits_beside_a_prompt() {
        let how = AttentionCut::default();
        let alone = of_runs(&[(1, 8191)], ROOM, how);
        let beside = of_runs(&[(1, 8191), (64, 0), (1, 100)], ROOM, how);
        assert!(alone.apart && !beside.apart);
        assert_eq!(alone.splits, beside.splits);
        assert_eq!(splits_of(&beside, 0), 32);
        assert_eq!(beside.tiles, [(1, 32), (33, 32), (65, 1)]);
        // Few rows of a sequence are as rows of several; more share a tile.
        let few = of_runs(&[(3, 8189), (64, 0)], ROOM, how);
        assert_eq!([0, 1, 2].map(|row| splits_of(&few, row)), [16; 3]);
        let more = of_runs(&[(5, 8187), (64, 0)], ROOM, how);
        assert_eq!(more.tiles, [(0, 5), (5, 32), (37, 32)]);
    }

    /// A launch of their own is for rows of keys that can be split.
    #[test]
    fn where_nothing_is_split_a_prompt_has_tiles_alone() {
        let how = AttentionCut::default();
        let shallow = [(1, 100), (64, 0), (2, 50)];
        let deep = [(1, 8191), (64, 0)];
        let planeless = Room {
            alone: false,
            splits: 0,
            ..ROOM
        };
        for (runs, room) in [
            (&shallow[..], ROOM),
            (&deep[..], planeless),
            (&[(1, 8191), (1, 8191)][..], planeless),
        ] {
            assert!(of_runs(runs, room, how).splits.is_empty(), "{runs:?}");
        }
    }

    /// Rows of few keys do not take the deep one's splits.
    #[test]
    fn deep_rows_are_split_first() {
        let how = AttentionCut::default();
        let mut runs = vec![(1, 999); 63];
        runs.push((1, 32_767));
        let cuts = of_runs(&runs, ROOM, how);
        assert_eq!((splits_of(&cuts, 0), splits_of(&cuts, 63)), (1, 32));
        // As many keys in each row are as many splits.
        let same = of_runs(&[(1, 8191); 8], ROOM, how);
        assert!((0..8).all(|row| splits_of(&same, row) == 8));
    }

    proptest! {
        /// Every row is in one tile or has all of its splits, and no two rows leave what they have at the same place.
        #[test]
        fn rows_are_cut_once(
            runs in prop::collection::vec((1u32..20, 0u32..40_000), 1..40),
            splits in 0u32..200,
            split_keys in 0u32..300,
            most_splits in 0u32..70,
            alone_rows in 0u32..20,
        ) {
            let room = Room { splits, ..ROOM };
            let how = AttentionCut { split_keys, most_splits, alone_rows };
            let cuts = of_runs(&runs, room, how);
            let rows: u32 = runs.iter().map(|r| r.0).sum();
            let mut seen = vec![0; rows as usize];
            for (first, count) in &cuts.tiles {
                prop_assert!((1..=room.tile_rows).contains(count));
                (*first..first + count).for_each(|row| seen[row as usize] += 1);
            }
            let mut taken = vec![false; splits as usize];
            for (at, split) in cuts.splits.iter().enumerate() {
                prop_assert_eq!(cuts.splits[at - split.number as usize].number, 0);
                prop_assert!(split.number < split.of);
                seen[split.row as usize] += u32::from(split.number == 0);
                if split.of > 1 {
                    let place = (split.first + split.number) as usize;
                    prop_assert!(!std::mem::replace(&mut taken[place], true));
                }
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
            let each = cuts.splits.iter().filter(|s| s.number == 0);
            let all: u32 = each.map(|s| s.of).sum();
            prop_assert_eq!(all as usize, cuts.splits.len());
        }
    }
}
