//! Factors that act on blocks, and gains on what factors give: on the CPU as they are, elsewhere as plain factors.

use super::{Noise, filled, levels, with_sums};
use crate::cpu::deltas::low_rank;
use crate::cpu::deltas::site_tables::SiteTables;
use crate::cpu::simd::Level;
use crate::delta_table::DeltaTable;
use crate::slots::{Kron, SiteDelta, SlotData, SlotShape};
use rusty_graph::{Site, SiteId};
use rusty_loader::Format;

/// Of a site whose factors act on blocks: how many of outputs and inputs, a block's outputs and inputs, the rank.
struct Shape {
    blocks: (usize, usize),
    block: (usize, usize),
    rank: usize,
}

const fn shape(blocks: (usize, usize), block: (usize, usize), rank: usize) -> Shape {
    Shape {
        blocks,
        block,
        rank,
    }
}

/// Ranks that end within a vector and behind one; blocks that are no whole strips; more blocks on either side; factors larger
/// than what they amount to.
const SHAPES: [Shape; 5] = [
    shape((2, 3), (32, 16), 5),
    shape((3, 2), (96, 48), 17),
    shape((32, 32), (32, 32), 8),
    shape((1, 4), (160, 64), 37),
    shape((4, 4), (32, 32), 32),
];

impl Shape {
    fn k(&self) -> usize {
        self.blocks.1 * self.block.1
    }

    fn n(&self) -> usize {
        self.blocks.0 * self.block.0
    }

    fn delta(&self, format: Format, noise: &mut Noise) -> SiteDelta {
        let (height, width) = self.block;
        let a = noise.floats(self.rank * width);
        let b = noise.floats(height * self.rank);
        SiteDelta {
            rank: self.rank as u32,
            a: DeltaTable::ranks(format, self.rank, width, &a),
            b: DeltaTable::panels(format, height, self.rank, |c, r| b[c * self.rank + r]),
            scale: (0..self.rank).map(|r| 0.5 + r as f32 / 8.0).collect(),
            kron: Some(Kron {
                rows: self.blocks.0 as u32,
                columns: self.blocks.1 as u32,
                mix: noise.floats(self.blocks.0 * self.blocks.1).into(),
            }),
            gain_low: Some(noise.floats(self.n()).into()),
            gain_out: Some(noise.floats(self.n()).into()),
            ..SiteDelta::default()
        }
    }

    /// What the factors amount to, `[n, k]`.
    fn matrix(&self, delta: &SiteDelta) -> Vec<f64> {
        let (height, width) = self.block;
        let kron = delta.kron.as_ref().expect("blocks");
        let gain = delta.gain_low.as_ref().expect("gains");
        let a = delta.a.as_ref().expect("A").values();
        let mut b = vec![0.0; self.rank];
        let mut matrix = vec![0.0; self.n() * self.k()];
        for (c, row) in matrix.chunks_exact_mut(self.k()).enumerate() {
            delta.b_row(c % height, &mut b);
            for (l, value) in row.iter_mut().enumerate() {
                let terms = (0..self.rank).map(|r| {
                    f64::from(b[r])
                        * f64::from(delta.scale[r])
                        * f64::from(a[r * width + l % width])
                });
                let mix = kron.mix[c / height * self.blocks.1 + l / width];
                *value = f64::from(gain[c]) * f64::from(mix) * terms.sum::<f64>();
            }
        }
        matrix
    }
}

#[test]
fn blocks_are_multiplied_as_they_are() {
    for shape in &SHAPES {
        for format in [Format::F32, Format::F16, Format::Bf16] {
            let mut noise = Noise((shape.k() + shape.rank) as u64);
            let delta = shape.delta(format, &mut noise);
            let x = noise.floats(5 * shape.k());
            for level in levels() {
                check(shape, &delta, &x, level);
            }
        }
    }
}

/// Five rows, each thread its ranks, in strips of 128 columns.
fn check(shape: &Shape, delta: &SiteDelta, x: &[f32], level: Level) {
    let (k, n, rank) = (shape.k(), shape.n(), shape.rank);
    let rows = x.len() / k;
    let (_inputs, view) = filled(level, x, rows, k, with_sums(k));
    let tables = SiteTables::new(delta, k);
    let run = |first: usize, count: usize| {
        let stride = tables.lows() + 3;
        let mut u = vec![f32::NAN; count * stride];
        let mut y = vec![1.0f32; count * n];
        let to = (u.as_mut_ptr(), stride);
        let half = rank / 8 * 4;
        // SAFETY: inputs, tables and results are whole; `n` is a multiple of 32.
        unsafe {
            for ranks in [(0, half), (half, rank)] {
                low_rank::reduce(level, &tables, view, (first, count), ranks, to, None);
            }
            for column in (0..n).step_by(128) {
                let columns = (column, 128.min(n - column));
                let y = (y[column..].as_mut_ptr(), n);
                low_rank::expand(level, &tables, count, (u.as_ptr(), stride), columns, y);
            }
        }
        y
    };
    let y = run(0, rows);
    let matrix = shape.matrix(delta);
    let gain = delta.gain_out.as_ref().expect("gains");
    for row in 0..rows {
        for (c, weights) in matrix.chunks_exact(k).enumerate() {
            let products = weights.iter().zip(&x[row * k..]);
            let products = products.map(|(w, x)| w * f64::from(*x));
            let size: f64 = products.clone().map(f64::abs).sum();
            let want = f64::from(gain[c]) + products.sum::<f64>();
            let have = f64::from(y[row * n + c]);
            assert!(
                (want - have).abs() <= 1e-5 * (size + 1.0),
                "{level:?} {k} -> {n} rank {rank}, row {row} output {c}: {have}, not {want}"
            );
        }
        assert_eq!(run(row, 1), y[row * n..][..n], "row {row} alone");
    }
}

