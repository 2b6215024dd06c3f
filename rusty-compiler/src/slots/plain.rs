//! Factors that sites share or that act in blocks, as plain ones: what a GPU's slots hold, and what sums, merges and files of other
//! programs are made of. It takes a while; a CPU's slots need none of it.

use super::site_delta::{Kron, SiteDelta};
use crate::delta_table::{DeltaTable, PANEL};
use crate::interleaving::Factor;

/// Kronecker product of two row-major matrices given with their widths.
pub fn kron((x, x_width): (&[f32], usize), (y, y_width): (&[f32], usize)) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len() * y.len());
    for x_row in x.chunks_exact(x_width.max(1)) {
        for y_row in y.chunks_exact(y_width.max(1)) {
            for x in x_row {
                out.extend(y_row.iter().map(|y| x * y));
            }
        }
    }
    out
}

/// Whether a matrix `[n, k]` has fewer values than factors of so many ranks.
fn is_smaller_whole(ranks: usize, k: usize, n: usize) -> bool {
    ranks * (k + n) > n * k
}

/// Brings values near one, and gives the power of two that they are to be multiplied by: products of small factors would be lost in
/// half precision, and those of large ones beyond it.
fn near_one(values: &mut [f32]) -> f32 {
    let largest = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    if !largest.is_normal() {
        return 1.0;
    }
    let power = 2f32.powi(largest.log2().floor().clamp(-100.0, 100.0) as i32);
    values.iter_mut().for_each(|v| *v /= power);
    power
}

impl Kron {
    /// The mix as a product of two matrices, `[rows, s]` and `[s, columns]`, one of which is the identity: `s` is the smaller of
    /// both counts of blocks.
    pub fn sides(&self) -> (usize, Vec<f32>, Vec<f32>) {
        let (rows, columns) = (self.rows as usize, self.columns as usize);
        let size = rows.min(columns);
        let mut identity = vec![0.0; size * size];
        (0..size).for_each(|i| identity[i * size + i] = 1.0);
        match rows <= columns {
            true => (size, identity, self.mix.to_vec()),
            false => (size, self.mix.to_vec(), identity),
        }
    }
}

/// The factors of a delta in blocks, and the sizes of a block and of all.
struct Blocks<'a> {
    kron: &'a Kron,
    a: &'a DeltaTable,
    b: &'a DeltaTable,
    rank: usize,
    height: usize,
    width: usize,
}

impl Blocks<'_> {
    fn k(&self) -> usize {
        self.width * self.kron.columns as usize
    }

    fn n(&self) -> usize {
        self.height * self.kron.rows as usize
    }

    /// Ranks of the plain factors.
    fn ranks(&self) -> usize {
        self.kron.rows.min(self.kron.columns) as usize * self.rank
    }

    fn is_smaller_whole(&self) -> bool {
        is_smaller_whole(self.ranks(), self.k(), self.n())
    }

    /// `B`, `[height, rank]`.
    fn b_values(&self) -> Vec<f32> {
        let mut b = vec![0.0; self.height * self.rank];
        for (c, row) in b.chunks_exact_mut(self.rank.max(1)).enumerate() {
            self.b.read_panel_row(c, self.rank, row);
        }
        b
    }

    /// `kron(mix, B s A)`, `[n, k]`, for which `A` is the identity.
    fn whole(&self, old: &SiteDelta) -> Option<SiteDelta> {
        let (a, b) = (self.a.values(), self.b_values());
        let (height, width, columns) = (self.height, self.width, self.kron.columns as usize);
        let mut block = vec![0.0; height * width];
        for (row, b) in block.chunks_exact_mut(width).zip(b.chunks_exact(self.rank)) {
            for (q, a) in a.chunks_exact(width).enumerate() {
                let by = old.scale[q] * b[q];
                row.iter_mut().zip(a).for_each(|(v, a)| *v += by * a);
            }
        }
        let mut mix = self.kron.mix.to_vec();
        let power = near_one(&mut mix) * near_one(&mut block);
        let value = |row: usize, column: usize| {
            let mix = mix[row / height * columns + column / width];
            mix * block[row % height * width + column % width]
        };
        let (k, n) = (self.k(), self.n());
        let b = DeltaTable::panels(self.b.format(), n, k, value)?;
        Some(SiteDelta {
            rank: k as u32,
            a: None,
            b: Some(b),
            scale: vec![power; k].into(),
            kron: None,
            ..old.clone()
        })
    }

    /// `kron(left, B) kron(right, A)` with the two sides of the mix.
    fn factors(&self, old: &SiteDelta) -> Option<SiteDelta> {
        let (size, left, right) = self.kron.sides();
        let columns = self.kron.columns as usize;
        let mut wide = kron((&right, columns), (&self.a.values(), self.width));
        let mut tall = kron((&left, size), (&self.b_values(), self.rank));
        let power = near_one(&mut wide) * near_one(&mut tall);
        let (k, n, ranks) = (self.k(), self.n(), self.ranks());
        let b = |c: usize, r: usize| tall[c * ranks + r];
        let scale = old.scale.iter().map(|scale| scale * power);
        let scale: Vec<f32> = scale.collect();
        Some(SiteDelta {
            rank: ranks as u32,
            a: Some(DeltaTable::ranks(self.a.format(), ranks, k, &wide)?),
            b: Some(DeltaTable::panels(self.b.format(), n, ranks, b)?),
            scale: scale.repeat(size).into(),
            kron: None,
            ..old.clone()
        })
    }
}

