//! Kernels one by one, and chains of operations: what `rusty-benches` measures, on a device.

use crate::devices::Present;
use crate::job::{self, Job};
use crate::outcome::{Found, Outcome, Stage};
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

/// Chains beside PyTorch, where it is there.
pub fn chains(check: &Check, device: &Present) -> Vec<Outcome> {
    let job = Job::Fusion {
        device: device.choice.clone(),
        small: check.small,
        pytorch: pytorch::is_there(check),
    };
    let (rows, lacking) = job::findings::<fusion::Row>(check, "fusion", &job, LIMIT);
    let described = rows.iter().map(|row| {
        let peer = row.pytorch.map_or(String::new(), |p| {
            format!(", {:.1} x PyTorch f32 eager", p / row.own)
        });
        let kernels = format!("{} kernels of {} operations", row.kernels, row.operations);
        let figures = format!("{:.1} us, {kernels}{peer}", row.own * 1e6);
        (format!("{} of {} rows", row.chain, row.rows), figures)
    });
    outcomes(Stage::Fusion, device, described, lacking)
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
