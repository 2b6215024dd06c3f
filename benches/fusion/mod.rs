//! Chains of operations as Rusty fuses them, beside Burn and PyTorch op by op.
//!
//! All sides make the same numbers in single precision, and where a side's last row is another than ours its times do not
//! count. Each is timed from inputs that are at hand to the last row in the host's memory, in turn, round by round; Rusty's
//! side also gathers its inputs from tables, which the others do not.

mod chains;
mod own;
mod peers;

pub use peers::{Peers, burn_program};

use crate::middle;
use chains::{CHAINS, Chain, Dims};
use own::Own;
use rusty_backend::Device;
use serde::{Deserialize, Serialize};

/// Rows of a prompt and of a decoded token; attention and products are compared for both.
const ROWS: [usize; 2] = [512, 1];

/// How long each side runs.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds in turn.
    pub rounds: usize,
    /// Seconds for which a side runs to get going, in each round.
    pub warm_up: f64,
    /// And then those for which it is timed.
    pub timed: f64,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            rounds: 3,
            warm_up: 0.2,
            timed: 0.3,
        }
    }
}

/// A chain's seconds on each side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub chain: String,
    /// Rows of activations.
    pub rows: usize,
    /// Kernels that Rusty launches.
    pub kernels: usize,
    /// Operations that they do.
    pub operations: usize,
    /// Rusty.
    pub own: f64,
    /// Burn.
    pub burn: Beside,
    /// PyTorch.
    pub pytorch: Beside,
}

/// What another side makes of a chain; nothing where it was not asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Beside {
    /// The middle of its rounds.
    pub seconds: Option<f64>,
    /// On what it ran, as it says.
    pub device: Option<String>,
    /// Why it has no answer, or none that is like ours.
    pub trouble: Option<String>,
}

#[derive(Clone, Serialize)]
struct Job {
    chain: &'static str,
    device: String,
    /// Whether that is a GPU, whatever its API: PyTorch takes one then, too.
    gpu: bool,
    threads: usize,
    warm_up: f64,
    timed: f64,
    #[serde(flatten)]
    dims: Dims,
}

#[derive(Deserialize)]
struct Reply {
    /// Of each run.
    seconds: Vec<f64>,
    /// The last row.
    answer: Vec<f32>,
    /// On what it ran.
    device: String,
}

/// Largest length of the difference to our last row, relative to that row's, with which another one is the same.
const APART: f64 = 1e-4;

/// Compares all chains whose name holds `only`, on the device of that name, and tells each as soon as it is known.
///
/// # Panics
/// Where a chain does not run on the device: there is nothing to compare then.
pub fn compare(
    choice: &str,
    device: &Device,
    only: &str,
    effort: Effort,
    peers: &mut Peers,
    told: &mut dyn FnMut(Row),
) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = CHAINS.iter().filter(|c| c.name.contains(only));
    for (chain, rows) in wanted.flat_map(|c| ROWS.map(|rows| (c, rows))) {
        let job = Job {
            chain: chain.name,
            device: choice.into(),
            gpu: device.gpu().is_some(),
            threads,
            warm_up: effort.warm_up,
            timed: effort.timed,
            dims: Dims::of(rows),
        };
        told(compared(chain, &job, device, effort.rounds, peers));
    }
}

/// Compares one chain, round by round.
fn compared(chain: &Chain, job: &Job, device: &Device, rounds: usize, peers: &mut Peers) -> Row {
    let mut own = Own::new(chain, job.dims, device);
    let (mut rounds_of_own, mut burn, mut pytorch) = (vec![], Rounds::default(), Rounds::default());
    for _ in 0..rounds {
        let (seconds, answer) = own.run(job);
        rounds_of_own.push(middle(seconds));
        burn.add(peers.burn.ask(job), &answer);
        pytorch.add(peers.pytorch.ask(job), &answer);
    }
    Row {
        chain: chain.name.into(),
        rows: job.dims.rows,
        kernels: own.kernels,
        operations: own.operations,
        own: middle(rounds_of_own),
        burn: burn.beside(),
        pytorch: pytorch.beside(),
    }
}

/// Rounds of another side.
#[derive(Default)]
struct Rounds {
    seconds: Vec<f64>,
    device: Option<String>,
    trouble: Option<String>,
}

impl Rounds {
    /// Adds what a side made of a round in which our last row was `own`.
    fn add(&mut self, reply: Result<Option<Reply>, String>, own: &[f32]) {
        match reply {
            Ok(None) => {}
            Ok(Some(reply)) => {
                let apart = distance(&reply.answer, own);
                // What is no number is not the same.
                if apart < APART {
                    self.seconds.push(middle(reply.seconds));
                } else {
                    self.trouble = Some(format!("its answer is {apart:.1e} from ours"));
                }
                self.device = Some(reply.device);
            }
            Err(reason) => self.trouble = Some(reason),
        }
    }

    fn beside(self) -> Beside {
        Beside {
            seconds: (!self.seconds.is_empty()).then(|| middle(self.seconds)),
            device: self.device,
            trouble: self.trouble,
        }
    }
}

/// The length of the difference relative to the second's; infinite where they are rows of different widths.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let length = |all: &mut dyn Iterator<Item = f32>| -> f64 {
        all.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
    };
    let apart = length(&mut a.iter().zip(b).map(|(a, b)| a - b));
    apart / length(&mut b.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_another_answer_do_not_count() {
        let reply = |answer: [f32; 2]| {
            Ok(Some(Reply {
                seconds: vec![3.0, 1.0, 2.0],
                answer: answer.into(),
                device: "cpu".into(),
            }))
        };
        let of = |reply| {
            let mut rounds = Rounds::default();
            rounds.add(reply, &[3.0, 4.0]);
            rounds.beside()
        };
        let same = of(reply([3.0, 4.000_01]));
        assert_eq!((same.seconds, same.trouble), (Some(2.0), None));
        for other in [[3.0, 4.1], [3.0, f32::NAN]] {
            let other = of(reply(other));
            assert_eq!(other.seconds, None);
            assert!(other.trouble.expect("why").contains("from ours"));
        }
        let none = of(Ok(None));
        assert_eq!(
            (none.seconds, none.device, none.trouble),
            (None, None, None)
        );
        assert_eq!(of(Err("ended".into())).trouble.as_deref(), Some("ended"));
        assert_eq!(distance(&[1.0], &[1.0, 2.0]), f64::INFINITY);
    }
}
