//! Encoding where scales are searched for: the scale (and minimum) of each group that leaves the least squared error,
//! then whole-number steps of the block's unit, then the codes that fit those best.
//!
//! The searches are those of ggml's `make_qx_quants` and `make_qkx2_quants` (`ggml-quants.c`): a range of candidate scales,
//! for each the codes it gives, for those codes the scale by weighted least squares. Bytes may differ from ggml's; on the
//! golden blocks the error is at most three hundredths above theirs.

use half::f16;

use super::codec::{Codec, Levels, Scale};

/// Below this a group is all zero.
const TINY: f32 = 1e-15;

/// Scale and minimum of a group, `value = scale * level - min`.
#[derive(Clone, Copy, Default)]
struct Fit {
    scale: f32,
    min: f32,
}

/// Codes between the least and the largest value; the minimum is a number of its own.
pub(super) fn affine_block(c: &Codec, values: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    let top = c.top_code();
    let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let d = (largest - least) / top as f32;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let code = |v: f32| (((v - least) * inverse + 0.5) as i32).clamp(0, top);
    c.store(out, |i| code(values[i]) as u8);
    c.scale.unit.write(out, 0, d);
    if let Some(min) = &c.min {
        min.unit.write(out, 0, least);
    }
}

/// A block whose groups have scales of their own.
pub(super) fn searched_block(
    c: &Codec,
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) {
    let groups = c.block_len / c.group;
    let spread = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
    let mut fits = [Fit::default(); 16];
    for (g, (fit, x)) in fits
        .iter_mut()
        .zip(values.chunks_exact(c.group))
        .enumerate()
    {
        let known = importance.map(|w| &w[g * c.group..][..c.group]);
        let weights = weights(x, known, spread, c.min.is_some());
        *fit = match c.min {
            Some(_) => with_minimum(x, &weights[..x.len()], c.top_code()),
            None => symmetric(c, x, &weights[..x.len()]),
        };
    }
    let scales = fits.map(|f| f.scale / c.scale.factor);
    write_scales(&c.scale, &scales[..groups], out);
    if let Some(min) = &c.min {
        let mins = fits.map(|f| f.min / min.factor);
        write_scales(min, &mins[..groups], out);
    }
    let mut stored = [Fit::default(); 16];
    for (g, fit) in stored.iter_mut().enumerate().take(groups) {
        let (scale, min) = c.group_scale(out, g);
        *fit = Fit { scale, min };
    }
    c.store(out, |i| {
        let fit = stored[i / c.group];
        let inverse = if fit.scale == 0.0 {
            0.0
        } else {
            1.0 / fit.scale
        };
        c.nearest((values[i] + fit.min) * inverse)
    });
}

/// What an error of each value costs.
fn weights(x: &[f32], importance: Option<&[f32]>, spread: f32, has_min: bool) -> [f32; 256] {
    let mut out = [0.0; 256];
    let mean = (x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32).sqrt();
    for (i, (w, v)) in out.iter_mut().zip(x).enumerate() {
        *w = match importance {
            Some(known) => known[i] * (2.0 * spread + v * v).sqrt(),
            None if has_min => mean + v.abs(),
            None => v * v,
        };
    }
    out
}

/// The scale of levels around zero.
fn symmetric(c: &Codec, x: &[f32], weights: &[f32]) -> Fit {
    let peak = x
        .iter()
        .fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    if peak.abs() < TINY {
        return Fit::default();
    }
    // The peak goes to about the level farthest from zero, a step more or less at a time.
    let (edge, step) = match c.levels {
        Levels::Offset(zero) => (-zero as f32, 0.1),
        _ => (c.level(0), 1.0),
    };
    let (mut best, mut scale) = (0f32, 0f32);
    for side in [1.0, -1.0] {
        for i in -9..=9i32 {
            let inverse = side * (edge + step * i as f32) / peak;
            let (mut products, mut squares) = (0f32, 0f32);
            for (v, w) in x.iter().zip(weights) {
                let level = c.level(c.nearest(v * inverse));
                products += w * v * level;
                squares += w * level * level;
            }
            if squares > 0.0 && products * products > best * squares {
                best = products * products / squares;
                scale = products / squares;
            }
        }
    }
    Fit { scale, min: 0.0 }
}

