//! What an adapter does at one site.
//!
//! Beside plain low ranks, kinds whose files are small stay small: factors that act on blocks of the input and the output
//! ([`Kron`], LoKr), and factors that several sites share, with a gain of each site's own (VeRA). Kernels of the CPU read both
//! as they are; a GPU's slots hold them [multiplied out](SiteDelta::plain).

use crate::delta_table::{DeltaTable, PANEL};
use crate::interleaving::Factor;
use rusty_graph::interpret::SiteLora;
use rusty_graph::{Site, SiteId};
use std::sync::Arc;

/// Factors that act on blocks: `kron(mix, B A)`, where inputs are `columns` blocks and outputs `rows` of them (KronA, arXiv
/// 2212.10650). Of the blocks `x_j` of an input, output block `i` gets `B (scale (sum_j mix[i, j] A x_j))`. Factors are floats.
#[derive(Clone, Debug)]
pub struct Kron {
    /// Blocks of outputs.
    pub rows: u32,
    /// Blocks of inputs.
    pub columns: u32,
    /// `[rows, columns]`.
    pub mix: Arc<[f32]>,
}

impl Kron {
    /// Most blocks of inputs.
    pub const COLUMNS: usize = 256;
    /// Blocks of inputs are whole multiples of this.
    pub const LANES: usize = 16;

    /// Whether a site of width `k -> n` is cut into blocks that kernels read: of outputs whole panels, of inputs whole vectors.
    pub fn fits((rows, columns): (usize, usize), (k, n): (usize, usize)) -> bool {
        let whole = |size: usize, blocks: usize, unit: usize| {
            blocks > 0 && size.is_multiple_of(blocks) && (size / blocks).is_multiple_of(unit)
        };
        whole(n, rows, PANEL) && whole(k, columns, Self::LANES) && columns <= Self::COLUMNS
    }
}

/// What an adapter does at one site of width `k -> n`.
#[derive(Clone, Debug, Default)]
pub struct SiteDelta {
    /// Rank; 0 where only gains or a bias act.
    pub rank: u32,
    /// `A`, `[rank, k]`; none is the identity, for which `rank` is `k`. With [`SiteDelta::kron`] a block's, `[rank, k / columns]`.
    pub a: Option<DeltaTable>,
    /// `B`, `[n, rank]` in panels of [`PANEL`] outputs (see [`DeltaTable::panels`]); none where `rank` is 0. With
    /// [`SiteDelta::kron`] a block's, `[n / rows, rank]`.
    pub b: Option<DeltaTable>,
    /// One factor per rank, `[rank]`.
    pub scale: Arc<[f32]>,
    /// The blocks in which the factors act; none: they act on whole inputs and outputs.
    pub kron: Option<Kron>,
    /// Factor on what the factors give, `[n]` (VeRA, arXiv 2310.11454).
    pub gain_low: Option<Arc<[f32]>>,
    /// Factor on the stored weight's input, `[k]`.
    pub gain_in: Option<Arc<[f32]>>,
    /// Factor on the stored weight's output, `[n]`.
    pub gain_out: Option<Arc<[f32]>>,
    /// Added last, `[n]`.
    pub bias: Option<Arc<[f32]>>,
}

impl SiteDelta {
    /// The factors' tables.
    pub fn tables(&self) -> impl Iterator<Item = &DeltaTable> {
        [&self.a, &self.b].into_iter().flatten()
    }

    /// Bytes of all tables.
    pub fn bytes(&self) -> usize {
        let vector = |v: &Option<Arc<[f32]>>| v.as_ref().map_or(0, |v| v.len() * 4);
        let table = |t: &Option<DeltaTable>| t.as_ref().map_or(0, DeltaTable::len_bytes);
        table(&self.a)
            + table(&self.b)
            + self.scale.len() * 4
            + self.kron.as_ref().map_or(0, |kron| kron.mix.len() * 4)
            + vector(&self.gain_low)
            + vector(&self.gain_in)
            + vector(&self.gain_out)
            + vector(&self.bias)
    }

    /// Row `row` of `B`, `[rank]`.
    pub fn b_row(&self, row: usize, out: &mut [f32]) {
        match &self.b {
            Some(b) => b.read_panel_row(row, self.rank as usize, out),
            None => out.fill(0.0),
        }
    }

