//! What a step of 16 sequences costs beside adapters and with them.
//!
//! Kinds of steps take turns, and what counts is the middle of the rounds: other guests of a shared machine disturb all of
//! them. Rows that use no adapter should cost what they cost where none is attached, and half the rank half of what the whole
//! rank adds. Each kind says in every round what it said in the first.

use crate::{FORMAT, RANK, SHAPE};
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

const SEQUENCES: u32 = 16;
const ROUNDS: usize = 9;
/// Steps of a kind in a round: as many tokens as lie in a page.
const STEPS: u32 = PAGE_TOKENS as u32;
const HALF: u32 = RANK / 2;

/// What the rows of a step use, and what lies in the slots.
#[derive(Clone, Copy)]
enum Kind {
    /// The base; all slots are empty.
    Base,
    /// The base; all slots hold adapters.
    Beside,
    /// Each row an adapter of its own.
    Whole,
    /// The same, of half the rank.
    Halved,
}

impl Kind {
    /// In the order of a round.
    const ALL: [Self; 4] = [Self::Base, Self::Beside, Self::Whole, Self::Halved];

    fn name(self) -> String {
        match self {
            Self::Base => "base, nothing attached".into(),
            Self::Beside => format!("base, {SEQUENCES} adapters attached"),
            Self::Whole => format!("{SEQUENCES} adapters of rank {RANK}"),
            Self::Halved => format!("{SEQUENCES} adapters of rank {HALF}"),
        }
    }

    /// Rank of what lies in the slots.
    fn attached(self) -> Option<u32> {
        match self {
            Self::Base => None,
            Self::Beside | Self::Whole => Some(RANK),
            Self::Halved => Some(HALF),
        }
    }

    fn slot(self, row: u32) -> SlotId {
        match self {
            Self::Base | Self::Beside => SlotId::BASE,
            Self::Whole | Self::Halved => SlotId(row + 1),
        }
    }
}

/// The model with as many slots as sequences.
struct Model {
    executable: Box<dyn Executable>,
    vocab: u32,
    /// Of both ranks.
    adapters: Vec<Arc<SlotData>>,
    /// Rank of what lies in the slots.
    attached: Option<u32>,
}

impl Model {
    fn new() -> Self {
        let file = rusty_loader::random::model(SHAPE, FORMAT).expect("shape");
        let device = Device::Cpu(CpuDevice::new(None));
        let graph = rusty_graph::arch::build(&*file).expect("graph");
        let plan = rusty_compiler::compile(&graph, device.target()).expect("plan");
        let options = BindOptions {
            pages: SEQUENCES,
            kv: KvFormat::F16,
            slots: SEQUENCES,
        };
        let executable = rusty_compiler::bind(plan, &*file, &device, &options).expect("binds");
        let sites = &graph.sites;
        let adapters = [RANK, HALF].into_iter().flat_map(|rank| {
            (0..SEQUENCES).map(move |row| {
                let seed = u64::from(row) + 1;
                Arc::new(random("random", sites, rank, seed, Precision::F16))
            })
        });
        Self {
            executable,
            vocab: graph.vocab,
            adapters: adapters.collect(),
            attached: None,
        }
    }

    /// Puts the adapters of a rank into the slots, or empties those.
    fn attach(&mut self, rank: Option<u32>) {
        if self.attached == rank {
            return;
        }
        let slots = (1..=SEQUENCES).map(SlotId);
        if self.attached.is_some() {
            for slot in slots.clone() {
                self.executable.detach(slot).expect("detached");
            }
        }
        let adapters = self.adapters.iter();
        let adapters = adapters.filter(|a| Some(a.largest_rank()) == rank);
        for (slot, adapter) in slots.zip(adapters) {
            let done = self.executable.attach(slot, adapter.clone());
            done.expect("attached");
        }
        self.attached = rank;
    }

