//! Tokens per second of a bound plan: prefill and decode, at a depth, with several sequences and adapters.
//!
//! Speed does not depend on which tokens are run, so rows carry arbitrary ids. Decode steps ask for the
//! argmax, as greedy generation does, and where an executable takes steps ahead, they go on from it. A warm-up of the
//! same work precedes the timed repetitions.

use rusty_compiler::{
    BindOptions, Executable, PAGE_TOKENS, Result, Sequence, SlotId, Step, Want, chosen,
};
use std::time::Instant;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Prompt tokens of the prefill test; 0: no such test.
    pub prompt: usize,
    /// Generated tokens of the decode test; 0: no such test.
    pub generate: usize,
    /// Tokens already in each sequence's cache.
    pub depth: usize,
    /// Sequences decoded together.
    pub batch: usize,
    /// Adapters attached in slots 1..; sequence `i` uses slot `1 + i % adapters`, BASE where there are none.
    pub adapters: usize,
}

/// Tokens per second over the repetitions of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct Throughput {
    /// `pp512`, `tg128`, with `@d4096` and `x16` where depth and batch are not the plain ones.
    pub test: String,
    /// Each repetition's tokens per second, all sequences together.
    pub samples: Vec<f64>,
}

impl Throughput {
    /// Mean over the repetitions.
    pub fn mean(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len().max(1) as f64
    }

    /// Sample standard deviation over the repetitions.
    pub fn stddev(&self) -> f64 {
        if self.samples.len() < 2 {
            return 0.0;
        }
        let mean = self.mean();
        let squares: f64 = self.samples.iter().map(|s| (s - mean) * (s - mean)).sum();
        (squares / (self.samples.len() - 1) as f64).sqrt()
    }
}

impl Workload {
    /// Pages that the workload needs.
    pub fn pages(&self) -> u32 {
        self.pages_per_sequence()
            .saturating_mul(u32::try_from(self.batch.max(1)).unwrap_or(u32::MAX))
    }

    fn pages_per_sequence(&self) -> u32 {
        let tokens = self.depth.saturating_add(self.prompt.max(self.generate));
        BindOptions::pages_for(tokens.saturating_add(1))
    }
}

/// Runs both tests of a workload `repetitions` times each.
///
/// `row_budget` and `vocab` are the plan's; the executable must be bound with at least
/// [`Workload::pages`] pages and the workload's adapters attached, which change no embeddings.
///
/// # Errors
/// Those of [`Executable::run`] and [`Executable::copy_page`].
pub fn measure(
    executable: &mut dyn Executable,
    row_budget: usize,
    vocab: u32,
    workload: &Workload,
    repetitions: usize,
) -> Result<Vec<Throughput>> {
    let mut runner = Runner::new(executable, row_budget, vocab, workload);
    // What a device puts off until its first steps is part of loading.
    runner.decode(workload.generate.max(workload.prompt).min(2))?;
    // A CPU repacks weights over many of them.
    let mut held = runner.executable.memory().resident_weights;
    loop {
        runner.decode(1)?;
        let now = runner.executable.memory().resident_weights;
        if std::mem::replace(&mut held, now) == now {
            break;
        }
    }
    runner.fill(workload.depth)?;
    let mut results = Vec::new();
    if workload.prompt > 0 {
        results.push(runner.test("pp", workload.prompt, repetitions, Runner::prefill)?);
    }
    if workload.generate > 0 {
        results.push(runner.test("tg", workload.generate, repetitions, Runner::decode)?);
    }
    Ok(results)
}

struct Runner<'a> {
    executable: &'a mut dyn Executable,
    row_budget: usize,
    vocab: u32,
    workload: &'a Workload,
    /// Page table of each sequence.
    pages: Vec<Vec<u32>>,
}

impl<'a> Runner<'a> {
    fn new(
        executable: &'a mut dyn Executable,
        row_budget: usize,
        vocab: u32,
        workload: &'a Workload,
    ) -> Self {
        let per = workload.pages_per_sequence();
        let pages = (0..workload.batch.max(1) as u32)
            .map(|s| (s * per..(s + 1) * per).collect())
            .collect();
        Self {
            executable,
            row_budget,
            vocab,
            workload,
            pages,
        }
    }

