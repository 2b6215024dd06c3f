//! How the changes of several adapters become one change of a weight.

use rayon::prelude::*;

/// A way to merge.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Method {
    /// The weighted sum of the changes.
    #[default]
    Linear,
    /// Spherical interpolation (Shoemake 1985) between the weights of two models: the base and the only adapter's, with
    /// its weight as the parameter, or two adapters', by the share of the second's weight.
    Slerp,
    /// TIES (arXiv 2306.01708): each change keeps the `density` of its values that is largest, signs are elected by
    /// weighted sum, and the mean is taken of those that agree.
    Ties {
        /// Share of values kept, above 0 and up to 1.
        density: f32,
    },
    /// DARE (arXiv 2311.03099): each change keeps a random `density` of its values, scaled up by `1 / density`.
    Dare {
        /// Share of values kept, above 0 and up to 1.
        density: f32,
        /// Seed of the choice.
        seed: u64,
    },
}

impl Method {
    /// Why the method cannot merge adapters of these weights with its settings.
    pub(crate) fn problem(self, weights: &[f32]) -> Option<String> {
        match self {
            Method::Slerp if !(1..=2).contains(&weights.len()) => {
                Some("slerp takes one adapter or two".into())
            }
            Method::Slerp if weights.len() == 2 && weights.iter().sum::<f32>() == 0.0 => {
                Some("slerp goes by the share of the second weight, and these sum to 0".into())
            }
            Method::Ties { density } | Method::Dare { density, .. }
                if !(density > 0.0 && density <= 1.0) =>
            {
                Some(format!("a density of {density} is not above 0 and up to 1"))
            }
            _ => None,
        }
    }

    /// Whether an adapter that leaves a weight as it is takes part in what becomes of it.
    pub(crate) fn counts_unchanged(self) -> bool {
        self == Method::Slerp
    }

    /// The merged weight from the model's and the adapters' changes of it, each with its weight; `place` tells apart the
    /// random choices of different tensors. Adapters that change nothing are among them where they [count](Self::counts_unchanged).
    pub(crate) fn merge(
        self,
        weight: &[f32],
        changes: &mut [(Vec<f32>, f32)],
        place: u64,
    ) -> Vec<f32> {
        match self {
            Method::Linear => {}
            Method::Slerp => return slerp(weight, changes),
            Method::Ties { density } => {
                changes.par_iter_mut().for_each(|(c, _)| trim(c, density));
                return elected(weight, changes);
            }
            Method::Dare { density, seed } => {
                for (i, (change, _)) in changes.iter_mut().enumerate() {
                    drop_some(
                        change,
                        density,
                        seed ^ place.rotate_left(17) ^ (i as u64) << 48,
                    );
                }
            }
        }
        let mut merged = weight.to_vec();
        for (change, factor) in changes {
            add(&mut merged, change, *factor);
        }
        merged
    }
}

fn add(sum: &mut [f32], values: &[f32], factor: f32) {
    sum.iter_mut()
        .zip(values)
        .for_each(|(s, v)| *s += factor * v);
}

/// Zeroes all but the largest `density` of the values.
fn trim(values: &mut [f32], density: f32) {
    let kept = (f64::from(density) * values.len() as f64).round() as usize;
    if kept >= values.len() {
        return;
    }
    let mut sizes: Vec<f32> = values.iter().map(|v| v.abs()).collect();
    let at = values.len() - kept;
    let bound = match kept {
        0 => f32::INFINITY,
        _ => *sizes.select_nth_unstable_by(at, f32::total_cmp).1,
    };
    values
        .iter_mut()
        .filter(|v| v.abs() < bound)
        .for_each(|v| *v = 0.0);
}

/// The mean of the weighted changes that have the elected sign, added to the weight.
fn elected(weight: &[f32], changes: &[(Vec<f32>, f32)]) -> Vec<f32> {
    let lane = |(i, w): (usize, &f32)| {
        let weighted = changes.iter().map(|(change, factor)| factor * change[i]);
        let sign = weighted.clone().sum::<f32>();
        let agreeing = weighted.filter(|v| v * sign > 0.0);
        let (sum, count) = agreeing.fold((0.0, 0), |(sum, count), v| (sum + v, count + 1));
        w + sum / count.max(1) as f32
    };
    weight.par_iter().enumerate().map(lane).collect()
}

