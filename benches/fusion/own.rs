//! Rusty's side.

use super::Job;
use super::chains::{Chain, Dims, VOCAB};
use rusty_backend::Device;
use rusty_compiler::{
    BindOptions, Executable, KvFormat, RowResult, Sequence, SlotId, Step, Want, compile,
};
use std::time::Instant;

/// A chain, bound to a device.
pub struct Own {
    executable: Box<dyn Executable>,
    rows: usize,
    /// Kernels that a step launches, and operations of the graph; the few logits behind the chain are in neither.
    pub kernels: usize,
    pub operations: usize,
}

impl Own {
    pub fn new(chain: &Chain, dims: Dims, device: &Device) -> Self {
        let (graph, file) = chain.graph(dims);
        let plan = compile(&graph, device.target()).expect("plan");
        let of_chain = |name: &str| !["logits", "argmax", "selected"].contains(&name);
        let kernels = plan.kernels.iter().filter(|k| of_chain(&k.name)).count();
        let operations = graph.nodes.iter().filter(|n| {
            n.op.class() != rusty_graph::OpClass::Source
                && of_chain(&graph.values[n.output.index()].name)
        });
        let operations = operations.count();
        let options = BindOptions {
            pages: BindOptions::pages_for(dims.rows),
            kv: KvFormat::F32,
            slots: 0,
        };
        // Without kernels that the device does not take or that go wrong there, as an engine binds.
        let executable = rusty_compiler::bind_tested(plan, &file, device, &options, None);
        Self {
            executable: executable.expect("binds"),
            rows: dims.rows,
            kernels,
            operations,
        }
    }

    /// Runs the chain for the job's time, after its warm-up: seconds of each run, and the last row.
    pub fn run(&mut self, job: &Job) -> (Vec<f64>, Vec<f32>) {
        let answer = self.last();
        self.times(job.warm_up);
        (self.times(job.timed), answer)
    }

    fn times(&mut self, seconds: f64) -> Vec<f64> {
        let start = Instant::now();
        let mut all = vec![];
        while start.elapsed().as_secs_f64() < seconds {
            let one = Instant::now();
            self.last();
            all.push(one.elapsed().as_secs_f64());
        }
        all
    }

    /// The last row.
    fn last(&mut self) -> Vec<f32> {
        let each: Vec<u32> = (0..self.rows as u32).collect();
        let tokens: Vec<u32> = each.iter().map(|i| i % VOCAB as u32).collect();
        let pages: Vec<u32> = (0..BindOptions::pages_for(self.rows)).collect();
        let mut wants = vec![Want::Nothing; self.rows];
        wants[self.rows - 1] = Want::Hidden;
        let step = Step {
            tokens: &tokens,
            positions: &each,
            sequence_of: &vec![0; self.rows],
            sequences: &[Sequence {
                pages: &pages,
                rope_length: 0,
            }],
            slots: &vec![SlotId::BASE; self.rows],
            wants: &wants,
        };
        let mut results = self.executable.run(&step).expect("step").results;
        match results.pop() {
            Some((_, RowResult::Hidden(row))) => row,
            other => panic!("asked for a hidden row, got {other:?}"),
        }
    }
}