impl SiteDelta {
    /// Whether its factors act as a low rank of its own.
    pub fn is_plain(&self) -> bool {
        self.kron.is_none() && self.gain_low.is_none()
    }

    /// The same as a plain low rank, or as a whole matrix where that is smaller; none where such a table cannot be, which of a
    /// delta that fits its site it can.
    pub fn plain(&self) -> Option<Self> {
        let plain = match self.blocks() {
            None => self.clone(),
            Some(blocks) if blocks.is_smaller_whole() => blocks.whole(self)?,
            Some(blocks) => blocks.factors(self)?,
        };
        plain.with_gained_factors()
    }

    /// Bytes of all tables of [`SiteDelta::plain`].
    pub fn plain_bytes(&self) -> usize {
        let gain = self.gain_low.as_ref().map_or(0, |gain| gain.len() * 4);
        let Some(blocks) = self.blocks() else {
            return self.bytes() - gain;
        };
        let (k, n, ranks) = (blocks.k(), blocks.n(), blocks.ranks());
        let (a, b) = (blocks.a.format(), blocks.b.format());
        let factors = blocks.a.len_bytes() + blocks.b.len_bytes();
        let own = factors + (self.scale.len() + blocks.kron.mix.len()) * 4;
        let tables = match blocks.is_smaller_whole() {
            true => b.row_bytes(n * k) + k * 4,
            false => a.row_bytes(ranks * k) + b.row_bytes(n * ranks) + ranks * 4,
        };
        self.bytes() - gain - own + tables
    }

    fn blocks(&self) -> Option<Blocks<'_>> {
        let (kron, a, b) = (self.kron.as_ref()?, self.a.as_ref()?, self.b.as_ref()?);
        let rank = self.rank as usize;
        Some(Blocks {
            kron,
            a,
            b,
            rank,
            height: b.rows() / rank.max(1) * PANEL,
            width: a.columns(),
        })
    }

    /// The same with the gain on what the factors give in `B`.
    fn with_gained_factors(self) -> Option<Self> {
        let (Some(gain), Some(b)) = (&self.gain_low, &self.b) else {
            return Some(Self {
                gain_low: None,
                ..self
            });
        };
        let rank = self.rank as usize;
        let mut values = b.values();
        for (row, lanes) in values.chunks_exact_mut(PANEL).enumerate() {
            let gains = &gain[(row / rank.max(1) * PANEL).min(gain.len())..];
            lanes.iter_mut().zip(gains).for_each(|(v, g)| *v *= g);
        }
        let power = near_one(&mut values);
        let factor = Some(Factor::B { rank });
        let gained = DeltaTable::encode(b.format(), factor, b.rows(), PANEL, &values)?;
        Some(Self {
            b: Some(gained),
            scale: self.scale.iter().map(|scale| scale * power).collect(),
            gain_low: None,
            ..self
        })
    }
}
