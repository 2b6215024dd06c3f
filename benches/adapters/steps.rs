//! What steps cost beside adapters and with them: of 16 sequences and of one, on weights of a block format and of floats.
//!
//! Kinds of steps take turns, and what counts is the middle of the rounds: other guests of a shared machine disturb all of
//! them. Rows that use no adapter should cost what they cost where none is attached, and half the rank half of what the whole
//! rank adds. Each kind says in every round what it said in the first.

use crate::{RANK, SHAPE};
use rusty_adapters::{Precision, random};
use rusty_backend::{CpuDevice, Device};
use rusty_benches::middle;
use rusty_compiler::{
    BindOptions, Executable, KvFormat, PAGE_TOKENS, RowResult, Sequence, SlotData, SlotId, Step,
    Want,
};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

/// Formats of the weights: one whose products of many rows are bound by operations, and the one with most bytes.
const FORMATS: [&str; 2] = ["q4_0", "bf16"];
const SEQUENCES: u32 = 16;
const ROUNDS: usize = 15;
/// Steps of a kind in a round: as many tokens as lie in a page.
const STEPS: u32 = PAGE_TOKENS as u32;
const HALF: u32 = RANK / 2;

/// Rank of what lies in the slots, and how its tables are stored.
type Tables = (u32, Precision);

const WHOLE: Tables = (RANK, Precision::F16);
const HALVED: Tables = (HALF, Precision::F16);
const BYTES: Tables = (RANK, Precision::Int8);

/// What is asked for.
#[derive(Clone, Copy)]
enum Least {
    Nothing,
    /// A share of the base's speed.
    OfBase(f64),
    /// A share of the speed that bytes of weights and adapters allow.
    OfBytes(f64),
}

/// What the rows of a step use, and what lies in the slots.
struct Kind {
    sequences: u32,
    attached: Option<Tables>,
    /// Whether each row uses an adapter of its own.
    used: bool,
    least: Least,
}

const fn kind(sequences: u32, attached: Option<Tables>, used: bool, least: Least) -> Kind {
    Kind {
        sequences,
        attached,
        used,
        least,
    }
}

/// In the order of a round; behind a base come those that are compared with it.
const KINDS: [Kind; 8] = [
    kind(SEQUENCES, None, false, Least::Nothing),
    kind(SEQUENCES, Some(WHOLE), false, Least::OfBase(1.0)),
    kind(SEQUENCES, Some(WHOLE), true, Least::OfBytes(0.9)),
    kind(SEQUENCES, Some(HALVED), true, Least::Nothing),
    kind(SEQUENCES, Some(BYTES), true, Least::OfBase(0.85)),
    kind(1, None, false, Least::Nothing),
    kind(1, Some(WHOLE), true, Least::OfBase(0.9)),
    kind(1, Some(BYTES), true, Least::OfBase(0.9)),
];
/// Where in a round the whole rank is, and the halved one.
const WHOLE_AND_HALVED: [usize; 2] = [2, 3];

impl Kind {
    fn name(&self) -> String {
        let Some((rank, precision)) = self.attached else {
            return format!("{}: base, nothing attached", self.sequences);
        };
        match self.used {
            true => format!("{}: rank {rank}, {precision:?}", self.sequences),
            false => format!("{}: base, adapters attached", self.sequences),
        }
    }

    fn slot(&self, row: u32) -> SlotId {
        match self.used {
            true => SlotId(row + 1),
            false => SlotId::BASE,
        }
    }

    fn is_base(&self) -> bool {
        self.attached.is_none()
    }
}

/// The kind that one is compared with: the last base that is not behind it.
fn base_of(at: usize) -> usize {
    let bases = (0..=at).rev().find(|i| KINDS[*i].is_base());
    bases.expect("a round begins with a base")
}

/// The model with as many slots as sequences.
struct Model {
    executable: Box<dyn Executable>,
    vocab: u32,
    /// By what they are.
    adapters: Vec<(Tables, Vec<Arc<SlotData>>)>,
    /// What lies in the slots.
    attached: Option<Tables>,
    /// Bytes of the weights.
    weights: u64,
}

impl Model {
    fn new(format: &str) -> Self {
        let file = rusty_loader::random::model(SHAPE, format).expect("shape");
        let device = Device::Cpu(CpuDevice::new(None));
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let plan = rusty_compiler::compile(&graph, device.target()).expect("plan");
        let options = BindOptions {
            pages: SEQUENCES,
            kv: KvFormat::F16,
            slots: SEQUENCES,
        };
        let executable = rusty_compiler::bind(plan, &*file, &device, &options).expect("binds");
        let of = |(rank, precision): Tables| {
            let one = |seed| Arc::new(random("random", &graph.sites, rank, seed, precision));
            (1..=u64::from(SEQUENCES)).map(one).collect()
        };
        let memory = executable.memory();
        Self {
            executable,
            vocab: graph.vocab,
            adapters: [WHOLE, HALVED, BYTES].map(|t| (t, of(t))).into(),
            attached: None,
            weights: memory.mapped_weights + memory.resident_weights,
        }
    }

    fn adapters(&self, tables: Tables) -> &[Arc<SlotData>] {
        let mut all = self.adapters.iter();
        &all.find(|(own, _)| *own == tables).expect("made").1
    }

