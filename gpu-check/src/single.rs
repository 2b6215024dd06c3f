//! Kernels one by one, and chains of operations: what `rusty-benches` measures, on a device.

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

/// Chains, on the first device beside PyTorch, where it is there.
pub fn chains(check: &Check, part: &Part<'_>) -> Vec<Outcome> {
    let device = part.device;
    let job = Job::Fusion {
        device: device.choice.clone(),
        small: check.small,
        pytorch: part.first && pytorch::is_there(check),
    };
    let (rows, lacking) = job::findings::<fusion::Row>(check, "fusion", &job, LIMIT);
    let described = rows.iter().map(|row| {
        let peer = beside_pytorch(row);
        let kernels = format!("{} kernels of {} operations", row.kernels, row.operations);
        let figures = format!("{:.1} us, {kernels}{peer}", row.own * 1e6);
        (format!("{} of {} rows", row.chain, row.rows), figures)
    });
    outcomes(Stage::Fusion, device, described, lacking)
}

/// How many times PyTorch's speed a chain has, and on what PyTorch ran where that is no GPU; or why it did not.
fn beside_pytorch(row: &fusion::Row) -> String {
    let ratio = row.pytorch.map_or(String::new(), |seconds| {
        let place = match row.pytorch_device.as_deref() {
            Some(pytorch::GPU) => String::new(),
            other => format!(" on {}", other.unwrap_or("an unknown device")),
        };
        format!(", {:.1} x PyTorch f32 eager{place}", seconds / row.own)
    });
    let trouble = row.trouble.as_ref();
    let trouble = trouble.map_or(String::new(), |reason| format!(", no PyTorch: {reason}"));
    ratio + &trouble
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
    fn where_pytorch_ran_and_what_was_wrong_with_it_is_said() {
        let row = |pytorch, device: Option<&str>, trouble: Option<&str>| fusion::Row {
            chain: "norm".into(),
            rows: 1,
            kernels: 1,
            operations: 1,
            own: 0.5,
            burn: None,
            pytorch,
            pytorch_device: device.map(String::from),
            trouble: trouble.map(String::from),
        };
        let said = |row: fusion::Row| beside_pytorch(&row);
        assert_eq!(said(row(None, None, None)), "");
        let gpu = said(row(Some(1.0), Some("cuda"), None));
        assert_eq!(gpu, ", 2.0 x PyTorch f32 eager");
        let cpu = said(row(Some(1.0), Some("cpu"), None));
        assert_eq!(cpu, ", 2.0 x PyTorch f32 eager on cpu");
        let none = said(row(None, None, Some("out of memory")));
        assert_eq!(none, ", no PyTorch: out of memory");
    }
}
