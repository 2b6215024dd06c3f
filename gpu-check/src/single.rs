//! Kernels one by one, and chains of operations: what `benches` measures, on a device.

use crate::devices::Present;
use crate::job::{self, Job};
use crate::outcome::{Found, Outcome, Stage};
use crate::parts::Part;
use crate::{Check, pytorch};
use rusty_benches::{fusion, kernels};

/// Seconds that all of them may take.
const LIMIT: u64 = 240;

/// Kernels beside what bytes allow.
pub fn one_by_one(check: &Check, device: &Present) -> Vec<Outcome> {
    let job = Job::Kernels {
        device: device.choice.clone(),
        small: check.small,
    };
    let (rows, lacking) = job::findings::<kernels::Row>(check, "kernels", &job, LIMIT);
    let described = rows.iter().map(|row| {
        let figures = format!(
            "{:.1} us, bytes allow {:.1} ({:.0}%), {:.1} T operations/s",
            row.seconds * 1e6,
            row.bytes * 1e6,
            row.share() * 100.0,
            row.rate() / 1e12
        );
        (row.kernel.clone(), figures)
    });
    outcomes(Stage::Kernels, device, described, lacking)
}

/// Burn's program in the bundle.
const BURN: &str = "burn";

/// Chains, on the first device beside Burn and PyTorch, where they are there.
pub fn chains(check: &Check, part: &Part<'_>) -> Vec<Outcome> {
    let device = part.device;
    let job = Job::Fusion {
        device: device.choice.clone(),
        small: check.small,
        burn: Some(check.bundle.join(BURN)).filter(|burn| part.first && burn.exists()),
        pytorch: part.first && pytorch::is_there(check),
    };
    let (rows, lacking) = job::findings::<fusion::Row>(check, "fusion", &job, LIMIT);
    let described = rows.iter().map(|row| {
        let kernels = format!("{} kernels of {} operations", row.kernels, row.operations);
        let burn = beside("Burn", row.own, &row.burn);
        let pytorch = beside("PyTorch f32 eager", row.own, &row.pytorch);
        let figures = format!("{:.1} us, {kernels}{burn}{pytorch}", row.own * 1e6);
        (format!("{} of {} rows", row.chain, row.rows), figures)
    });
    outcomes(Stage::Fusion, device, described, lacking)
}

/// How many times another side's speed a chain has, and on what that ran where it is not CUDA; or why it did not.
fn beside(name: &str, own: f64, other: &fusion::Beside) -> String {
    let place = match other.device.as_deref() {
        None | Some(pytorch::GPU) => String::new(),
        Some(other) => format!(" on {other}"),
    };
    let ratio = other.seconds.map_or(String::new(), |seconds| {
        format!(", {:.1} x {name}{place}", seconds / own)
    });
    let trouble = other.trouble.as_ref();
    ratio + &trouble.map_or(String::new(), |reason| format!(", no {name}: {reason}"))
}

fn outcomes(
    stage: Stage,
    device: &Present,
    rows: impl Iterator<Item = (String, String)>,
    lacking: Option<Found>,
) -> Vec<Outcome> {
    let outcome = |what: String, found| Outcome::new(stage, &device.choice, what, found);
    let rows = rows.map(|(what, figures)| outcome(what, Found::Figures(figures)));
    let name = match stage {
        Stage::Kernels => "kernels",
        _ => "chains",
    };
    let rest = lacking.map(|reason| outcome(format!("the other {name}"), reason));
    rows.chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_another_side_ran_and_what_was_wrong_with_it_is_said() {
        let said = |seconds, device: Option<&str>, trouble: Option<&str>| {
            let other = fusion::Beside {
                seconds,
                device: device.map(String::from),
                trouble: trouble.map(String::from),
            };
            beside("PyTorch", 0.5, &other)
        };
        assert_eq!(said(None, None, None), "");
        assert_eq!(said(Some(1.0), Some("cuda"), None), ", 2.0 x PyTorch");
        let cpu = said(Some(1.0), Some("cpu"), None);
        assert_eq!(cpu, ", 2.0 x PyTorch on cpu");
        let none = said(None, None, Some("out of memory"));
        assert_eq!(none, ", no PyTorch: out of memory");
    }
}