    /// The factors as the interpreter takes them, `B` with the scales, for a site with `outputs` outputs. None where there are no two
    /// factors of whole inputs and outputs.
    pub fn low_rank(&self, site: SiteId, outputs: usize) -> Option<SiteLora> {
        let a = self.a.as_ref().filter(|_| self.kron.is_none())?;
        let mut row = vec![0.0; self.rank as usize];
        let mut b = Vec::with_capacity(outputs * row.len());
        for output in 0..outputs {
            self.b_row(output, &mut row);
            b.extend(row.iter().zip(self.scale.iter()).map(|(b, s)| b * s));
        }
        Some(SiteLora {
            site,
            a: a.values(),
            b,
            scale: 1.0,
        })
    }

    pub(super) fn check(&self, site: &Site) -> Result<(), String> {
        let (k, n) = (site.k as usize, site.n as usize);
        if site.grouped && self.gain_in.is_some() {
            return Err("inputs of experts and heads cannot be scaled by an adapter".into());
        }
        if let Some(kron) = &self.kron {
            return self.check_blocks(kron, (k, n));
        }
        self.check_sizes((k, n), (k, n))
    }

    /// Whether the factors are those of a block.
    fn check_blocks(&self, kron: &Kron, (k, n): (usize, usize)) -> Result<(), String> {
        let (rows, columns) = (kron.rows as usize, kron.columns as usize);
        if !Kron::fits((rows, columns), (k, n)) || kron.mix.len() != rows * columns {
            return Err(format!(
                "{} numbers mix {rows} x {columns} blocks of {k} -> {n}",
                kron.mix.len()
            ));
        }
        let floats = |t: &Option<DeltaTable>| {
            let format = t.as_ref().map(DeltaTable::format);
            format.is_some_and(|f| f.block_len() == 1)
        };
        if !floats(&self.a) || !floats(&self.b) {
            return Err("factors of blocks are no floats".into());
        }
        let (width, height) = (k / columns, n / rows);
        // More would only be memory: a row has so many results for each block of outputs.
        let most = width.min(height);
        if self.rank == 0 || self.rank as usize > most {
            return Err(format!(
                "rank {} of blocks of {width} -> {height}",
                self.rank
            ));
        }
        self.check_sizes((width, height), (k, n))
    }

    /// Whether factors of width `fk -> fn` and vectors of `k -> n` are there.
    fn check_sizes(&self, (fk, fn_): (usize, usize), (k, n): (usize, usize)) -> Result<(), String> {
        let rank = self.rank as usize;
        let size = |t: &Option<DeltaTable>, absent: (usize, usize)| {
            t.as_ref().map_or(absent, |t| (t.rows(), t.columns()))
        };
        let vector = |v: &Option<Arc<[f32]>>, all: usize| v.as_ref().map_or(all, |v| v.len());
        let no_b = if rank == 0 { (0, PANEL) } else { (0, 0) };
        let sizes = [
            ("A", size(&self.a, (rank.min(fk), fk)), (rank, fk)),
            (
                "B",
                size(&self.b, no_b),
                (fn_.div_ceil(PANEL) * rank, PANEL),
            ),
            ("scale", (self.scale.len(), 1), (rank, 1)),
            ("input gain", (vector(&self.gain_in, k), 1), (k, 1)),
            ("output gain", (vector(&self.gain_out, n), 1), (n, 1)),
            ("low gain", (vector(&self.gain_low, n), 1), (n, 1)),
            ("bias", (vector(&self.bias, n), 1), (n, 1)),
        ];
        let a_lies = self.a.as_ref().is_none_or(|a| a.lies_as(Factor::A));
        let b_lies = self
            .b
            .as_ref()
            .is_none_or(|b| b.lies_as(Factor::B { rank }));
        if !a_lies || !b_lies {
            return Err(format!(
                "factors in Q8_0 do not lie as those of rank {rank}"
            ));
        }
        if self.a.is_none() && rank > 0 && rank != fk {
            return Err(format!(
                "an identity of rank {rank}; the site's input has {fk}"
            ));
        }
        match sizes.iter().find(|(_, have, want)| have != want) {
            None => Ok(()),
            Some((name, have, want)) => Err(format!(
                "{name} is {have:?}, not {want:?} (rank {rank}, {k} -> {n})"
            )),
        }
    }
}