fn drop_some(values: &mut [f32], density: f32, seed: u64) {
    let mut state = seed;
    for value in values {
        // splitmix64 (Steele, Lea, Flood 2014): every value of a counter gives an independent number.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let chance = ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32;
        *value = if chance < density {
            *value / density
        } else {
            0.0
        };
    }
}

fn slerp(weight: &[f32], changes: &[(Vec<f32>, f32)]) -> Vec<f32> {
    let of =
        |change: &[f32]| -> Vec<f32> { weight.iter().zip(change).map(|(w, c)| w + c).collect() };
    let (from, to, t) = match changes {
        [(only, t)] => (weight.to_vec(), of(only), *t),
        [(a, first), (b, second)] => (of(a), of(b), second / (first + second)),
        _ => return weight.to_vec(),
    };
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    let norms = (dot(&from, &from) * dot(&to, &to)).sqrt();
    let cosine = if norms > 0.0 {
        dot(&from, &to) / norms
    } else {
        1.0
    };
    let angle = cosine.clamp(-1.0, 1.0).acos();
    let t = f64::from(t);
    // Nearly parallel weights have no plane to turn in.
    let (a, b) = match angle.sin() {
        sine if sine < 1e-6 => (1.0 - t, t),
        sine => (((1.0 - t) * angle).sin() / sine, (t * angle).sin() / sine),
    };
    let lane = |(x, y): (&f32, &f32)| (a * f64::from(*x) + b * f64::from(*y)) as f32;
    from.iter().zip(&to).map(lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: [f32; 4] = [1.0, -2.0, 0.5, 3.0];

    fn merged(method: Method, changes: &[(&[f32], f32)]) -> Vec<f32> {
        let mut changes: Vec<_> = changes.iter().map(|(c, w)| (c.to_vec(), *w)).collect();
        method.merge(&WEIGHT, &mut changes, 1)
    }

    #[test]
    fn linear_adds_up() {
        let changes: [(&[f32], f32); 2] =
            [(&[1.0, 0.0, 2.0, -1.0], 0.5), (&[2.0, 2.0, 2.0, 2.0], 1.0)];
        assert_eq!(merged(Method::Linear, &changes), [3.5, 0.0, 3.5, 4.5]);
    }

    #[test]
    fn ties_trims_elects_and_averages() {
        let changes: [(&[f32], f32); 2] =
            [(&[4.0, 0.1, -3.0, 0.2], 1.0), (&[2.0, 0.1, 5.0, 0.3], 1.0)];
        // Half of each stays: lanes 0 and 2. In lane 2 the positive side wins.
        let have = merged(Method::Ties { density: 0.5 }, &changes);
        assert_eq!(have, [1.0 + 3.0, -2.0, 0.5 + 5.0, 3.0]);
        let all = merged(Method::Ties { density: 1.0 }, &changes[..1]);
        assert_eq!(all, merged(Method::Linear, &changes[..1]));
    }

    #[test]
    fn dare_keeps_the_mean_and_repeats() {
        let mut values = vec![1.0; 100_000];
        drop_some(&mut values, 0.25, 7);
        let mut again = vec![1.0; 100_000];
        drop_some(&mut again, 0.25, 7);
        assert_eq!(values, again);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!(values.iter().all(|v| *v == 0.0 || *v == 4.0));
    }

    #[test]
    fn slerp_turns_at_even_speed_between_its_ends() {
        let (weight, change) = ([1.0, 0.0], vec![-1.0, 1.0]);
        let at = |t: f32| slerp(&weight, &[(change.clone(), t)]);
        assert!((at(0.0)[0] - 1.0).abs() < 1e-6 && (at(1.0)[1] - 1.0).abs() < 1e-6);
        let third = at(1.0 / 3.0);
        let angle = third[1].atan2(third[0]).to_degrees();
        assert!((angle - 30.0).abs() < 1e-3, "{angle}");
        let norm = (third[0].powi(2) + third[1].powi(2)).sqrt();
        assert!((norm - 1.0).abs() < 1e-6);
        assert_eq!(slerp(&weight, &[(vec![0.0, 0.0], 0.3)]), weight);
    }
}
