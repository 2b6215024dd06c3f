//! The order of things, and how long each may take.

use crate::devices::Present;
use crate::outcome::Stage;

/// Stages with the seconds that each may take.
type Parts = &'static [(Stage, u64)];

/// What is told first, of the first device: a bit of everything.
const FIRST: Parts = &[
    (Stage::Bandwidth, 30),
    (Stage::Quick, 45),
    (Stage::Matmul, 25),
    (Stage::Speeds, 160),
    (Stage::Eager, 60),
    (Stage::Compiled, 80),
    (Stage::Start, 75),
];
/// And of the other devices.
const OTHERS: Parts = &[
    (Stage::Bandwidth, 20),
    (Stage::Quick, 25),
    (Stage::Speeds, 60),
];
/// What the rest of the time is for, of all of them.
const REST: Parts = &[
    (Stage::Kernels, 90),
    (Stage::Fusion, 70),
    (Stage::Conformance, 240),
    (Stage::More, 240),
];

/// Stages in order, each with its device and its seconds.
pub fn order(present: &[Present]) -> Vec<(Stage, &Present, u64)> {
    let first = present.iter().enumerate();
    let first = first.flat_map(|(i, device)| of(device, if i == 0 { FIRST } else { OTHERS }));
    let rest = present.iter().flat_map(|device| of(device, REST));
    first.chain(rest).collect()
}

fn of(device: &Present, parts: Parts) -> impl Iterator<Item = (Stage, &Present, u64)> {
    parts
        .iter()
        .map(move |(stage, seconds)| (*stage, device, *seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_its_first_parts_before_any_has_the_rest() {
        let device = |choice: &str| Present {
            choice: choice.into(),
            name: choice.into(),
            memory_bytes: 0,
            hardware: true,
        };
        let present = [device("cuda"), device("vulkan")];
        let order = order(&present);
        let at = |stage, choice: &str| {
            let of = |(s, d, _): &(Stage, &Present, u64)| *s == stage && d.choice == choice;
            order.iter().position(of)
        };
        assert_eq!(at(Stage::Bandwidth, "cuda"), Some(0));
        assert!(at(Stage::Compiled, "cuda") < at(Stage::Speeds, "vulkan"));
        assert!(at(Stage::Speeds, "vulkan") < at(Stage::Kernels, "cuda"));
        assert!(at(Stage::More, "vulkan").is_some() && at(Stage::Eager, "vulkan").is_none());
        // What comes first fits the usual time, if not with all that the other devices may take.
        let seconds: u64 = FIRST.iter().map(|(_, seconds)| seconds).sum();
        assert!(seconds < 480, "{seconds}");
    }
}
