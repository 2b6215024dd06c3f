//! Measures choices among kernels where a model first runs on a device, and keeps what was found for the next process.
//!
//! Whole steps are timed on the bound weights, one change at a time: what a kernel costs beside its neighbours is what
//! counts. First whether matrix-vector products of each family are of bytes, how they are cut and when they ask for weights, then up to how many rows they beat tiles, then
//! which of their tiles matrix units take. The cost model bounds what is tried: families whose weights are few bytes
//! of a step cannot gain much, and a model of few bytes is not measured at all. A candidate must give the guesses'
//! logits before it is timed; one that the device refuses is left out.

use super::GpuExecutable;
pub use super::kept_tunings::{Effort, kept};
use super::kept_tunings::{families, kept_name};
use super::kernels::gemv_sizes::team_units;
use super::prepare::{Pipelines, compile};
use super::stage::Stage;
use crate::passes::select::has_short_codes;
use crate::plan::{ContractionFamily, Implementation, Teams, Tuning};
use crate::self_test::{allowed, distance, is_refusal};
use crate::{Error, Executable, PAGE_TOKENS, Result, RowResult, Sequence, SlotId, Step, Want};
use rusty_backend::Language;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Rows for which matrix-vector products and tiles are compared: for one the former are taken in any case.
const FEW_ROWS: [u32; 4] = [2, 4, 8, 16];
/// Rows for which the smaller two tiles of matrix units are compared, and the larger two, where steps may have so many. Up to the
/// first of these the largest tile would only multiply more.
const TILE_ROWS: [u32; 3] = [32, 64, 128];
const LARGE_TILE_ROWS: [u32; 4] = [64, 128, 256, 512];
/// Outputs of a team, and units of a cube.
const LANES: [u32; 4] = [1, 2, 4, 8];
const UNITS: [u32; 3] = [64, 128, 256];
/// A candidate replaces what was better so far where it takes less than this part of its time.
const BETTER: f64 = 0.99;
/// Single rows' steps for which there must be time, or a device is too slow to be measured.
const STEPS: u32 = 500;
/// Time after which a step is not repeated.
const LONG_ENOUGH: Duration = Duration::from_millis(200);

/// Tunes an executable that holds nothing yet, and keeps what was found. `progress` is told how many measurements are done,
/// and how many there are. Where something goes wrong, the executable is left as it was.
///
/// # Errors
/// [`Error::Device`] where the device fails.
pub fn tune(exe: &mut GpuExecutable, effort: &Effort, progress: &dyn Fn(u64, u64)) -> Result<()> {
    let families = families(exe.plan(), effort);
    // Where weights stream, their way is what takes the time.
    let streams = exe.memory().mapped_weights > 0;
    if families.is_empty() || streams || !takes(exe, TILE_ROWS[2]) {
        return Ok(());
    }
    let before = exe.plan().tuning.clone();
    let name = kept_name(exe.plan(), effort);
    let found = Tuner::new(exe, effort, progress).and_then(|tuner| match tuner {
        Some(mut tuner) => tuner.best(&families).map(Some),
        None => Ok(None),
    });
    let tuned = found.and_then(|tuning| match tuning {
        Some(tuning) => exe.retune(tuning.clone()).map(|()| Some(tuning)),
        None => Ok(None),
    });
    match tuned {
        Ok(None) => {
            tracing::debug!("{}: too slow to be tuned", exe.plan().target.name);
            Ok(())
        }
        Ok(Some(tuning)) => {
            tracing::debug!(?tuning, "tuned");
            exe.device().keep_pipelines();
            if let (Some(name), Ok(data)) = (name, serde_json::to_vec(&tuning)) {
                rusty_backend::cache::store(&name, &data);
            }
            Ok(())
        }
        Err(error) => {
            tracing::warn!("{}: not tuned: {error}", exe.plan().target.name);
            exe.retune(before)
        }
    }
}

/// Whether a step may have so many rows.
fn takes(exe: &GpuExecutable, rows: u32) -> bool {
    let most = exe.plan().row_budget() as u32;
    rows <= most && rows.div_ceil(PAGE_TOKENS as u32) <= exe.pages()
}