/// Products of weak factors, too, which half precision could not hold.
#[test]
fn plain_factors_amount_to_the_same() {
    for (shape, weak) in SHAPES.iter().flat_map(|s| [(s, 1.0f32), (s, 1e-5)]) {
        for (format, error) in [(Format::F32, 1e-5), (Format::F16, 2e-3)] {
            let mut delta = shape.delta(format, &mut Noise(shape.k() as u64));
            let kron = delta.kron.as_mut().expect("blocks");
            kron.mix = kron.mix.iter().map(|mix| mix * weak).collect();
            let plain = delta.plain().expect("tables");
            assert!(plain.is_plain() && plain.gain_out.is_some());
            assert_eq!(delta.plain_bytes(), plain.bytes());
            assert!(delta.bytes() < plain.bytes());
            let limit = shape.blocks.0.min(shape.blocks.1) * shape.rank;
            let ranks = if plain.a.is_some() { limit } else { shape.k() };
            assert_eq!(plain.rank as usize, ranks);
            let (want, have) = (shape.matrix(&delta), product(&plain, shape.k(), shape.n()));
            let largest = want.iter().fold(0.0f64, |most, v| most.max(v.abs()));
            for (i, (want, have)) in want.iter().zip(&have).enumerate() {
                let apart = (want - have).abs() / largest;
                assert!(
                    apart < error,
                    "{i} of {}: {have}, not {want}",
                    format.name()
                );
            }
        }
    }
}

/// `B s A` of plain factors, `[n, k]`.
fn product(plain: &SiteDelta, k: usize, n: usize) -> Vec<f64> {
    let rank = plain.rank as usize;
    let a = plain.a.as_ref().map(DeltaTable::values);
    let mut b = vec![0.0; rank];
    let mut out = vec![0.0; n * k];
    for (c, row) in out.chunks_exact_mut(k).enumerate() {
        plain.b_row(c, &mut b);
        for r in 0..rank {
            let by = f64::from(b[r]) * f64::from(plain.scale[r]);
            match &a {
                None => row[r] += by,
                Some(a) => {
                    let a = &a[r * k..][..k];
                    row.iter_mut()
                        .zip(a)
                        .for_each(|(v, a)| *v += by * f64::from(*a));
                }
            }
        }
    }
    out
}

/// What kernels would read beyond, divide by, or take memory for without end.
#[test]
fn blocks_that_do_not_fit_are_refused() {
    let shape = shape((4, 2), (32, 16), 5);
    let site = Site {
        name: "site".into(),
        k: shape.k() as u32,
        n: shape.n() as u32,
        grouped: false,
    };
    let check = |change: &dyn Fn(&mut SiteDelta)| {
        let mut delta = shape.delta(Format::F32, &mut Noise(7));
        change(&mut delta);
        let data = SlotData {
            name: "hostile".into(),
            sites: vec![(SiteId(0), delta)],
            ..SlotData::default()
        };
        let sites = std::slice::from_ref(&site);
        data.check(SlotShape {
            sites,
            vocab: 1,
            width: 1,
            kv: &[],
        })
    };
    assert_eq!(check(&|_| {}), Ok(()));
    let blocks = |delta: &mut SiteDelta, rows: u32, columns: u32| {
        let mix = vec![1.0; (rows as usize * columns as usize).min(1 << 16)].into();
        delta.kron = Some(Kron { rows, columns, mix });
    };
    for (rows, columns) in [
        (0, 0),
        (0, 2),
        (4, 0),
        (8, 2),
        (4, 4),
        (u32::MAX, 1),
        (4, 1),
    ] {
        assert!(
            check(&|d| blocks(d, rows, columns)).is_err(),
            "{rows} x {columns}"
        );
    }
    let ranks = |delta: &mut SiteDelta, rank: usize| {
        delta.rank = rank as u32;
        delta.scale = vec![1.0; rank].into();
        delta.a = DeltaTable::ranks(Format::F32, rank, 16, &vec![0.5; rank * 16]);
        delta.b = DeltaTable::encode(Format::F32, None, rank, 32, &vec![0.5; rank * 32]);
    };
    assert_eq!(check(&|d| ranks(d, 16)), Ok(()));
    for rank in [0, 17, 4000] {
        assert!(check(&|d| ranks(d, rank)).is_err(), "rank {rank}");
    }
    let short = |d: &mut SiteDelta| d.kron.as_mut().expect("blocks").mix = vec![1.0; 7].into();
    let absent = |d: &mut SiteDelta| d.a = None;
    let bytes = |d: &mut SiteDelta| {
        let int8 = Format::by_name("q8_0").expect("a format");
        d.b = d.b.as_ref().map(|b| b.converted(int8));
    };
    let gains = |d: &mut SiteDelta| d.gain_low = Some(vec![1.0; 3].into());
    let changes: [&dyn Fn(&mut SiteDelta); 4] = [&short, &absent, &bytes, &gains];
    for change in changes {
        assert!(check(change).is_err());
    }
}
