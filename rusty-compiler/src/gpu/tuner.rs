//! Measures choices among kernels where a model first runs on a device, and keeps what was found for the next process.
//!
//! Whole steps are timed on the bound weights, one change at a time: what a kernel costs beside its neighbours is what
//! counts. First how matrix-vector products of each family are cut, then up to how many rows they beat tiles, then
//! where matrix units take the larger tile. The cost model bounds what is tried: families whose weights are few bytes
//! of a step cannot gain much, and a model of few bytes is not measured at all. A candidate must give the guesses'
//! logits before it is timed.

use super::GpuExecutable;
use super::prepare::{Pipelines, compile};
use super::stage::Stage;
use crate::plan::{Family, Plan, Teams, Tuning};
use crate::self_test::distance;
use crate::{
    Error, Executable, PAGE_TOKENS, Result, RowResult, Sequence, SlotId, Step, Want, device_cache,
};
use rusty_backend::cuda::nvrtc;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Rows for which matrix-vector products and tiles are compared.
const FEW_ROWS: [u32; 4] = [2, 4, 8, 16];
/// Rows for which the tiles of matrix units are compared.
const TILE_ROWS: [u32; 3] = [32, 64, 128];
/// Outputs of a team, and units of a cube.
const LANES: [u32; 4] = [1, 2, 4, 8];
const UNITS: [u32; 3] = [64, 128, 256];
/// A candidate replaces what was better so far where it takes less than this part of its time.
const BETTER: f64 = 0.99;
/// Largest distance of logits: matrix units round to bf16.
const ROUNDING: f64 = 1e-3;
/// Time after which a step is not repeated.
const LONG_ENOUGH: Duration = Duration::from_millis(200);

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Bytes of weights of a step below which a family is left as guessed.
    pub least_bytes: u64,
    /// Cubes of a launch below which a cut is not tried, because processors would be idle.
    pub fewest_cubes: u32,
    /// Steps of which the fastest counts.
    pub repetitions: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            least_bytes: 16 << 20,
            fewest_cubes: 64,
            repetitions: 12,
        }
    }
}

/// Families of a plan with the bytes that a step reads of each, those that are worth it, most bytes first.
fn families(plan: &Plan, effort: &Effort) -> Vec<Family> {
    let mut bytes: BTreeMap<(u32, u32, u64), (Family, u64)> = BTreeMap::new();
    for family in plan.kernels.iter().filter_map(|k| Family::of(plan, k)) {
        let key = (family.k, family.n, family.bytes);
        bytes.entry(key).or_insert((family, 0)).1 += family.bytes;
    }
    let mut all: Vec<_> = bytes.into_values().collect();
    all.retain(|(_, bytes)| *bytes >= effort.least_bytes);
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    all.into_iter().map(|(family, _)| family).collect()
}

/// Where it is kept what was found for a plan.
fn kept_name(plan: &Plan, effort: &Effort) -> Option<String> {
    let families = families(plan, effort);
    let what = format!("{families:?} {}", plan.target.matrix_tiles.len());
    let digest = nvrtc::digest(&what);
    (!families.is_empty()).then(|| device_cache::name("tuned", &plan.target, &digest))?
}

/// What an earlier process found for a plan.
pub fn kept(plan: &Plan, effort: &Effort) -> Option<Tuning> {
    let kept = rusty_backend::cache::load(&kept_name(plan, effort)?)?;
    serde_json::from_slice(&kept).ok()
}

/// Tunes an executable that holds nothing yet, and keeps what was found. `progress` is told what was measured and how
/// much that is in all.
///
/// # Errors
/// [`Error::Device`] where the device fails.
pub fn tune(exe: &mut GpuExecutable, effort: &Effort, progress: &dyn Fn(u64, u64)) -> Result<()> {
    let families = families(exe.plan(), effort);
    // Where weights stream, their way is what takes the time.
    if families.is_empty() || exe.memory().mapped_weights > 0 {
        return Ok(());
    }
    let before = exe.plan().tuning.clone();
    let name = kept_name(exe.plan(), effort);
    let found = Tuner::new(exe, effort, progress).and_then(|mut t| t.best(&families));
    match found {
        Ok(tuning) => {
            tracing::debug!(?tuning, "tuned");
            if let (Some(name), Ok(data)) = (name, serde_json::to_vec(&tuning)) {
                rusty_backend::cache::store(&name, &data);
            }
            exe.retune(tuning)
        }
        Err(error) => {
            tracing::warn!("{}: not tuned: {error}", exe.plan().target.name);
            exe.retune(before)
        }
    }
}

struct Tuner<'a> {
    exe: &'a mut GpuExecutable,
    effort: &'a Effort,
    progress: &'a dyn Fn(u64, u64),
    /// All that was compiled so far.
    known: Pipelines,
    /// Logits of the last of some rows, as guesses have them.
    right: BTreeMap<u32, Vec<f32>>,
    measured: u64,
    total: u64,
}

impl<'a> Tuner<'a> {
    fn new(
        exe: &'a mut GpuExecutable,
        effort: &'a Effort,
        progress: &'a dyn Fn(u64, u64),
    ) -> Result<Self> {
        let mut tuner = Self {
            known: exe.pipelines().clone(),
            exe,
            effort,
            progress,
            right: BTreeMap::new(),
            measured: 0,
            total: 0,
        };
        for rows in [1].into_iter().chain(FEW_ROWS).chain(TILE_ROWS) {
            if tuner.takes(rows) {
                let logits = tuner.logits(rows)?;
                tuner.right.insert(rows, logits);
            }
        }
        Ok(tuner)
    }

