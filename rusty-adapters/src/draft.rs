//! What an adapter does at one site, in single precision and the row order of checkpoints, on its way into a
//! slot's tables.

#[cfg(test)]
mod tests;

use crate::base_model::Base;
use crate::factors::{a_table, b_table};
use crate::precision::{Precision, floats};
use crate::{Error, Result};
use rayon::prelude::*;
use rusty_compiler::{Kron, SiteDelta, kron};
use rusty_graph::SiteId;
use rusty_loader::Format;
use std::path::Path;
use std::sync::Arc;

/// See the module head. Lengths are the site's; values of factors may be other drafts' too.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub rank: usize,
    /// `[rank, k]`, or a block's; none is the identity of rank `k`.
    pub a: Option<Arc<Vec<f32>>>,
    /// `[n, rank]`, or a block's.
    pub b: Arc<Vec<f32>>,
    /// `[rank]`.
    pub scale: Vec<f32>,
    /// The blocks in which the factors act.
    pub kron: Option<Kron>,
    /// VeRA's factor on what the factors give.
    pub gain_low: Option<Vec<f32>>,
    /// IA3's factor on the input.
    pub gain_in: Option<Vec<f32>>,
    /// Factor on the stored weight's output.
    pub gain_out: Option<Vec<f32>>,
    /// Added last.
    pub bias: Option<Vec<f32>>,
    /// Replaces the bias that the model adds behind the site.
    pub new_bias: Option<Vec<f32>>,
    /// DoRA's norm of each output row.
    pub magnitude: Option<Vec<f32>>,
    /// What a replaced norm in front of the site gives, relative to the model's.
    pub input_ratio: Option<Vec<f32>>,
    /// Stored precision of the factors.
    pub format: Format,
}

impl Draft {
    /// No change.
    pub fn empty(format: Format) -> Self {
        Self {
            rank: 0,
            a: Some(Arc::default()),
            b: Arc::default(),
            scale: vec![],
            kron: None,
            gain_low: None,
            gain_in: None,
            gain_out: None,
            bias: None,
            new_bias: None,
            magnitude: None,
            input_ratio: None,
            format,
        }
    }

    /// `scale * B A`.
    pub fn low_rank(rank: usize, a: Vec<f32>, b: Vec<f32>, scale: f32, format: Format) -> Self {
        Self {
            rank,
            a: Some(a.into()),
            b: b.into(),
            scale: vec![scale; rank],
            ..Self::empty(format)
        }
    }

    /// `scale * delta`, a matrix `[n, k]`.
    pub fn dense(mut delta: Vec<f32>, k: usize, scale: f32, format: Format) -> Self {
        delta.iter_mut().for_each(|v| *v *= scale);
        Self {
            rank: k,
            a: None,
            b: delta.into(),
            scale: vec![1.0; k],
            ..Self::empty(format)
        }
    }

    /// A weight `[n, k]` in place of the model's.
    pub fn replaced(weight: Vec<f32>, n: usize, k: usize, format: Format) -> Self {
        Self {
            rank: k,
            a: None,
            b: weight.into(),
            scale: vec![1.0; k],
            gain_out: Some(vec![0.0; n]),
            ..Self::empty(format)
        }
    }

    /// The same low rank on another weight `[n, k]` than the model's; none where there is more than a low rank.
    pub fn on(mut self, weight: Vec<f32>, k: usize) -> Option<Self> {
        let plain = self.gain_in.is_none() && self.gain_out.is_none() && self.magnitude.is_none();
        if !plain {
            return None;
        }
        self = self.without_blocks();
        self.multiply_out(k);
        let sums = Arc::make_mut(&mut self.b).iter_mut().zip(&weight);
        sums.for_each(|(b, w)| *b += w);
        self.gain_out = Some(vec![0.0; weight.len() / k]);
        Some(self)
    }

    /// What it does to its site's outputs, cut into parts of these sizes.
    pub fn cut(self, sizes: &[usize]) -> Vec<Self> {
        if sizes.len() == 1 {
            return vec![self];
        }
        let own = self.without_blocks();
        let mut first = 0;
        let parts = sizes.iter().map(|size| {
            let rows = first..first + size;
            first = rows.end;
            let part = |v: &Option<Vec<f32>>| v.as_ref().map(|v| v[rows.clone()].to_vec());
            Self {
                b: own.b[rows.start * own.rank..rows.end * own.rank]
                    .to_vec()
                    .into(),
                gain_low: part(&own.gain_low),
                gain_out: part(&own.gain_out),
                bias: part(&own.bias),
                new_bias: part(&own.new_bias),
                magnitude: part(&own.magnitude),
                ..own.clone()
            }
        });
        parts.collect()
    }

