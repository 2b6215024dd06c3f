//! What a GPU gets right: before a model first runs on a device, each kernel that its plan takes, as it was chosen and cut for the model's
//! own shapes and formats, runs once on small random inputs and is compared with the oracle's arithmetic
//! (`gpu/executable/self_test.rs`). Drivers and compilers have bugs; a slower answer is better than a wrong one.
//!
//! Where one goes wrong, others are chosen, and those are tried in turn. What was found is kept for the next process of the same build,
//! device and driver, by what names kernels' texts.

use crate::gpu::GpuExecutable;
use crate::plan::Exclusion;
use crate::{Error, KvFormat, Result, device_cache};
use rusty_backend::{Target, cache};
use rusty_loader::ModelFile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Half the squared distance of results from the oracle's, relative to theirs, that is taken for rounding (one less the cosine, where
/// lengths agree): products in bf16 come to some hundredths of the 1e-3 below.
pub(crate) fn allowed(kv: KvFormat) -> f64 {
    match kv {
        KvFormat::Q4_0 => 0.1,
        KvFormat::Q8_0 => 5e-3,
        KvFormat::F32 | KvFormat::F16 | KvFormat::Bf16 => 1e-3,
    }
}

/// Half the squared distance of `a` from `b`, relative to `b`.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    let apart = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    apart.sum::<f64>() / (2.0 * b.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>())
}

/// Whether a kernel was refused, as opposed to a device that is lost or full.
pub(crate) fn is_refusal(error: &Error) -> bool {
    use rusty_backend::Error as Backend;
    matches!(
        error,
        Error::Target { .. }
            | Error::Refused { .. }
            | Error::Device(Backend::Kernel { .. } | Backend::Launch { .. })
    )
}

/// How far a kernel's results are from the oracle's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Difference {
    /// The largest [`distance`] of a row.
    distance: f64,
    /// The largest difference of two numbers.
    largest: f32,
}

/// What is known of kernels: by how much they go wrong; none where they are right.
pub(crate) type Verdict = Option<Difference>;

impl Difference {
    /// Of what the device does not run.
    pub(crate) const REFUSED: Self = Self {
        distance: f64::MAX,
        largest: f32::MAX,
    };

    /// Of results that are rounded. What is no number is as far away as can be.
    pub(crate) fn between(have: &[f32], want: &[f32]) -> Self {
        let apart = have.iter().zip(want).map(|(a, b)| (a - b).abs());
        let largest = apart.fold(0.0, |most: f32, one| match one <= most {
            true => most,
            false => one,
        });
        let zeros = largest == 0.0 && have.len() == want.len();
        let distance = if zeros { 0.0 } else { distance(have, want) };
        match have.len() == want.len() && distance.is_finite() && largest.is_finite() {
            true => Self { distance, largest },
            false => Self::REFUSED,
        }
    }

    /// Of results that number something.
    pub(crate) fn of_numbers(have: &[f32], want: &[f32]) -> Self {
        let Self { largest, .. } = Self::between(have, want);
        match largest == 0.0 {
            true => Self::default(),
            false => Self {
                distance: f64::MAX,
                largest,
            },
        }
    }

    /// The larger of two.
    pub(crate) fn or_worse(self, other: Self) -> Self {
        Self {
            distance: self.distance.max(other.distance),
            largest: self.largest.max(other.largest),
        }
    }

    /// The difference, where it is no rounding.
    pub(crate) fn beyond(self, allowed: f64) -> Verdict {
        (self.distance > allowed).then_some(self)
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { distance, largest } = self;
        match *self == Self::REFUSED {
            true => write!(
                f,
                "it is refused, gives no numbers, or was running when the device was lost"
            ),
            false => write!(
                f,
                "results are {distance:.1e} apart, two numbers {largest:.3e}"
            ),
        }
    }
}

/// A kernel that goes wrong.
pub(crate) struct Wrong {
    /// What plans are to do without.
    pub variant: Exclusion,
    /// One of the plan's kernels that take it.
    pub kernel: String,
    pub by: Difference,
}

/// What is known of a device's kernels.
pub(crate) struct Verdicts {
    /// Where it is kept.
    name: Option<String>,
    by_key: BTreeMap<String, Verdict>,
    new: bool,
}