    /// Token `at` of every sequence.
    fn step(&mut self, kind: Kind, at: u32, want: Want) -> Vec<RowResult> {
        let rows: Vec<u32> = (0..SEQUENCES).collect();
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
    fn run(&mut self, kind: Kind) -> (f64, Vec<Vec<RowResult>>) {
        self.attach(kind.attached());
        self.step(kind, 0, Want::ArgMax);
        let start = Instant::now();
        let said = (0..STEPS).map(|at| self.step(kind, at, Want::ArgMax));
        let said = said.collect();
        (start.elapsed().as_secs_f64() / f64::from(STEPS), said)
    }

    /// Adapters change every row that uses one, each rank in its own way, and no other row.
    fn check(&mut self) {
        let hidden = Kind::ALL.map(|kind| {
            self.attach(kind.attached());
            self.step(kind, 0, Want::Hidden)
        });
        let [base, beside, whole, halved] = &hidden;
        assert!(base == beside, "adapters change rows that use none");
        for (a, b) in [(base, whole), (base, halved), (whole, halved)] {
            let apart = a.iter().zip(b).all(|(a, b)| a != b);
            assert!(apart, "an adapter changes nothing");
        }
    }
}

/// Prints the table where it is asked for.
pub fn print() {
    if !is_wanted() {
        return;
    }
    let mut model = Model::new();
    model.check();
    // Weights are repacked meanwhile.
    let want = Kind::ALL.map(|kind| model.run(kind).1);
    assert!(
        want[Kind::Base as usize] == want[Kind::Beside as usize],
        "the base says something else beside adapters"
    );
    let mut seconds = Kind::ALL.map(|_| vec![]);
    for _ in 0..ROUNDS {
        for (kind, want) in Kind::ALL.into_iter().zip(&want) {
            let (took, said) = model.run(kind);
            assert!(said == *want, "{}: something else is said", kind.name());
            seconds[kind as usize].push(took);
        }
    }
    println!("{}", table(&seconds));
}

/// Criterion's options that stand alone; behind each of the others comes its value.
const ALONE: [&str; 15] = [
    "--bench",
    "--discard-baseline",
    "--exact",
    "--ignored",
    "--include-ignored",
    "--list",
    "--nocapture",
    "--noplot",
    "--quick",
    "--quiet",
    "--show-output",
    "--test",
    "--verbose",
    "-n",
    "-v",
];

/// Whether this is a measurement, and no filter leaves the table out.
fn is_wanted() -> bool {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|w| w == word);
    let asks =
        |option: &str| option.starts_with('-') && !option.contains('=') && !ALONE.contains(&option);
    let is_filter = |at: usize| {
        let is_value = at > 0 && asks(&words[at - 1]);
        !words[at].starts_with('-') && !is_value
    };
    let mut filters = (0..words.len()).filter(|at| is_filter(*at));
    has("--bench") && !has("--list") && filters.all(|at| "step".contains(words[at].as_str()))
}

/// The middle of all rounds, of each kind by itself and of what it takes more than the base in the same round.
fn table(seconds: &[Vec<f64>; Kind::ALL.len()]) -> String {
    let base = &seconds[Kind::Base as usize];
    let more = |kind: Kind| {
        let rounds = seconds[kind as usize].iter().zip(base);
        1e3 * middle(rounds.map(|(own, base)| own - base).collect())
    };
    let mut out = format!(
        "\nstep: {SEQUENCES} sequences, {SHAPE} in {FORMAT}, middle of {ROUNDS} rounds of {STEPS} steps\n\n\
         | rows | ms | tok/s | more than the base, ms |\n|---|---|---|---|\n"
    );
    for kind in Kind::ALL {
        let step = middle(seconds[kind as usize].clone());
        let (ms, rate) = (1e3 * step, f64::from(SEQUENCES) / step);
        let (name, more) = (kind.name(), more(kind));
        let _ = writeln!(out, "| {name} | {ms:.2} | {rate:.1} | {more:+.2} |");
    }
    let share = more(Kind::Halved) / more(Kind::Whole);
    let _ = writeln!(
        out,
        "\nRank {HALF} takes {share:.2} of what rank {RANK} takes more than the base."
    );
    out
}