struct Tuner<'a> {
    exe: &'a mut GpuExecutable,
    effort: &'a Effort,
    progress: &'a dyn Fn(u64, u64),
    /// All that was compiled so far.
    known: Pipelines,
    /// Logits of some rows, as guesses have them.
    right: BTreeMap<u32, Vec<f32>>,
    start: Instant,
    measured: u64,
    total: u64,
}

impl<'a> Tuner<'a> {
    /// None where steps take so long that little could be tried.
    fn new(
        exe: &'a mut GpuExecutable,
        effort: &'a Effort,
        progress: &'a dyn Fn(u64, u64),
    ) -> Result<Option<Self>> {
        let mut tuner = Self {
            known: exe.pipelines().clone(),
            exe,
            effort,
            progress,
            right: BTreeMap::new(),
            start: Instant::now(),
            measured: 0,
            total: 0,
        };
        // The first step waits for the weights.
        tuner.logits(1)?;
        tuner.start = Instant::now();
        tuner.logits(1)?;
        if tuner.start.elapsed() * STEPS > effort.limit {
            return Ok(None);
        }
        let large = tuner.large_tile_rows();
        let all = [1].into_iter().chain(FEW_ROWS).chain(TILE_ROWS);
        for rows in all.chain(large).collect::<BTreeSet<u32>>() {
            let logits = tuner.logits(rows)?;
            if !logits.iter().all(|l| l.is_finite()) {
                return Err(Error::Step("the model's logits are no numbers".into()));
            }
            tuner.right.insert(rows, logits);
        }
        Ok(Some(tuner))
    }

    fn best(&mut self, families: &[ContractionFamily]) -> Result<Tuning> {
        let tiles = self.has_tiles();
        let per_family = LANES.len() + UNITS.len() + usize::from(self.asks_ahead());
        self.total = 1 + (families.len() * per_family + 2 + 4 * usize::from(tiles)) as u64;
        let mut best = self.exe.plan().tuning.clone();
        // Cuts are found for one row: kernels of several need not be compiled for each.
        let gemv_rows = std::mem::replace(&mut best.gemv_rows, 1);
        let mut seconds = self.seconds(&best, &[1])?[0];
        for family in families {
            // Bytes or floats, for the guess's cut; lanes, for its units; then units for the best lanes; then when weights are asked for.
            let now = best.teams(family);
            let other = Teams {
                bytes: !now.bytes,
                ..now
            };
            if self.multiplies_bytes(family) {
                (best, seconds) = self.better(best, seconds, family, &[other])?;
            }
            let now = best.teams(family);
            let cuts = LANES.map(|lanes| Teams { lanes, ..now });
            (best, seconds) = self.better(best, seconds, family, &cuts)?;
            let now = best.teams(family);
            let cuts = UNITS.map(|units| Teams { units, ..now });
            (best, seconds) = self.better(best, seconds, family, &cuts)?;
            let now = best.teams(family);
            let other = Teams {
                ahead: !now.ahead,
                ..now
            };
            if self.asks_ahead() {
                (best, seconds) = self.better(best, seconds, family, &[other])?;
            }
        }
        let few = self.crossing(&best, &FEW_ROWS, |t, rows| t.gemv_rows = rows)?;
        best.gemv_rows = match few {
            Some(few) => few.max(1),
            // Not timed, but no kernel may be wrong.
            None => self.right_up_to(&best, gemv_rows)?,
        };
        if tiles {
            let small = self.crossing(&best, &TILE_ROWS, |t, rows| t.small_tile_rows = rows)?;
            best.small_tile_rows = small.unwrap_or(best.small_tile_rows);
            let rows = self.large_tile_rows();
            let middle = self.crossing(&best, &rows, |t, rows| t.middle_tile_rows = rows)?;
            best.middle_tile_rows = match middle {
                None => best.middle_tile_rows,
                Some(up_to) if Some(&up_to) == rows.last() => u32::MAX,
                Some(up_to) => up_to,
            };
        }
        (self.progress)(self.total, self.total);
        Ok(best)
    }

