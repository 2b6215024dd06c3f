//! A plan kernel ready to be launched: templates from which each step's launches are made.

use super::depth_cuts::DepthCut;
use super::kernels::shrink::SHRINK_CUBES;
use super::residence::ChunkId;
use super::text::{KernelSpec, Kind};
use crate::plan::{Exclusion, Kernel};
use std::ops::RangeInclusive;

/// How many groups a launch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grid {
    /// One per row, by `y`.
    Rows { y: u32 },
    /// One per batch of `rows` rows, by `tiles` over two dimensions.
    Tiles { tiles: u32, rows: u32 },
    /// One per row, part and share of the ranks.
    Shrink { parts: u32 },
    /// One per result, of which each row has `per_row`, by `tiles` over two dimensions.
    Results { tiles: u32, per_row: u32 },
    /// `tiles` over two dimensions, for each expert.
    Experts { tiles: u32, experts: u32 },
    /// One per attention tile, by `y`.
    Attention { y: u32 },
    /// One per split of the rows that are attended to alone, by `y`.
    RowAttention { y: u32 },
}

impl Grid {
    /// Groups of a launch over `rows` rows, `tiles` attention tiles and `splits` of rows that are attended to alone; at most
    /// `max` in each dimension.
    pub fn groups(self, rows: u32, (tiles, splits): (u32, u32), max: [u32; 3]) -> [u32; 3] {
        let spread = |count: u32| {
            let x = count.min(max[0].min(1 << 15));
            [x, count.div_ceil(x)]
        };
        match self {
            Grid::Rows { y } => [rows, y, 1],
            Grid::Tiles { tiles, rows: batch } => {
                let [x, y] = spread(tiles);
                [rows.div_ceil(batch), x, y]
            }
            Grid::Results { tiles, per_row } => {
                let [x, y] = spread(tiles);
                [rows * per_row, x, y]
            }
            Grid::Experts { tiles, experts } => {
                let [x, y] = spread(tiles);
                [x, y, experts]
            }
            Grid::Shrink { parts } => [rows, parts, SHRINK_CUBES],
            Grid::Attention { y } => [tiles, y, 1],
            Grid::RowAttention { y } => [splits, y, 1],
        }
    }
}

/// A launch for any number of rows.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub spec: KernelSpec,
    pub grid: Grid,
    pub scalars: Vec<u32>,
    /// The first of two scalars that say where adapters' intermediate lies and how many ranks it has.
    pub shrunk: Option<usize>,
    /// The scalar that says where packed inputs lie.
    pub packed: Option<usize>,
    /// The scalar that says where cubes leave what the last of them, or a launch behind, looks through, as splits of attention do.
    pub splits: Option<usize>,
    /// Among how many cubes products on matrix units share their depth.
    pub depth: Option<DepthCut>,
    /// Which of the layer's buffers of pages is bound, where it has several.
    pub piece: u32,
    pub weights: Option<ChunkId>,
    pub label: String,
}

impl Template {
    /// Whether it adds up what splits of rows left.
    pub fn adds_splits(&self) -> bool {
        matches!(self.spec.kind, Kind::MeetSplits(_))
    }
}

/// When a template is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Always.
    Always,
    /// In steps whose rows are all of different sequences, or in others.
    Decode(bool),
    /// Where a step has attention tiles.
    Tiles,
    /// Where a step has rows that are attended to alone.
    Alone,
    /// Where a row wants its most likely token.
    ArgMax,
    /// Where a row wants its hidden state.
    Hidden,
}

/// What is launched for some numbers of rows.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// Numbers of rows for which it is taken.
    pub rows: RangeInclusive<u32>,
    /// In which steps.
    pub when: When,
    /// What a plan does without where it goes wrong.
    pub variant: Exclusion,
    /// The launches, in order.
    pub templates: Vec<Template>,
}

impl Choice {
    /// The launches of a step: what adds splits up is only launched where there are some.
    pub fn launched(&self, adds_splits: bool) -> impl Iterator<Item = &Template> {
        let launched = move |t: &&Template| adds_splits || !t.adds_splits();
        self.templates.iter().filter(launched)
    }
}

/// A plan kernel ready to be recorded.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    /// Whether it runs over the rows that want an output.
    pub selected: bool,
    /// The layer whose pages it touches.
    pub layer: Option<u32>,
    /// Launches by range of rows, plain.
    pub plain: Vec<Choice>,
    /// Launches by range of rows, with adapters; empty where the kernel has no site.
    pub adapted: Vec<Choice>,
}

impl Stage {
    /// Whether its launches with adapters are others than those of a contraction: more of them, and products left before
    /// anything is made of them. Most adapters leave experts and heads as they are.
    pub fn is_of_experts(&self) -> bool {
        let mut launches = self.adapted.iter().flat_map(|choice| &choice.templates);
        launches.any(|template| template.spec.adapts_experts())
    }
}

/// Scalars of a launch, numbered as kernels are told.
#[derive(Clone, Default)]
pub(super) struct Scalars(pub Vec<u32>);

impl Scalars {
    /// Appends a scalar and returns its number.
    pub fn push(&mut self, value: u32) -> usize {
        self.append(&[value])
    }

    /// Appends scalars that kernels know by their places behind the first, whose number it returns.
    pub fn append(&mut self, values: &[u32]) -> usize {
        let first = self.0.len();
        self.0.extend_from_slice(values);
        first
    }
}

/// A launch of `kind` for a plan kernel.
pub(super) fn template(
    kernel: &Kernel,
    kind: Kind,
    grid: Grid,
    scalars: Scalars,
    weights: Option<ChunkId>,
) -> Template {
    Template {
        spec: KernelSpec {
            kind,
            scalars: scalars.0.len(),
        },
        grid,
        scalars: scalars.0,
        shrunk: None,
        packed: None,
        splits: None,
        depth: None,
        piece: 0,
        weights,
        label: kernel.name.clone(),
    }
}