    /// The tables of a slot.
    pub fn delta(
        mut self,
        path: &Path,
        base: &Base<'_>,
        id: SiteId,
        precision: Precision,
    ) -> Result<SiteDelta> {
        let (k, n) = (
            base.graph.site(id).k as usize,
            base.graph.site(id).n as usize,
        );
        if let Some(head_dim) = base.interleaved_heads(id) {
            self = self.interleaved(n, head_dim);
        }
        if let Some(new) = self.new_bias.take() {
            self.replace_bias(path, base, id, new)?;
        }
        if let Some(magnitude) = self.magnitude.take() {
            self.weigh(path, base, id, &magnitude)?;
        }
        if let Some(ratio) = self.input_ratio.take() {
            self = self.without_blocks();
            self.scale_input(&ratio);
        }
        if self.kron.is_none() && self.a.is_some() && self.rank * (k + n) > n * k {
            self.multiply_out(k);
        }
        self.tables(n, k, precision).ok_or_else(|| {
            let name = &base.graph.site(id).name;
            Error::malformed(path, format!("values at '{name}' overflow their precision"))
        })
    }

    /// The same for rotary pairs that lie side by side. Blocks of `n` outputs stay where they hold whole heads.
    fn interleaved(self, n: usize, head_dim: usize) -> Self {
        let whole = |kron: &Kron| (n / kron.rows as usize).is_multiple_of(head_dim);
        let mut own = match self.kron.as_ref().is_none_or(whole) {
            true => self,
            false => self.without_blocks(),
        };
        own.interleave(head_dim);
        own
    }

    fn interleave(&mut self, head_dim: usize) {
        interleave(Arc::make_mut(&mut self.b), self.rank, head_dim);
        let vectors = [
            &mut self.gain_low,
            &mut self.gain_out,
            &mut self.bias,
            &mut self.new_bias,
            &mut self.magnitude,
        ];
        for vector in vectors.into_iter().flatten() {
            interleave(vector, 1, head_dim);
        }
    }

    fn replace_bias(
        &mut self,
        path: &Path,
        base: &Base<'_>,
        id: SiteId,
        mut new: Vec<f32>,
    ) -> Result<()> {
        if let Some(name) = base.site_bias(id) {
            let old = base.weight(path, name)?;
            new.iter_mut().zip(old).for_each(|(n, o)| *n -= o);
        }
        match &mut self.bias {
            None => self.bias = Some(new),
            Some(bias) => bias.iter_mut().zip(new).for_each(|(b, n)| *b += n),
        }
        Ok(())
    }

    /// DoRA (arXiv 2402.09353): every row of `W + s B A` gets its magnitude as norm.
    fn weigh(&mut self, path: &Path, base: &Base<'_>, id: SiteId, magnitude: &[f32]) -> Result<()> {
        let name = base.site_weight(id).unwrap_or_default();
        let weight = base.weight(path, &name)?;
        let (k, rank) = (base.graph.site(id).k as usize, self.rank);
        let (Some(a), b, scale) = (&self.a, &self.b, &self.scale) else {
            return Ok(());
        };
        let gain = weight.par_chunks_exact(k).enumerate().map(|(row, w)| {
            let mut sum = w.to_vec();
            for r in 0..rank {
                let factor = scale[r] * b[row * rank + r];
                let a = &a[r * k..(r + 1) * k];
                sum.iter_mut().zip(a).for_each(|(s, a)| *s += factor * a);
            }
            let square: f64 = sum.iter().map(|s| f64::from(*s).powi(2)).sum();
            (f64::from(magnitude[row]) / square.sqrt()) as f32
        });
        let gain: Vec<f32> = gain.collect();
        let b = Arc::make_mut(&mut self.b);
        for (row, g) in b.chunks_exact_mut(rank).zip(&gain) {
            row.iter_mut().for_each(|b| *b *= g);
        }
        self.gain_out = Some(gain);
        Ok(())
    }

    /// A replaced norm in front: `W x' + B A x'` with `x' = ratio x`.
    fn scale_input(&mut self, ratio: &[f32]) {
        match &mut self.a {
            Some(a) => {
                for row in Arc::make_mut(a).chunks_exact_mut(ratio.len()) {
                    row.iter_mut().zip(ratio).for_each(|(a, r)| *a *= r);
                }
            }
            None => self.scale.iter_mut().zip(ratio).for_each(|(s, r)| *s *= r),
        }
        match &mut self.gain_in {
            Some(gain) => gain.iter_mut().zip(ratio).for_each(|(g, r)| *g *= r),
            None => self.gain_in = Some(ratio.to_vec()),
        }
    }