    fn slot(&self, sequence: usize) -> SlotId {
        match self.workload.adapters {
            0 => SlotId::BASE,
            n => SlotId(1 + (sequence % n) as u32),
        }
    }

    /// Caches `depth` tokens of each sequence. One page is run, the others are its copies: speed does not depend on what
    /// they hold.
    fn fill(&mut self, depth: usize) -> Result<()> {
        if depth == 0 {
            return Ok(());
        }
        self.chunks(0, 0, depth.min(PAGE_TOKENS), Want::Nothing)?;
        let from = self.pages[0][0];
        let all = self.pages.iter();
        let filled = all.flat_map(|pages| &pages[..depth.div_ceil(PAGE_TOKENS)]);
        for &page in filled.filter(|page| **page != from) {
            self.executable.copy_page(from, page)?;
        }
        Ok(())
    }

    /// Rows `from..from + count` of one sequence in chunks; the last row wants `last`.
    fn chunks(&mut self, sequence: usize, from: usize, count: usize, last: Want) -> Result<()> {
        let mut done = 0;
        while done < count {
            let rows = self.row_budget.min(count - done);
            let tokens: Vec<u32> = (0..rows)
                .map(|i| (i as u32 * 17 + 3) % self.vocab)
                .collect();
            let positions: Vec<u32> = (0..rows).map(|i| (from + done + i) as u32).collect();
            let mut wants = vec![Want::Nothing; rows];
            done += rows;
            if done == count {
                wants[rows - 1] = last;
            }
            let pages = &self.pages[sequence];
            self.executable.run(&Step {
                tokens: &tokens,
                positions: &positions,
                sequence_of: &vec![0; rows],
                sequences: &[Sequence {
                    pages,
                    rope_length: pages.len() as u32 * PAGE_TOKENS as u32,
                }],
                slots: &vec![self.slot(sequence); rows],
                wants: &wants,
            })?;
        }
        Ok(())
    }

    fn prefill(&mut self, tokens: usize) -> Result<()> {
        (0..self.pages.len())
            .try_for_each(|s| self.chunks(s, self.workload.depth, tokens, Want::ArgMax))
    }

    fn decode(&mut self, tokens: usize) -> Result<()> {
        let batch = self.pages.len();
        let rows: Vec<u32> = (0..batch as u32).collect();
        let slots: Vec<SlotId> = (0..batch).map(|s| self.slot(s)).collect();
        let sequences = self.pages.iter().map(|pages| Sequence {
            pages,
            rope_length: (pages.len() * PAGE_TOKENS) as u32,
        });
        let sequences: Vec<Sequence<'_>> = sequences.collect();
        let chosen: Vec<u32> = rows.iter().map(|row| chosen(*row)).collect();
        for at in 0..tokens {
            let given = vec![(at as u32 * 31 + 7) % self.vocab; batch];
            let mut step = Step {
                tokens: &given,
                positions: &vec![(self.workload.depth + at) as u32; batch],
                sequence_of: &rows,
                sequences: &sequences,
                slots: &slots,
                wants: &vec![Want::ArgMax; batch],
            };
            let Some(queue) = self.executable.queue() else {
                self.executable.run(&step)?;
                continue;
            };
            // As answers run: each step goes on from the tokens of the one before, whose results are taken while it runs.
            if at > 0 {
                step.tokens = &chosen;
            }
            let enqueued = queue.enqueue(&step);
            if at > 0 {
                queue.finish()?;
            }
            enqueued?;
            if at + 1 == tokens {
                queue.finish()?;
            }
        }
        Ok(())
    }

    fn test(
        &mut self,
        kind: &str,
        tokens: usize,
        repetitions: usize,
        work: fn(&mut Self, usize) -> Result<()>,
    ) -> Result<Throughput> {
        let mut name = format!("{kind}{tokens}");
        if self.workload.depth > 0 {
            name += &format!("@d{}", self.workload.depth);
        }
        if self.pages.len() > 1 {
            name += &format!("x{}", self.pages.len());
        }
        work(self, tokens)?;
        let mut samples = Vec::with_capacity(repetitions);
        for _ in 0..repetitions {
            let start = Instant::now();
            work(self, tokens)?;
            samples.push((tokens * self.pages.len()) as f64 / start.elapsed().as_secs_f64());
        }
        Ok(Throughput {
            test: name,
            samples,
        })
    }
}