    fn best(&mut self, families: &[Family]) -> Result<Tuning> {
        let tiles = self.has_tiles();
        let per_family = LANES.len() + UNITS.len() - 1;
        self.total = 1 + (families.len() * per_family + 2 + 2 * usize::from(tiles)) as u64;
        let mut best = self.exe.plan().tuning.clone();
        let mut seconds = self.seconds(&best, &[1])?[0];
        for family in families {
            // Lanes first, for the guess's units; then units for the best lanes.
            let now = best.teams(*family);
            let cuts = LANES.map(|lanes| Teams { lanes, ..now });
            (best, seconds) = self.better(best, seconds, *family, &cuts)?;
            let now = best.teams(*family);
            let cuts = UNITS.map(|units| Teams { units, ..now });
            (best, seconds) = self.better(best, seconds, *family, &cuts)?;
        }
        best.gemv_rows = self
            .crossing(&best, &FEW_ROWS, |t, rows| t.gemv_rows = rows)?
            .max(1);
        if tiles {
            best.small_tile_rows =
                self.crossing(&best, &TILE_ROWS, |t, rows| t.small_tile_rows = rows)?;
        }
        (self.progress)(self.total, self.total);
        Ok(best)
    }

    /// The best of a tuning and of those that cut a family otherwise, with its seconds.
    fn better(
        &mut self,
        now: Tuning,
        seconds: f64,
        family: Family,
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
    /// is chosen.
    fn crossing(
        &mut self,
        best: &Tuning,
        rows: &[u32],
        set: impl Fn(&mut Tuning, u32),
    ) -> Result<u32> {
        let rows: Vec<u32> = rows.iter().copied().filter(|r| self.takes(*r)).collect();
        let (mut former, mut latter) = (best.clone(), best.clone());
        set(&mut former, u32::MAX);
        set(&mut latter, 0);
        self.compile(&[former.clone(), latter.clone()])?;
        let former = self.seconds(&former, &rows)?;
        let latter = self.seconds(&latter, &rows)?;
        let faster = former.iter().zip(&latter).take_while(|(f, l)| f <= l);
        Ok(faster.count().checked_sub(1).map_or(0, |last| rows[last]))
    }

    /// Whether the plan has a choice of tiles.
    fn has_tiles(&self) -> bool {
        let mut variants = self.exe.plan().kernels.iter().flat_map(|k| &k.variants);
        variants.any(|v| v.name == "gemm_matrix_32")
    }

    /// Whether a step may have so many rows.
    fn takes(&self, rows: u32) -> bool {
        let plan = self.exe.plan();
        let most = plan.max_rows(rusty_graph::Dim::Sym(rusty_graph::SymId(0)));
        rows <= most && rows.div_ceil(PAGE_TOKENS as u32) <= self.exe.pages()
    }

    fn fills(&self, family: Family, teams: Teams) -> bool {
        let target = &self.exe.plan().target;
        let cubes = family.n / (teams.units / target.plane_size.max(1)).max(1) / teams.lanes;
        teams.units <= target.max_units && cubes >= self.effort.fewest_cubes
    }

    /// Compiles what some tunings need, all at once.
    fn compile(&mut self, tunings: &[Tuning]) -> Result<()> {
        let lowered: Vec<(Plan, Vec<Stage>)> = tunings
            .iter()
            .filter_map(|t| self.lowered(t).transpose())
            .collect::<Result<_>>()?;
        let stages = lowered.iter().flat_map(|(_, stages)| stages);
        let target = &self.exe.plan().target;
        let made = compile(stages, target, self.exe.device(), &self.known)?;
        self.known.extend(made);
        Ok(())
    }

    /// A tuning's plan and launches; none where the device cannot run them.
    fn lowered(&self, tuning: &Tuning) -> Result<Option<(Plan, Vec<Stage>)>> {
        match self.exe.tuned(tuning.clone(), false) {
            Err(Error::Target { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Seconds of the fastest step of some numbers of rows; infinite where kernels do not run or go wrong.
    fn seconds(&mut self, tuning: &Tuning, rows: &[u32]) -> Result<Vec<f64>> {
        self.measured += 1;
        (self.progress)(self.measured.min(self.total), self.total);
        let Some((plan, stages)) = self.lowered(tuning)? else {
            return Ok(vec![f64::INFINITY; rows.len()]);
        };
        let pipelines = compile(&stages, &plan.target, self.exe.device(), &self.known)?;
        self.exe.adopt(plan, stages, pipelines);
        rows.iter().map(|r| self.fastest(*r)).collect()
    }

    fn fastest(&mut self, rows: u32) -> Result<f64> {
        let logits = self.logits(rows)?;
        let apart = self.right.get(&rows).map_or(0.0, |r| distance(&logits, r));
        if apart.is_nan() || apart > ROUNDING {
            tracing::warn!(rows, apart, "kernels that were tried go wrong");
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

    fn logits(&mut self, rows: u32) -> Result<Vec<f32>> {
        match self.step(rows, Want::Logits)? {
            RowResult::Logits(logits) => Ok(logits),
            _ => Err(Error::Step("a row that wants logits got none".into())),
        }
    }

    /// Runs a prompt of some rows; the last wants something.
    fn step(&mut self, rows: u32, want: Want) -> Result<RowResult> {
        let vocab = self.exe.plan().vocab;
        let each: Vec<u32> = (0..rows).collect();
        let pages: Vec<u32> = (0..rows.div_ceil(PAGE_TOKENS as u32)).collect();
        let mut wants = vec![Want::Nothing; rows as usize];
        wants[rows as usize - 1] = want;
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
        let result = self.exe.run(&step)?.results.pop();
        let missing = || Error::Step("a row that wants something got nothing".into());
        result.map(|(_, result)| result).ok_or_else(missing)
    }
}