impl Verdicts {
    /// What earlier processes found.
    fn kept(target: &Target) -> Self {
        let name = device_cache::name("self-test", target, "kernels");
        let kept = name.as_deref().and_then(cache::load);
        let kept = kept.and_then(|data| serde_json::from_slice(&data).ok());
        Self {
            name,
            by_key: kept.unwrap_or_default(),
            new: false,
        }
    }

    /// What is known of kernels of this key.
    pub(crate) fn of(&self, key: &str) -> Option<Verdict> {
        self.by_key.get(key).copied()
    }

    /// Adds what was found.
    pub(crate) fn add(&mut self, key: String, verdict: Verdict) {
        self.by_key.insert(key, verdict);
        self.new = true;
    }

    /// Keeps what was found for later processes.
    fn keep(&self) {
        if let (Some(name), Ok(data), true) =
            (&self.name, serde_json::to_vec(&self.by_key), self.new)
        {
            cache::store(name, &data);
        }
    }
}

/// Tries the kernels of an executable that has run no step, and has it take others for those that go wrong, with a warning:
/// [`bind_tested`](crate::bind_tested) does it. What is known of an earlier process is not tried again.
///
/// # Errors
/// [`Error::Target`] where a kernel goes wrong and no other could take its place; [`Error::Weight`] where the file lacks a weight;
/// [`Error::Device`] where the device fails.
pub fn replace_wrong(exe: &mut GpuExecutable, file: &dyn ModelFile) -> Result<()> {
    let mut verdicts = Verdicts::kept(exe.device().target());
    let replaced = replace(exe, file, &mut verdicts);
    verdicts.keep();
    replaced
}

fn replace(exe: &mut GpuExecutable, file: &dyn ModelFile, verdicts: &mut Verdicts) -> Result<()> {
    loop {
        let wrong = exe.wrong_kernels(file, verdicts)?;
        if wrong.is_empty() {
            return Ok(());
        }
        let mut without: Vec<Exclusion> = Vec::new();
        for Wrong {
            variant,
            kernel,
            by,
        } in wrong
        {
            if without.contains(&variant) {
                continue;
            }
            let device = &exe.device().target().name;
            let kv = exe.options().kv.name();
            tracing::warn!(
                "{device}: {variant} goes wrong ({kernel}, keys and values in {kv}: {by}), so it does without"
            );
            without.push(variant);
        }
        exe.do_without(without)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_are_apart() {
        let near = |have: &[f32], want: &[f32]| Difference::between(have, want).beyond(1e-3);
        assert!(distance(&[2.0, 4.0], &[1.0, 2.0]) > 0.4);
        assert!(near(&[1.0, 2.0001], &[1.0, 2.0]).is_none());
        assert!(near(&[0.0, 0.0], &[0.0, 0.0]).is_none());
        assert!(near(&[0.0, 1e-3], &[0.0, 0.0]).is_some());
        assert!(near(&[1.0], &[1.0, 2.0]).is_some());
        for bad in [f32::NAN, f32::INFINITY] {
            let wrong = near(&[1.0, bad], &[1.0, 2.0]);
            assert_eq!(wrong, Some(Difference::REFUSED), "{bad}");
            let with_others = Difference::between(&[bad], &[1.0]).or_worse(Difference::default());
            assert!(with_others.beyond(0.1).is_some());
        }
        // One of a thousand lanes.
        let want: Vec<f32> = (0..1000).map(|i| (i % 7) as f32 - 3.0).collect();
        let mut have = want.clone();
        have[500] += 4.0;
        assert!(near(&have, &want).is_some_and(|wrong| wrong.largest > 3.9));
        // Neighbours are other experts.
        assert!(
            Difference::of_numbers(&[120.0, 3.0], &[120.0, 4.0])
                .beyond(0.1)
                .is_some()
        );
        assert!(
            Difference::of_numbers(&[120.0, 3.0], &[120.0, 3.0])
                .beyond(0.0)
                .is_none()
        );
    }

    /// What is kept is read again, whatever it says.
    #[test]
    fn verdicts_are_read_back() {
        let mut verdicts: BTreeMap<String, Verdict> = BTreeMap::new();
        verdicts.insert("right".into(), None);
        verdicts.insert("wrong".into(), Some(Difference::REFUSED));
        let data = serde_json::to_vec(&verdicts).expect("written");
        let back: BTreeMap<String, Verdict> = serde_json::from_slice(&data).expect("read");
        assert_eq!(back, verdicts);
    }
}
