//! Rusty's side.

use crate::Reply;
use crate::chains::{Chain, Dims};
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
    pub unfused: usize,
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
        let unfused = operations.count();
        let options = BindOptions {
            pages: BindOptions::pages_for(dims.rows),
            kv: KvFormat::F32,
            slots: 0,
        };
        let executable = rusty_compiler::bind(plan, &file, device, &options);
        Self {
            executable: executable.expect("binds"),
            rows: dims.rows,
            kernels,
            unfused,
        }
    }

    /// Runs the chain some times after a first one.
    pub fn run(&mut self, repetitions: usize) -> Reply {
        let answer = self.last();
        self.last();
        let once = |_| {
            let start = Instant::now();
            self.last();
            start.elapsed().as_secs_f64()
        };
        Reply {
            seconds: (0..repetitions).map(once).collect(),
            answer,
        }
    }

    /// The last row.
    fn last(&mut self) -> Vec<f32> {
        let each: Vec<u32> = (0..self.rows as u32).collect();
        let pages: Vec<u32> = (0..BindOptions::pages_for(self.rows)).collect();
        let mut wants = vec![Want::Nothing; self.rows];
        wants[self.rows - 1] = Want::Hidden;
        let step = Step {
            tokens: &each,
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
