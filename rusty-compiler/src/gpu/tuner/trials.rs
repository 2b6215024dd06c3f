//! Steps that are tried: whether kernels are right, and how long they take.

use super::{BETTER, FEW_ROWS, Tuner};
use crate::gpu::prepare::compile;
use crate::plan::Tuning;
use crate::self_test::{allowed, distance, is_refusal};
use crate::{Error, Executable, PAGE_TOKENS, Result, RowResult, Sequence, SlotId, Step, Want};
use std::time::{Duration, Instant};

/// Time after which a step is not repeated.
const LONG_ENOUGH: Duration = Duration::from_millis(200);

/// A step of rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    /// Rows.
    pub rows: u32,
    /// Tokens of the sequence up to the last of them.
    pub context: u32,
}

impl Case {
    /// A prompt of so many rows.
    pub fn prompt(rows: u32) -> Self {
        Self {
            rows,
            context: rows,
        }
    }
}

impl Tuner<'_> {
    /// Makes the executable run a tuning's kernels.
    pub(super) fn take(&mut self, tuning: &Tuning) -> Result<()> {
        let (plan, stages) = self.exe.tuned(tuning.clone(), false)?;
        let pipelines = compile(&stages, &plan.target, self.exe.device(), &self.known)?;
        self.exe.adopt(plan, stages, pipelines);
        Ok(())
    }

    /// Keeps the logits that a step has now: what is tried must give them.
    pub(super) fn learn(&mut self, case: Case) -> Result<()> {
        let logits = self.logits(case)?;
        if !logits.iter().all(|l| l.is_finite()) {
            return Err(Error::Step("the model's logits are no numbers".into()));
        }
        self.right.insert(case, logits);
        Ok(())
    }

    /// The best of a tuning, with its seconds, and of others for a step.
    pub(super) fn best_of(
        &mut self,
        now: (Tuning, f64),
        others: Vec<Tuning>,
        case: Case,
    ) -> Result<(Tuning, f64)> {
        let mut best = now;
        for other in others {
            let took = self.seconds(&other, &[case])?[0];
            if took < best.1 * BETTER {
                best = (other, took);
            }
        }
        Ok(best)
    }

    /// Seconds of the fastest of some steps; infinite where kernels are refused or go wrong, or no time is left.
    pub(super) fn seconds(&mut self, tuning: &Tuning, cases: &[Case]) -> Result<Vec<f64>> {
        self.measured += 1;
        (self.progress)(self.measured.min(self.total), self.total);
        let never = vec![f64::INFINITY; cases.len()];
        if self.is_late() {
            return Ok(never);
        }
        match self.take(tuning) {
            Err(error) if is_refusal(&error) => Ok(never),
            Err(error) => Err(error),
            Ok(()) => cases.iter().map(|case| self.fastest(*case)).collect(),
        }
    }

    /// As many rows as a tuning may multiply by vectors, `gemv_rows` or one: where their kernels are refused or go wrong.
    pub(super) fn right_up_to(&mut self, tuning: &Tuning, gemv_rows: u32) -> Result<u32> {
        let tried = Tuning {
            gemv_rows,
            ..tuning.clone()
        };
        match self.take(&tried) {
            Err(error) if is_refusal(&error) => return Ok(1),
            taken => taken?,
        }
        for rows in FEW_ROWS.into_iter().filter(|rows| *rows <= gemv_rows) {
            if !self.is_right(Case::prompt(rows))? {
                return Ok(1);
            }
        }
        Ok(gemv_rows)
    }

    /// Whether a step gives the guesses' logits.
    fn is_right(&mut self, case: Case) -> Result<bool> {
        let logits = self.logits(case)?;
        let right = self.right.get(&case);
        let apart = right.map_or(f64::NAN, |right| distance(&logits, right));
        if apart.is_nan() || apart > allowed(self.exe.options().kv) {
            tracing::debug!(?case, apart, "kernels that were tried go wrong");
            return Ok(false);
        }
        Ok(true)
    }

    fn fastest(&mut self, case: Case) -> Result<f64> {
        if !self.is_right(case)? {
            return Ok(f64::INFINITY);
        }
        let mut fastest = f64::INFINITY;
        let start = Instant::now();
        for _ in 0..self.effort.repetitions {
            let one = Instant::now();
            self.step(case, Want::ArgMax)?;
            fastest = fastest.min(one.elapsed().as_secs_f64());
            if start.elapsed() > LONG_ENOUGH {
                break;
            }
        }
        Ok(fastest)
    }

    /// Logits of as many rows of a step as may have some, one behind the other.
    pub(super) fn logits(&mut self, case: Case) -> Result<Vec<f32>> {
        let results = self.step(case, Want::Logits)?.into_iter();
        let all = results.flat_map(|(_, result)| match result {
            RowResult::Logits(logits) => logits,
            _ => Vec::new(),
        });
        Ok(all.collect())
    }

    /// Runs a step; as many of the last rows as may want something do.
    pub(super) fn step(&mut self, case: Case, want: Want) -> Result<Vec<(u32, RowResult)>> {
        let Case { rows, context } = case;
        let (vocab, most) = (self.exe.plan().vocab, self.exe.plan().output_budget());
        let each: Vec<u32> = (context - rows..context).collect();
        let pages: Vec<u32> = (0..context.div_ceil(PAGE_TOKENS as u32)).collect();
        let mut wants = vec![want; rows as usize];
        let silent = wants.len().saturating_sub(most);
        wants[..silent].fill(Want::Nothing);
        let step = Step {
            tokens: &each
                .iter()
                .map(|i| (i * 37 + 11) % vocab)
                .collect::<Vec<_>>(),
            positions: &each,
            sequence_of: &vec![0; rows as usize],
            sequences: &[Sequence {
                pages: &pages,
                rope_length: context,
            }],
            slots: &vec![SlotId::BASE; rows as usize],
            wants: &wants,
        };
        Ok(self.exe.run(&step)?.results)
    }
}