    /// Puts adapters into the slots, or empties those.
    fn attach(&mut self, tables: Option<Tables>) {
        if self.attached == tables {
            return;
        }
        let slots = (1..=SEQUENCES).map(SlotId);
        if self.attached.is_some() {
            for slot in slots.clone() {
                self.executable.detach(slot).expect("detached");
            }
        }
        let adapters = tables.map_or_else(Vec::new, |t| self.adapters(t).to_vec());
        for (slot, adapter) in slots.zip(adapters) {
            self.executable.attach(slot, adapter).expect("attached");
        }
        self.attached = tables;
    }

    /// Token `at` of every sequence.
    fn step(&mut self, kind: &Kind, at: u32, want: Want) -> Vec<RowResult> {
        let rows: Vec<u32> = (0..kind.sequences).collect();
        let pages: Vec<[u32; 1]> = rows.iter().map(|row| [*row]).collect();
        let sequences = pages.iter().map(|pages| Sequence {
            pages: &pages[..],
            rope_length: STEPS,
        });
        let sequences: Vec<Sequence<'_>> = sequences.collect();
        let vocab = self.vocab;
        let tokens = rows.iter().map(|row| (at * 31 + row * 17 + 7) % vocab);
        let tokens: Vec<u32> = tokens.collect();
        let slots: Vec<SlotId> = rows.iter().map(|row| kind.slot(*row)).collect();
        let output = self.executable.run(&Step {
            tokens: &tokens,
            positions: &vec![at; rows.len()],
            sequence_of: &rows,
            sequences: &sequences,
            slots: &slots,
            wants: &vec![want; rows.len()],
        });
        let results = output.expect("step").results.into_iter();
        results.map(|(_, result)| result).collect()
    }

    /// Seconds of a step, and what was said; one more goes before.
    fn run(&mut self, kind: &Kind) -> (f64, Vec<Vec<RowResult>>) {
        self.attach(kind.attached);
        self.step(kind, 0, Want::ArgMax);
        let start = Instant::now();
        let said = (0..STEPS).map(|at| self.step(kind, at, Want::ArgMax));
        let said = said.collect();
        (start.elapsed().as_secs_f64() / f64::from(STEPS), said)
    }

    /// Adapters change every row that uses one, each in its own way, and no other row.
    fn check(&mut self) {
        let mut hidden = vec![];
        for kind in &KINDS {
            self.attach(kind.attached);
            hidden.push(self.step(kind, 0, Want::Hidden));
        }
        for (i, kind) in KINDS.iter().enumerate() {
            let of = base_of(i);
            if !kind.used {
                assert!(hidden[i] == hidden[of], "{} is no base", kind.name());
                continue;
            }
            for other in of..i {
                let mut rows = hidden[i].iter().zip(&hidden[other]);
                let [own, other] = [i, other].map(|i| KINDS[i].name());
                assert!(rows.all(|(a, b)| a != b), "{own} is as {other}");
            }
        }
    }

    /// The share of the base's speed that bytes allow, where weights are read once and every row's adapter.
    fn bytes_allow(&self, kind: &Kind) -> f64 {
        let used = kind.attached.filter(|_| kind.used);
        let one = used.map_or(0, |t| self.adapters(t)[0].bytes());
        let weights = self.weights as f64;
        weights / (weights + f64::from(kind.sequences) * one as f64)
    }

    /// Seconds of all rounds, by kind.
    fn measure(&mut self) -> Vec<Vec<f64>> {
        // Weights are repacked meanwhile.
        let want: Vec<_> = KINDS.iter().map(|kind| self.run(kind).1).collect();
        let mut seconds = vec![vec![]; KINDS.len()];
        for _ in 0..ROUNDS {
            for (at, kind) in KINDS.iter().enumerate() {
                let (took, said) = self.run(kind);
                assert!(said == want[at], "{}: something else is said", kind.name());
                seconds[at].push(took);
            }
        }
        seconds
    }

    /// The middle of all rounds, of each kind by itself and beside its base in the same round.
    fn table(&self, format: &str, seconds: &[Vec<f64>]) -> String {
        let mut out = format!(
            "\nstep: {SHAPE} in {format}, middle of {ROUNDS} rounds of {STEPS} steps\n\n\
             | sequences, rows | ms | tok/s | of the base's speed | bytes allow | at least |\n|---|---|---|---|---|---|\n"
        );
        for (at, kind) in KINDS.iter().enumerate() {
            let step = middle(seconds[at].clone());
            let rounds = seconds[base_of(at)].iter().zip(&seconds[at]);
            let share = middle(rounds.map(|(base, own)| base / own).collect());
            let allowed = self.bytes_allow(kind);
            let least = match kind.least {
                Least::Nothing => "".into(),
                Least::OfBase(share) => format!("{share:.2}"),
                Least::OfBytes(share) => format!("{:.2}", share * allowed),
            };
            let (ms, rate) = (1e3 * step, f64::from(kind.sequences) / step);
            let name = kind.name();
            let _ = writeln!(
                out,
                "| {name} | {ms:.2} | {rate:.1} | {share:.2} | {allowed:.2} | {least} |"
            );
        }
        let more = WHOLE_AND_HALVED.map(|at| {
            let rounds = seconds[at].iter().zip(&seconds[base_of(at)]);
            middle(rounds.map(|(own, base)| own - base).collect())
        });
        let share = more[1] / more[0];
        let _ = writeln!(
            out,
            "\nRank {HALF} takes {share:.2} of what rank {RANK} takes more than the base."
        );
        out
    }
}

/// Prints the tables.
pub fn print() {
    for format in FORMATS {
        let mut model = Model::new(format);
        model.check();
        let seconds = model.measure();
        println!("{}", model.table(format, &seconds));
    }
}
