//! Measures choices among kernels where a model first runs on a device, and keeps what was found for the next process.
//!
//! Whole steps are timed on the bound weights, one change at a time: what a kernel costs beside its neighbours is what
//! counts. First whether matrix-vector products of each family are of bytes, how they are cut and when they ask for weights, then up to how many rows they beat tiles, then
//! which tiles are taken, and last how attention is cut. The cost model bounds what is tried: families whose weights
//! are few bytes of a step cannot gain much, and a model of few bytes is not measured at all. A candidate must give the guesses'
//! logits before it is timed; one that the device refuses is left out.

mod attention;
mod tiles;
mod trials;

use super::GpuExecutable;
pub use super::kept_tunings::{Effort, kept};
use super::kept_tunings::{families, kept_name};
use super::kernels::gemv_sizes::team_units;
use super::prepare::{Pipelines, compile};
use super::stage::Stage;
use crate::passes::select::has_short_codes;
use crate::plan::{ContractionFamily, Teams, Tuning};
use crate::self_test::is_refusal;
use crate::{Error, Executable, PAGE_TOKENS, Result};
use rusty_backend::{Error as DeviceError, Language};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tiles::TILE_ROWS;
use trials::Case;

/// Rows for which matrix-vector products and tiles are compared: for one the former are taken in any case.
const FEW_ROWS: [u32; 4] = [2, 4, 8, 16];
/// Outputs of a team, and units of a cube.
const LANES: [u32; 4] = [1, 2, 4, 8];
const UNITS: [u32; 3] = [64, 128, 256];
/// A candidate replaces what was better so far where it takes less than this part of its time.
const BETTER: f64 = 0.99;
/// Single rows' steps for which there must be time, or a device is too slow to be measured.
const STEPS: u32 = 500;

/// Tunes an executable that holds nothing yet, and keeps what was found. `progress` is told how many measurements are done,
/// and how many there are. Where something goes wrong, the executable is left as it was.
///
/// # Errors
/// [`Error::Device`] where the device is lost, or fails behind it.
pub fn tune(exe: &mut GpuExecutable, effort: &Effort, progress: &dyn Fn(u64, u64)) -> Result<()> {
    let families = families(exe.plan(), effort);
    // Where weights stream, their way is what takes the time.
    let streams = exe.memory().mapped_weights > 0;
    if families.is_empty() || streams || !takes(exe, TILE_ROWS[TILE_ROWS.len() - 1]) {
        return Ok(());
    }
    let before = exe.plan().tuning.clone();
    let name = kept_name(exe.plan(), exe.options(), effort);
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
            keep(name.as_deref(), &tuning);
            Ok(())
        }
        Err(error @ Error::Device(DeviceError::Lost { .. })) => {
            // The next process does without tuning, or it would lose the device again.
            keep(name.as_deref(), &before);
            tracing::warn!(
                "{}: was lost while kernels were measured; later starts take them as they were chosen",
                exe.plan().target.name
            );
            Err(error)
        }
        Err(error) => {
            tracing::warn!("{}: not tuned: {error}", exe.plan().target.name);
            exe.retune(before)
        }
    }
}

/// Keeps what is taken in later processes.
fn keep(name: Option<&str>, tuning: &Tuning) {
    if let (Some(name), Ok(data)) = (name, serde_json::to_vec(tuning)) {
        rusty_backend::cache::store(name, &data);
    }
}

/// Whether a step may have so many rows.
fn takes(exe: &GpuExecutable, rows: u32) -> bool {
    let most = exe.plan().row_budget() as u32;
    rows <= most && rows.div_ceil(PAGE_TOKENS as u32) <= exe.options().pages
}

struct Tuner<'a> {
    exe: &'a mut GpuExecutable,
    effort: &'a Effort,
    progress: &'a dyn Fn(u64, u64),
    /// All that was compiled so far.
    known: Pipelines,
    /// Logits of some steps, as guesses have them.
    right: BTreeMap<Case, Vec<f32>>,
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
        tuner.logits(Case::prompt(1))?;
        tuner.start = Instant::now();
        tuner.logits(Case::prompt(1))?;
        if tuner.start.elapsed() * STEPS > effort.limit {
            return Ok(None);
        }
        let large = tuner.large_tile_rows();
        let all = [1].into_iter().chain(FEW_ROWS).chain(TILE_ROWS);
        for rows in all.chain(large).collect::<BTreeSet<u32>>() {
            tuner.learn(Case::prompt(rows))?;
        }
        Ok(Some(tuner))
    }

    fn best(&mut self, families: &[ContractionFamily]) -> Result<Tuning> {
        let per_family = LANES.len() + UNITS.len() + usize::from(self.asks_ahead());
        self.total = 1 + (families.len() * per_family + 2) as u64;
        self.total += self.of_tiles() + self.of_attention();
        let mut best = self.exe.plan().tuning.clone();
        // Cuts are found for one row: kernels of several need not be compiled for each.
        let gemv_rows = std::mem::replace(&mut best.gemv_rows, 1);
        let mut seconds = self.seconds(&best, &[Case::prompt(1)])?[0];
        for family in families {
            (best, seconds) = self.best_teams(best, seconds, family)?;
        }
        let few = FEW_ROWS.map(Case::prompt);
        let few = self.crossing(&best, &few, |t, rows| t.gemv_rows = rows)?;
        best.gemv_rows = match few {
            Some(few) => few.max(1),
            // Not timed, but no kernel may be wrong.
            None => self.right_up_to(&best, gemv_rows)?,
        };
        let best = self.best_tiles(best)?;
        let best = self.best_attention(best, seconds)?;
        (self.progress)(self.total, self.total);
        Ok(best)
    }

    /// The best of a tuning, which takes some seconds for a row, and of those with other teams for a family; with its seconds.
    fn best_teams(
        &mut self,
        mut best: Tuning,
        mut seconds: f64,
        family: &ContractionFamily,
    ) -> Result<(Tuning, f64)> {
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
        Ok((best, seconds))
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
        self.best_of((now, seconds), others, Case::prompt(1))
    }

    /// The most rows of some steps up to which the former of two kernels is faster, where `set` sets up to which it
    /// is chosen: 0 where it never is, none where there was no time to find out.
    fn crossing(
        &mut self,
        best: &Tuning,
        cases: &[Case],
        set: impl Fn(&mut Tuning, u32),
    ) -> Result<Option<u32>> {
        let (mut former, mut latter) = (best.clone(), best.clone());
        set(&mut former, u32::MAX);
        set(&mut latter, 0);
        self.compile(&[former.clone(), latter.clone()])?;
        let former = self.seconds(&former, cases)?;
        let latter = self.seconds(&latter, cases)?;
        if self.is_late() {
            return Ok(None);
        }
        let both = former.iter().zip(&latter);
        let faster = both.take_while(|(f, l)| f.is_finite() && f <= l);
        let last = faster.count().checked_sub(1);
        Ok(Some(last.map_or(0, |last| cases[last].rows)))
    }

    /// Whether nothing more is to be tried.
    fn is_late(&self) -> bool {
        self.start.elapsed() > self.effort.limit
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
}
