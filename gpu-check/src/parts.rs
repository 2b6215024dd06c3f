//! The order of things, and how long each may take.
//!
//! Seconds are estimates for an H200 with 16 cores. On an H100 with as many, copies, PyTorch's products, speeds and PyTorch's eager side
//! took 1, 23, 89 and 56 s, its compiled side more than the 178 that were left; the rest was not timed yet. A process on a GPU should take 2 s to start; a
//! model 2 s to compile, 2 s in all to compare its kernels with the oracle, as guessed and as tuned, up to 8 s to tune, 2 to 5 s to
//! measure, and 0.1 s to make its weights where it makes them itself (16 GB that the host makes and uploads would take some 5 s each
//! time). Python takes 10 s to import PyTorch and transformers, and as long or twice to compile a model. Tests wait for kernels'
//! compilers, which have all cores. What a part leaves is for those behind it, so that an estimate may be wrong; of what does not fit a
//! stage drops its end.
//!
//! The first device has everything. Others drop PyTorch, which they share, and starts, of which each compiles and tunes for half a minute;
//! of models they have fewer, without kernels as they are guessed, and of the rest as much as there is time for. More cannot be had in one
//! call: all models on a second device would take five minutes, and PyTorch's compiled prefills on the first another two.

use crate::devices::Present;
use crate::outcome::Stage;
use std::time::Duration;

/// Stages with their seconds.
type Parts = &'static [(Stage, u64)];

/// What is told first, of the first device: a bit of everything.
const FIRST: Parts = &[
    (Stage::Bandwidth, 8),
    (Stage::Quick, 20),
    (Stage::Matmul, 18),
    (Stage::Speeds, 95),
    (Stage::Eager, 32),
    (Stage::Compiled, 50),
    (Stage::Start, 30),
];
/// And of the other devices.
const OTHERS: Parts = &[
    (Stage::Bandwidth, 8),
    (Stage::Quick, 15),
    (Stage::Speeds, 39),
];
/// Then all the tests of each device.
const TESTS: Parts = &[(Stage::Conformance, 60)];
/// What the rest of the time is for.
const REST_OF_FIRST: Parts = &[(Stage::Kernels, 30), (Stage::Fusion, 25), (Stage::More, 30)];
const REST_OF_OTHERS: Parts = &[(Stage::Kernels, 8), (Stage::Fusion, 8), (Stage::More, 12)];

/// A stage on a device.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub stage: Stage,
    pub device: &'a Present,
    /// Whether that is the first.
    pub first: bool,
    /// When it is over at the latest, from the first's start.
    pub until: Duration,
}

/// Parts in order, which together take `whole` at most: where their seconds are fewer than that, or more, each has more or less
/// in proportion.
pub fn order(present: &[Present], whole: Duration) -> Vec<Part<'_>> {
    let asked = asked(present);
    let total: u64 = asked.iter().map(|(_, _, seconds)| seconds).sum();
    let mut sum = 0;
    let parts = asked.into_iter().map(|(stage, device, seconds)| {
        sum += seconds;
        Part {
            stage,
            device,
            first: device.choice == present[0].choice,
            until: whole.mul_f64(sum as f64 / total as f64),
        }
    });
    parts.collect()
}

/// Stages in order, each with its device and its seconds.
fn asked(present: &[Present]) -> Vec<(Stage, &Present, u64)> {
    let rounds = [
        (FIRST, OTHERS),
        (TESTS, TESTS),
        (REST_OF_FIRST, REST_OF_OTHERS),
    ];
    let mut asked = vec![];
    for (first, others) in rounds {
        for (i, device) in present.iter().enumerate() {
            let parts = if i == 0 { first } else { others };
            let each = parts.iter();
            asked.extend(each.map(|(stage, seconds)| (*stage, device, *seconds)));
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LOOKING, MINUTES};

    fn present(choices: &[&str]) -> Vec<Present> {
        let device = |choice: &&str| Present {
            choice: (*choice).into(),
            name: (*choice).into(),
            memory_bytes: 0,
            hardware: true,
        };
        choices.iter().map(device).collect()
    }

    #[test]
    fn every_device_has_its_first_parts_before_any_has_the_rest() {
        let present = present(&["cuda", "vulkan"]);
        let order = order(&present, Duration::from_secs(500));
        let at = |stage, choice: &str| {
            let of = |p: &Part| p.stage == stage && p.device.choice == choice;
            order.iter().position(of)
        };
        assert_eq!(at(Stage::Bandwidth, "cuda"), Some(0));
        assert!(at(Stage::Compiled, "cuda") < at(Stage::Speeds, "vulkan"));
        assert!(at(Stage::Speeds, "vulkan") < at(Stage::Conformance, "cuda"));
        assert!(at(Stage::Conformance, "vulkan") < at(Stage::Kernels, "cuda"));
        assert!(at(Stage::More, "vulkan").is_some() && at(Stage::Eager, "vulkan").is_none());
    }

    /// The usual time has room for what both of a machine's APIs ask for, and no number of devices takes more than there is.
    #[test]
    fn all_parts_fit_one_call() {
        let both = present(&["cuda", "vulkan"]);
        let seconds: u64 = asked(&both).iter().map(|(_, _, seconds)| seconds).sum();
        let usual = (MINUTES * 60.0) as u64;
        assert!(usual < 600, "{usual}");
        assert!(LOOKING + seconds <= usual, "{LOOKING} and {seconds}");
        for choices in [&["cuda"][..], &["cuda", "vulkan"], &["a", "b", "c", "d"]] {
            let (present, whole) = (present(choices), Duration::from_secs(300));
            let order = order(&present, whole);
            assert!(order.is_sorted_by(|a, b| a.until < b.until));
            let last = order.last().expect("parts").until;
            assert!(whole.abs_diff(last) < Duration::from_millis(1));
        }
        assert!(order(&[], Duration::from_secs(1)).is_empty());
    }
}
