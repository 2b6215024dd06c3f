//! Chains of operations as Rusty fuses them, beside Burn and PyTorch op by op.
//!
//! All sides make the same numbers in single precision, and their last rows must agree before anything is timed. Each is
//! timed from inputs that are at hand to the last row in the host's memory, in turn, round by round; Rusty's side also
//! gathers its inputs from tables, which the others do not.

mod chains;
mod own;
mod peers;

pub use peers::Peers;

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
    /// Burn, where it was asked.
    pub burn: Option<f64>,
    /// PyTorch, where it was asked and could answer.
    pub pytorch: Option<f64>,
    /// On what PyTorch ran, as it says.
    pub pytorch_device: Option<String>,
    /// Why PyTorch could not answer.
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
    /// On what it ran, where that is said.
    device: Option<String>,
}

/// Compares all chains whose name holds `only`, on the device of that name, and tells each as soon as it is known.
///
/// # Panics
/// Where answers differ, or another side than PyTorch fails: there is nothing to compare then.
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
    let mut all: [Vec<f64>; 3] = Default::default();
    let (mut pytorch_device, mut trouble): (Option<String>, Option<String>) = (None, None);
    for _ in 0..rounds {
        let reply = own.run(job);
        let burn = peers.burn(job);
        let pytorch = match peers.pytorch(job) {
            Ok(pytorch) => pytorch,
            Err(reason) => {
                trouble = Some(reason);
                None
            }
        };
        if let Some(pytorch) = &pytorch {
            pytorch_device.clone_from(&pytorch.device);
        }
        let others = [("Burn", burn), ("PyTorch", pytorch)];
        for ((name, other), all) in others.into_iter().zip(&mut all[1..]) {
            let Some(other) = other else { continue };
            let apart = distance(&reply.answer, &other.answer);
            assert!(apart < 1e-4, "{}: {apart} from {name}", job.chain);
            all.push(middle(other.seconds));
        }
        all[0].push(middle(reply.seconds));
    }
    let [own_s, burn, pytorch] = all.map(|all| Some(all).filter(|all| !all.is_empty()).map(middle));
    Row {
        chain: chain.name.into(),
        rows: job.dims.rows,
        kernels: own.kernels,
        operations: own.operations,
        own: own_s.unwrap_or(f64::NAN),
        burn,
        pytorch,
        pytorch_device,
        trouble,
    }
}

/// The length of the difference relative to the second's.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "rows of different widths");
    let length = |all: &mut dyn Iterator<Item = f32>| -> f64 {
        all.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
    };
    let apart = length(&mut a.iter().zip(b).map(|(a, b)| a - b));
    apart / length(&mut b.iter().copied())
}
