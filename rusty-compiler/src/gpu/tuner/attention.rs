//! How attention is cut, measured at the end of a short and of a deep context: how long splits of keys are at the one, how many there
//! are at the other, and up to how many rows of a sequence single ones beat tiles.
//!
//! No candidate needs a kernel of its own ([`AttentionCut`]). Those that would launch what is launched already are not tried, nor is
//! anything where a step takes little more than its keys' and values' bytes must.

use super::trials::Case;
use super::{BETTER, Tuner};
use crate::gpu::attention_cuts::split_counts;
use crate::gpu::kept_tunings::{cache_bytes, contexts};
use crate::plan::{AttentionCut, Tuning};
use crate::{Executable, PAGE_TOKENS, Result, Want};

/// Keys of a split, as parts of twice the guess, and splits of a row.
const SPLIT_KEYS: [u32; 3] = [4, 2, 1];
const MOST_SPLITS: [u32; 3] = [16, 32, 64];
/// Rows of one sequence for which single rows and tiles are compared.
const RUNS: [u32; 3] = [2, 4, 8];
/// Pages that are copied before the device is waited for, so that it need not keep many copies at once.
const PAGES_AT_ONCE: u32 = 16;

impl Tuner<'_> {
    /// Measurements that there are at most.
    pub(super) fn of_attention(&self) -> u64 {
        match self.contexts() {
            Some(_) => (SPLIT_KEYS.len() + MOST_SPLITS.len() + 2) as u64,
            None => 0,
        }
    }

    /// The best of a tuning, with which a row in front of nothing takes some seconds, and of those that cut attention otherwise.
    pub(super) fn best_attention(&mut self, mut best: Tuning, seconds: f64) -> Result<Tuning> {
        let contexts = self.contexts().filter(|_| !self.is_late());
        let Some([short, deep]) = contexts else {
            return Ok(best);
        };
        let row = |context| Case { rows: 1, context };
        let runs = RUNS.map(|rows| Case {
            rows,
            context: deep,
        });
        self.take(&best)?;
        self.fill(deep)?;
        for case in [row(short), row(deep)].into_iter().chain(runs) {
            self.learn(case)?;
        }
        let now = best.attention;
        let guess = Tuning::guess(&self.exe.plan().target).attention.split_keys;
        let cuts = SPLIT_KEYS.map(|part| AttentionCut {
            split_keys: 2 * guess / part,
            ..now
        });
        best = self.better_cut(best, seconds, row(short), &cuts)?;
        let now = best.attention;
        let cuts = MOST_SPLITS.map(|most_splits| AttentionCut { most_splits, ..now });
        best = self.better_cut(best, seconds, row(deep), &cuts)?;
        let few = self.crossing(&best, &runs, |t, rows| t.attention.alone_rows = rows)?;
        if let Some(few) = few {
            best.attention.alone_rows = few.max(1);
        }
        Ok(best)
    }

    /// The contexts, where attention has something to choose.
    fn contexts(&self) -> Option<[u32; 2]> {
        let room = self.exe.room();
        let splits = room.alone && room.splits > 1;
        contexts(self.exe.plan(), self.exe.options(), self.effort).filter(|_| splits)
    }

    /// Brings keys and values into the cache up to a context: no page is read twice, and all hold numbers.
    fn fill(&mut self, context: u32) -> Result<()> {
        self.step(Case::prompt(PAGE_TOKENS as u32), Want::Nothing)?;
        for page in 1..context.div_ceil(PAGE_TOKENS as u32) {
            self.exe.copy_page(0, page)?;
            if page.is_multiple_of(PAGES_AT_ONCE) {
                self.exe.device().synchronize()?;
            }
        }
        Ok(())
    }

    /// The best of a tuning and of other cuts for a row at a context, where `seconds` is what it takes in front of nothing.
    fn better_cut(
        &mut self,
        now: Tuning,
        seconds: f64,
        case: Case,
        cuts: &[AttentionCut],
    ) -> Result<Tuning> {
        let room = self.exe.room().splits;
        let launched = |cut: AttentionCut| split_counts(&[case.context], room, cut);
        let own = launched(now.attention);
        let others = cuts.iter().filter(|cut| launched(**cut) != own);
        let others: Vec<Tuning> = others
            .map(|cut| Tuning {
                attention: *cut,
                ..now.clone()
            })
            .collect();
        if others.is_empty() {
            return Ok(now);
        }
        let took = self.seconds(&now, &[case])?[0];
        if took * BETTER <= seconds + self.reading(case.context) {
            return Ok(now);
        }
        Ok(self.best_of((now, took), others, case)?.0)
    }

    /// Seconds in which a row's keys and values are read at best; 0 where the device's bandwidth is not known.
    fn reading(&self, context: u32) -> f64 {
        let plan = self.exe.plan();
        let bytes = cache_bytes(plan, self.exe.options().kv, context);
        match plan.target.read_bandwidth {
            0 => 0.0,
            bandwidth => bytes as f64 / bandwidth as f64,
        }
    }
}