/// Scale and minimum (not below zero) of codes from 0 to `top`.
fn with_minimum(x: &[f32], weights: &[f32], top: i32) -> Fit {
    let largest = x.iter().copied().fold(0f32, f32::max);
    let least = x.iter().copied().fold(0f32, f32::min);
    if largest - least < TINY {
        return Fit {
            scale: 0.0,
            min: -least,
        };
    }
    let sum_w: f32 = weights.iter().sum();
    let sum_x: f32 = weights.iter().zip(x).map(|(w, v)| w * v).sum();
    let mut best = Fit {
        scale: (largest - least) / top as f32,
        min: -least,
    };
    let mut least_error = f32::INFINITY;
    for i in 0..=20 {
        let inverse = (top as f32 - 1.0 + 0.1 * i as f32) / (largest - least);
        let code = |v: f32| round((v - least) * inverse).clamp(0.0, top as f32);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0f32, 0f32, 0f32);
        for (v, w) in x.iter().zip(weights) {
            let l = code(*v);
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * v;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let mut min = (sum_l * sum_xl - sum_l2 * sum_x) / determinant;
        if min < 0.0 {
            (scale, min) = (sum_xl / sum_l2, 0.0);
        }
        let error = |(v, w): (&f32, &f32)| {
            let apart = scale * code(*v) - min - v;
            w * apart * apart
        };
        let error: f32 = x.iter().zip(weights).map(error).sum();
        if error < least_error {
            least_error = error;
            best = Fit { scale, min };
        }
    }
    best
}

/// Stores scales as whole-number steps of a unit.
fn write_scales(scale: &Scale, wanted: &[f32], out: &mut [u8]) {
    let Some(steps) = scale.steps else {
        return scale.unit.write(out, 0, wanted[0]);
    };
    let (least, most) = steps.range();
    let peak = wanted
        .iter()
        .fold(0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    // The peak takes the step farthest from zero.
    let farthest = if -least > most { least } else { most };
    let unit = f16::from_f32(peak / farthest as f32).to_f32();
    scale.unit.write(out, 0, unit);
    let inverse = if unit == 0.0 { 0.0 } else { 1.0 / unit };
    for (g, v) in wanted.iter().enumerate() {
        let step = (round(v * inverse) as i32).clamp(least, most);
        steps.write(out, g, step);
    }
}

impl Codec {
    /// The code whose level is nearest; levels in a table ascend, or there is no [`searched_block`] for them.
    fn nearest(&self, level: f32) -> u8 {
        match self.levels {
            Levels::Table(levels) => {
                let next = levels.partition_point(|l| f32::from(*l) < level);
                let apart = |code: usize| (f32::from(levels[code]) - level).abs();
                let last = levels.len() - 1;
                match (next.saturating_sub(1), next.min(last)) {
                    (below, above) if apart(above) < apart(below) => above as u8,
                    (below, _) => below as u8,
                }
            }
            Levels::Floats(_) | Levels::E4M3 => {
                let apart = |code: u8| (self.level(code) - level).abs();
                let nearer = |best, code| {
                    if apart(code) < apart(best) {
                        code
                    } else {
                        best
                    }
                };
                (1..=self.top_code() as u8).fold(0, nearer)
            }
            Levels::Offset(zero) => {
                (round(level).clamp(-1e6, 1e6) as i32 + zero).clamp(0, self.top_code()) as u8
            }
            Levels::Signed => {
                let half = 1 << (self.code_bits() - 1);
                (round(level) as i32).clamp(-half, half - 1) as u8 & self.top_code() as u8
            }
        }
    }
}

/// To the nearest whole number, ties to even.
fn round(x: f32) -> f32 {
    x.round_ties_even()
}
