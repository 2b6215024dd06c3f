//! A subject, bound to a device and fed with rows.

use super::graphs::{Subject, VOCAB};
use crate::cosine;
use rusty_backend::Device;
use rusty_compiler::{
    BindOptions, Executable, KvFormat, RowResult, Sequence, SlotId, Step, Want, compile,
};
use rusty_graph::Interpreter;

/// Sequences of their own that a step may have.
const APART: u32 = 16;

pub struct Running {
    executable: Box<dyn Executable>,
    /// Pages of the one long sequence; those of their own follow, one each.
    pages: u32,
    kv_bytes: u64,
}

/// Rows of a step: of one sequence, or each of a sequence of its own.
#[derive(Clone, Copy)]
pub struct Rows {
    pub count: usize,
    /// Position of the first.
    pub from: usize,
    pub apart: bool,
    /// Row `i` wears the adapter in slot `i % slots + 1`.
    pub slots: u32,
}

impl Rows {
    /// The next rows of one sequence.
    pub fn of_one(count: usize, from: usize) -> Self {
        Self {
            count,
            from,
            apart: false,
            slots: 0,
        }
    }

    /// Rows that wear the adapters of so many slots in turn, each of a sequence of its own where they are several.
    pub fn adapted(count: usize, slots: u32) -> Self {
        Self {
            slots,
            apart: count > 1,
            ..Self::of_one(count, 0)
        }
    }
}

/// Some token for a position.
pub fn token(position: usize) -> u32 {
    (position * 31 % VOCAB as usize) as u32
}

impl Running {
    pub fn new(subject: &Subject, device: &Device, slots: u32, kv: KvFormat) -> Self {
        let plan = compile(&subject.graph, device.target()).expect("plan");
        let pages = BindOptions::pages_for(subject.graph.context as usize);
        let options = BindOptions {
            pages: pages + APART,
            kv,
            slots,
        };
        let kv_bytes = plan.kv_bytes_per_token(kv);
        // Without kernels that the device does not take or that go wrong there, as an engine binds.
        let executable = rusty_compiler::bind_tested(plan, &subject.file, device, &options, None);
        Self {
            executable: executable.expect("binds"),
            pages,
            kv_bytes,
        }
    }

    /// Bytes of a token's keys and values.
    pub fn kv_bytes(&self) -> u64 {
        self.kv_bytes
    }

    pub fn executable(&mut self) -> &mut dyn Executable {
        &mut *self.executable
    }

    /// Runs a step; the hidden row of the last of its rows.
    pub fn step(&mut self, rows: Rows) -> Vec<f32> {
        let last = rows.count - 1;
        let all: Vec<u32> = (0..self.pages).collect();
        // Sequences of their own are one page long.
        let own: Vec<[u32; 1]> = (0..APART).map(|i| [self.pages + i]).collect();
        let sequences: Vec<Sequence> = match rows.apart {
            true => own.iter().map(|pages| sequence(pages)).collect(),
            false => vec![sequence(&all)],
        };
        let each = |f: &dyn Fn(usize) -> u32| (0..rows.count).map(f).collect::<Vec<u32>>();
        let position = |row: usize| if rows.apart { 0 } else { rows.from + row };
        let slot = |row: usize| match rows.slots {
            0 => SlotId::BASE,
            slots => SlotId(row as u32 % slots + 1),
        };
        let want = |row: usize| {
            if row == last {
                Want::Hidden
            } else {
                Want::Nothing
            }
        };
        let step = Step {
            tokens: &each(&|row| token(rows.from + row)),
            positions: &each(&|row| position(row) as u32),
            sequence_of: &each(&|row| if rows.apart { row as u32 } else { 0 }),
            sequences: &sequences,
            slots: &(0..rows.count).map(slot).collect::<Vec<_>>(),
            wants: &(0..rows.count).map(want).collect::<Vec<_>>(),
        };
        let output = self.executable.run(&step).expect("step");
        match output.results.into_iter().next() {
            Some((_, RowResult::Hidden(row))) => row,
            other => panic!("asked for a hidden row, got {other:?}"),
        }
    }

    /// Fills the cache of the one sequence up to `depth`.
    pub fn fill(&mut self, depth: usize) {
        for from in (0..depth).step_by(PIECE) {
            self.step(Rows::of_one(PIECE.min(depth - from), from));
        }
    }
}

/// Rows of a step that fills.
const PIECE: usize = 512;

fn sequence(pages: &[u32]) -> Sequence<'_> {
    Sequence {
        pages,
        rope_length: 0,
    }
}

/// Checks the hidden row of the last of `count` tokens against the interpreter: the cosine is at least `least`.
pub fn check(subject: &Subject, running: &mut Running, count: usize, least: f64) {
    let interpreter = Interpreter::new(&subject.graph, &subject.file).expect("interpreter");
    let tokens: Vec<u32> = (0..count).map(token).collect();
    let values = interpreter.run(&tokens, &[]).expect("values");
    let have = running.step(Rows::of_one(count, 0));
    let cosine = cosine(values.hidden().row(count - 1), &have);
    assert!(cosine >= least, "cosine {cosine} to the interpreter");
}