    /// `kron(mix, B A)` as `kron(left, B) kron(right, A)` with the two sides of the mix.
    fn without_blocks(mut self) -> Self {
        let Some(blocks) = self.kron.take() else {
            return self;
        };
        let (size, left, right) = blocks.sides();
        let (rank, columns) = (self.rank, blocks.columns as usize);
        let a = self.a.take().map(|a| {
            let width = a.len() / rank.max(1);
            Arc::new(kron((&right, columns), (&a, width)))
        });
        Self {
            rank: rank * size,
            a,
            b: Arc::new(kron((&left, size), (&self.b, rank))),
            scale: self.scale.repeat(size),
            ..self
        }
    }

    /// `B A` as one matrix behind an identity, where that is smaller.
    fn multiply_out(&mut self, k: usize) {
        let Some(a) = self.a.take() else {
            return;
        };
        if let Some(gain) = self.gain_low.take() {
            let rows = Arc::make_mut(&mut self.b).chunks_exact_mut(self.rank.max(1));
            for (row, gain) in rows.zip(gain) {
                row.iter_mut().for_each(|b| *b *= gain);
            }
        }
        let (rank, scale) = (self.rank, &self.scale);
        let rows = self.b.par_chunks_exact(rank).flat_map_iter(|b| {
            let mut sum = vec![0.0; k];
            for r in 0..rank {
                let a = &a[r * k..(r + 1) * k];
                let factor = scale[r] * b[r];
                sum.iter_mut().zip(a).for_each(|(s, a)| *s += factor * a);
            }
            sum
        });
        self.b = Arc::new(rows.collect());
        self.scale = vec![1.0; k];
        self.rank = k;
    }

    fn tables(self, n: usize, k: usize, precision: Precision) -> Option<SiteDelta> {
        let rank = self.rank;
        let vectors = [&self.gain_low, &self.gain_in, &self.gain_out, &self.bias];
        let numbers = vectors.into_iter().flatten().flatten();
        let mix = self.kron.iter().flat_map(|kron| kron.mix.iter());
        let finite = numbers.chain(&self.scale).chain(mix).all(|v| v.is_finite());
        if !finite {
            return None;
        }
        let vector = |v: Option<Vec<f32>>| v.map(Arc::<[f32]>::from);
        let mut delta = SiteDelta {
            rank: rank as u32,
            a: None,
            b: None,
            scale: self.scale.into(),
            kron: self.kron,
            gain_low: vector(self.gain_low),
            gain_in: vector(self.gain_in),
            gain_out: vector(self.gain_out),
            bias: vector(self.bias),
        };
        if rank > 0 {
            // Of a block, where the factors act on such.
            let (rows, columns) = delta.kron.as_ref().map_or((1, 1), |k| (k.rows, k.columns));
            let (n, k) = (n / rows as usize, k / columns as usize);
            let format = |columns| match precision.format(self.format, columns) {
                format if delta.kron.is_some() => floats(format),
                format => format,
            };
            delta.a = match &self.a {
                Some(a) => Some(a_table(format(k), rank, k, a)?),
                None => None,
            };
            let b = |c: usize, r: usize| self.b[c * rank + r];
            let format = format(rusty_compiler::delta_table::PANEL);
            delta.b = Some(b_table(format, n, rank, b)?);
        }
        Some(delta)
    }
}

/// Rows of `width` values from the half-split order of checkpoints to the interleaved order of weights in some GGUF
/// files: rows `i` and `i + d/2` of a head become rows `2i` and `2i + 1`.
pub(crate) fn interleave(values: &mut Vec<f32>, width: usize, head_dim: usize) {
    permute(values, width, |row| {
        let (head, lane) = (row / head_dim, row % head_dim);
        head * head_dim + lane / 2 + (lane % 2) * (head_dim / 2)
    });
}

/// Undoes [`interleave`].
pub(crate) fn split_halves(values: &mut Vec<f32>, width: usize, head_dim: usize) {
    let half = head_dim / 2;
    permute(values, width, |row| {
        let (head, lane) = (row / head_dim, row % head_dim);
        head * head_dim + lane % half * 2 + lane / half
    });
}

/// Row `i` of `width` values becomes what was row `source(i)`.
fn permute(values: &mut Vec<f32>, width: usize, source: impl Fn(usize) -> usize) {
    if width == 0 {
        return;
    }
    let rows = values.len() / width;
    let moved = (0..rows).flat_map(|i| {
        let from = source(i) * width;
        &values[from..from + width]
    });
    *values = moved.copied().collect();
}