    /// The best of a tuning and of those that cut a family otherwise, with its seconds.
    fn better(
        &mut self,
        now: Tuning,
        seconds: f64,
        family: &ContractionFamily,
        cuts: &[Teams],
    ) -> Result<(Tuning, f64)> {
        let others = cuts.iter().filter(|t| **t != now.teams(family));
        let others = others.filter(|t| self.fills(family, **t));
        let others: Vec<Tuning> = others.map(|t| now.with(family, *t)).collect();
        self.compile(&others)?;
        let mut best = (now, seconds);
        for other in others {
            let took = self.seconds(&other, &[1])?[0];
            if took < best.1 * BETTER {
                best = (other, took);
            }
        }
        Ok(best)
    }

    /// The most of some numbers of rows up to which the former of two kernels is faster, where `set` sets up to which it
    /// is chosen: 0 where it never is, none where there was no time to find out.
    fn crossing(
        &mut self,
        best: &Tuning,
        rows: &[u32],
        set: impl Fn(&mut Tuning, u32),
    ) -> Result<Option<u32>> {
        let (mut former, mut latter) = (best.clone(), best.clone());
        set(&mut former, u32::MAX);
        set(&mut latter, 0);
        self.compile(&[former.clone(), latter.clone()])?;
        let former = self.seconds(&former, rows)?;
        let latter = self.seconds(&latter, rows)?;
        if self.is_late() {
            return Ok(None);
        }
        let both = former.iter().zip(&latter);
        let faster = both.take_while(|(f, l)| f.is_finite() && f <= l);
        Ok(Some(
            faster.count().checked_sub(1).map_or(0, |last| rows[last]),
        ))
    }

    /// Whether nothing more is to be tried.
    fn is_late(&self) -> bool {
        self.start.elapsed() > self.effort.limit
    }

    /// Numbers of rows for which the larger tiles are compared, if there are such.
    fn large_tile_rows(&self) -> Vec<u32> {
        let tiles = self.has_tiles();
        let all = LARGE_TILE_ROWS.into_iter();
        all.filter(|rows| tiles && takes(self.exe, *rows)).collect()
    }

    /// Whether the plan has a choice of tiles.
    fn has_tiles(&self) -> bool {
        let mut variants = self.exe.plan().kernels.iter().flat_map(|k| &k.variants);
        variants.any(|v| v.implementation == Implementation::GemmMatrix32)
    }

    /// Whether there is the choice of when weights are asked for.
    fn asks_ahead(&self) -> bool {
        self.exe.plan().target.language == Language::CudaC
    }

    /// Whether a family has the choice of bytes.
    fn multiplies_bytes(&self, family: &ContractionFamily) -> bool {
        let plan = self.exe.plan();
        let mut anchors = plan.kernels.iter().map(|k| &k.anchor);
        let of_family = anchors.find(|a| ContractionFamily::of(plan, a).as_ref() == Some(family));
        plan.target.multiplies_bytes() && of_family.is_some_and(|a| has_short_codes(plan, a))
    }

    /// Whether a cut makes cubes enough, of whole teams, whose lanes come in pairs.
    fn fills(&self, family: &ContractionFamily, teams: Teams) -> bool {
        let target = &self.exe.plan().target;
        let lanes = teams.units / team_units(teams.units, target.plane()) * teams.lanes;
        let whole = teams.units <= target.max_units && lanes >= 2 && lanes.is_multiple_of(2);
        whole && family.n / lanes >= self.effort.fewest_cubes
    }

