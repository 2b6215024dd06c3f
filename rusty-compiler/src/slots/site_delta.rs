//! What an adapter does at one site.
//!
//! Beside plain low ranks, kinds whose files are small stay small: factors that act on blocks of the input and the output
//! ([`Kron`], LoKr), and factors that several sites share, with a gain of each site's own (VeRA). Kernels of the CPU read both
//! as they are; a GPU's slots hold them [multiplied out](SiteDelta::plain).

use crate::delta_table::{DeltaTable, PANEL};
use crate::interleaving::Factor;
use rusty_graph::Site;
use rusty_loader::Format;
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

/// Whether a matrix `[n, k]` has fewer values than factors of so many ranks.
fn is_smaller_whole(ranks: usize, k: usize, n: usize) -> bool {
    ranks * (k + n) > n * k
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

    /// Whether its factors act as a low rank of its own.
    pub fn is_plain(&self) -> bool {
        self.kron.is_none() && self.gain_low.is_none()
    }

    /// The same as a plain low rank, or as a whole matrix where that is smaller; none where such a table cannot be.
    pub fn plain(&self) -> Option<Self> {
        if self.is_plain() {
            return Some(self.clone());
        }
        let plain = match &self.kron {
            Some(kron) => self.without_blocks(kron)?,
            None => self.clone(),
        };
        let Some(gain) = plain.gain_low.clone() else {
            return Some(plain);
        };
        let (rank, n) = (plain.rank as usize, gain.len());
        let rows: Vec<Vec<f32>> = (0..n)
            .map(|c| {
                let mut row = vec![0.0; rank];
                plain.b_row(c, &mut row);
                row.iter_mut().for_each(|b| *b *= gain[c]);
                row
            })
            .collect();
        let format = plain.b.as_ref().map_or(Format::F32, DeltaTable::format);
        Some(Self {
            b: match rank {
                0 => None,
                _ => Some(DeltaTable::panels(format, n, rank, |c, r| rows[c][r])?),
            },
            gain_low: None,
            ..plain
        })
    }

    /// Bytes of all tables of [`SiteDelta::plain`].
    pub fn plain_bytes(&self) -> usize {
        let gain = self.gain_low.as_ref().map_or(0, |gain| gain.len() * 4);
        let (Some(kron), Some(a), Some(b)) = (&self.kron, &self.a, &self.b) else {
            return self.bytes() - gain;
        };
        let (rows, columns) = (kron.rows as usize, kron.columns as usize);
        let own = a.len_bytes() + b.len_bytes() + (self.scale.len() + kron.mix.len()) * 4;
        let [width, height] = self.block(a, b);
        let (k, n) = (width * columns, height * rows);
        let ranks = rows.min(columns) * self.rank as usize;
        let tables = match is_smaller_whole(ranks, k, n) {
            true => b.format().row_bytes(n * k) + k * 4,
            false => a.format().row_bytes(ranks * k) + b.format().row_bytes(n * ranks) + ranks * 4,
        };
        self.bytes() - gain - own + tables
    }

    /// Inputs and outputs of a block that these tables act on.
    fn block(&self, a: &DeltaTable, b: &DeltaTable) -> [usize; 2] {
        [a.columns(), b.rows() / (self.rank as usize).max(1) * PANEL]
    }

    /// `kron(mix, B A)` as `kron(mix, B) kron(I, A)` or `kron(I, B) kron(mix, A)`, whichever has fewer ranks, or multiplied out.
    fn without_blocks(&self, kron: &Kron) -> Option<Self> {
        let (a_table, b_table) = (self.a.as_ref()?, self.b.as_ref()?);
        let (rank, [fk, height]) = (self.rank as usize, self.block(a_table, b_table));
        let (rows, columns) = (kron.rows as usize, kron.columns as usize);
        let a = a_table.values();
        let mut b = vec![0.0; height * rank];
        for (c, row) in b.chunks_exact_mut(rank.max(1)).enumerate() {
            self.b_row(c, row);
        }
        let (k, n) = (fk * columns, height * rows);
        let blocks = rows.min(columns);
        let ranks = blocks * rank;
        let mix = |i: usize, j: usize| kron.mix[i * columns + j];
        // Of the two factors, the identity's side and the mixing one.
        let left = |i: usize, s: usize| match rows <= columns {
            true => f32::from(u8::from(i == s)),
            false => mix(i, s),
        };
        let right = |s: usize, j: usize| match rows <= columns {
            true => mix(s, j),
            false => f32::from(u8::from(s == j)),
        };
        if is_smaller_whole(ranks, k, n) {
            let mut block = vec![0.0; height * fk];
            for (c, row) in block.chunks_exact_mut(fk).enumerate() {
                for q in 0..rank {
                    let by = self.scale[q] * b[c * rank + q];
                    let a = &a[q * fk..][..fk];
                    row.iter_mut().zip(a).for_each(|(v, a)| *v += by * a);
                }
            }
            let value = |row: usize, column: usize| {
                let within = row % height * fk + column % fk;
                mix(row / height, column / fk) * block[within]
            };
            return Some(Self {
                rank: k as u32,
                a: None,
                b: Some(DeltaTable::panels(b_table.format(), n, k, value)?),
                scale: vec![1.0; k].into(),
                kron: None,
                ..self.clone()
            });
        }
        let mut wide = vec![0.0; ranks * k];
        for (r, row) in wide.chunks_exact_mut(k).enumerate() {
            for (j, block) in row.chunks_exact_mut(fk).enumerate() {
                let by = right(r / rank, j);
                let a = &a[r % rank * fk..][..fk];
                block.iter_mut().zip(a).for_each(|(v, a)| *v = by * a);
            }
        }
        let tall =
            |row: usize, r: usize| left(row / height, r / rank) * b[row % height * rank + r % rank];
        Some(Self {
            rank: ranks as u32,
            a: Some(DeltaTable::ranks(a_table.format(), ranks, k, &wide)?),
            b: Some(DeltaTable::panels(b_table.format(), n, ranks, tall)?),
            scale: (0..ranks).map(|r| self.scale[r % rank]).collect(),
            kron: None,
            ..self.clone()
        })
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

    pub(super) fn check(&self, site: &Site) -> Result<(), String> {
        let (k, n) = (site.k as usize, site.n as usize);
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
        self.check_sizes((k / columns, n / rows), (k, n))
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