    /// Compiles what some tunings need, all at once; what is refused is so again when it is to be measured.
    fn compile(&mut self, tunings: &[Tuning]) -> Result<()> {
        if self.is_late() {
            return Ok(());
        }
        let lowered = tunings.iter().map(|t| self.exe.tuned(t.clone(), false));
        let stages: Vec<Vec<Stage>> = lowered.flatten().map(|(_, stages)| stages).collect();
        let (target, device) = (&self.exe.plan().target, self.exe.device());
        match compile(stages.iter().flatten(), target, device, &self.known) {
            Ok(made) => self.known.extend(made),
            Err(error) if is_refusal(&error) => tracing::debug!("left out: {error}"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes the executable run a tuning's kernels.
    fn take(&mut self, tuning: &Tuning) -> Result<()> {
        let (plan, stages) = self.exe.tuned(tuning.clone(), false)?;
        let pipelines = compile(&stages, &plan.target, self.exe.device(), &self.known)?;
        self.exe.adopt(plan, stages, pipelines);
        Ok(())
    }

    /// Seconds of the fastest step of some numbers of rows; infinite where kernels are refused or go wrong, or no time is left.
    fn seconds(&mut self, tuning: &Tuning, rows: &[u32]) -> Result<Vec<f64>> {
        self.measured += 1;
        (self.progress)(self.measured.min(self.total), self.total);
        let never = vec![f64::INFINITY; rows.len()];
        if self.is_late() {
            return Ok(never);
        }
        match self.take(tuning) {
            Err(error) if is_refusal(&error) => Ok(never),
            Err(error) => Err(error),
            Ok(()) => rows.iter().map(|r| self.fastest(*r)).collect(),
        }
    }

    /// As many rows as a tuning may multiply by vectors, `gemv_rows` or one: where their kernels are refused or go wrong.
    fn right_up_to(&mut self, tuning: &Tuning, gemv_rows: u32) -> Result<u32> {
        let tried = Tuning {
            gemv_rows,
            ..tuning.clone()
        };
        match self.take(&tried) {
            Err(error) if is_refusal(&error) => return Ok(1),
            taken => taken?,
        }
        for rows in FEW_ROWS.into_iter().filter(|rows| *rows <= gemv_rows) {
            if !self.is_right(rows)? {
                return Ok(1);
            }
        }
        Ok(gemv_rows)
    }

    /// Whether steps of some rows give the guesses' logits.
    fn is_right(&mut self, rows: u32) -> Result<bool> {
        let logits = self.logits(rows)?;
        let right = self.right.get(&rows);
        let apart = right.map_or(f64::NAN, |right| distance(&logits, right));
        if apart.is_nan() || apart > allowed(self.exe.kv()) {
            tracing::debug!(rows, apart, "kernels that were tried go wrong");
            return Ok(false);
        }
        Ok(true)
    }

    fn fastest(&mut self, rows: u32) -> Result<f64> {
        if !self.is_right(rows)? {
            return Ok(f64::INFINITY);
        }
        let mut fastest = f64::INFINITY;
        let start = Instant::now();
        for _ in 0..self.effort.repetitions {
            let one = Instant::now();
            self.step(rows, Want::ArgMax)?;
            fastest = fastest.min(one.elapsed().as_secs_f64());
            if start.elapsed() > LONG_ENOUGH {
                break;
            }
        }
        Ok(fastest)
    }

    /// Logits of as many rows of a prompt as may have some, one behind the other.
    fn logits(&mut self, rows: u32) -> Result<Vec<f32>> {
        let results = self.step(rows, Want::Logits)?.into_iter();
        let all = results.flat_map(|(_, result)| match result {
            RowResult::Logits(logits) => logits,
            _ => Vec::new(),
        });
        Ok(all.collect())
    }

    /// Runs a prompt of some rows; as many of the last as may want something do.
    fn step(&mut self, rows: u32, want: Want) -> Result<Vec<(u32, RowResult)>> {
        let (vocab, most) = (self.exe.plan().vocab, self.exe.plan().output_budget());
        let each: Vec<u32> = (0..rows).collect();
        let pages: Vec<u32> = (0..rows.div_ceil(PAGE_TOKENS as u32)).collect();
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
                rope_length: rows,
            }],
            slots: &vec![SlotId::BASE; rows as usize],
            wants: &wants,
        };
        Ok(self.exe.run(&step)?.results)
    }
}
