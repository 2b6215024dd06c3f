//! The small model that runs on a device before a large one does: its steps, and how far what they give is from the oracle's.
//!
//! Two sequences run, first as they are, then each with an adapter of its own: both ends of the ranges of rows in layers and in
//! the output head, tiles cut in the middle, rows that decode alone and together with their keys split among cubes, and the largest logit,
//! chosen on the device.

use crate::delta_table::DeltaTable;
use crate::passes::select;
use crate::{
    BindOptions, Error, Executable, KvFormat, Plan, Result, RowResult, Sequence, SiteDelta,
    SlotData, SlotId, Step, Want, bind, compile,
};
use rusty_backend::{Device, Target};
use rusty_graph::interpret::{Interpreter, Matrix, SiteLora};
use rusty_graph::{AttentionValues, Graph, Op, Site, SiteId};
use rusty_loader::{Format, ModelFile};
use std::sync::Arc;

/// Chunks of the longer sequence's prompt and rows of each that want logits: few and many for layers and output head.
const CHUNKS: [(usize, usize); 2] = [(20, 6), (124, 40)];
/// Tokens decoded after it, beside as many of a sequence that has the first chunk only.
const DECODED: usize = 3;
/// Tokens of the longer sequence.
const TOKENS: usize = CHUNKS[0].0 + CHUNKS[1].0 + DECODED;
/// Tables of the adapters: two of the formats that engines hold them in, ranks that are no whole quartets.
const ADAPTERS: [(&str, usize); 2] = [("f16", 5), ("q8_0", 6)];

/// The shape of random models that takes a network's kinds of kernels.
pub(crate) fn shape(graph: &Graph) -> &'static str {
    let latent = |l: &rusty_graph::KvLayer| matches!(l.values, AttentionValues::OfKeys(_));
    if graph.kv.iter().any(latent) {
        return "deepseek-tiny";
    }
    match graph.nodes.iter().any(|n| matches!(n.op, Op::Route(_))) {
        true => "qwen3moe-tiny",
        false => "qwen3-tiny",
    }
}

/// A small model of random weights.
pub(crate) struct SmallModel {
    pub(crate) file: Box<dyn ModelFile>,
    pub(crate) graph: Graph,
    adapters: Vec<Adapter>,
    tokens: Vec<u32>,
}

/// What both sequences are run with, and the logits that the oracle gives them.
pub(crate) struct Pass {
    slots: [SlotId; 2],
    logits: [Matrix; 2],
}

/// Rows of a step, each of a sequence and position, of which the last `wanted` want logits.
struct Rows {
    rows: Vec<(usize, usize)>,
    wanted: usize,
}

impl SmallModel {
    /// One of a shape and format, with adapters or without; none where random weights are not made of the format.
    pub(crate) fn new(shape: &str, format: &str, adapted: bool) -> Result<Option<Self>> {
        let Ok(file) = rusty_loader::random::model(shape, format) else {
            return Ok(None);
        };
        let graph = rusty_graph::arch::build(&*file)?;
        let tokens = (0..TOKENS as u32).map(|i| (i * 37 + 11) % graph.vocab);
        let adapters = ADAPTERS.iter().filter(|_| adapted);
        let adapters = adapters.map(|(format, rank)| {
            let made = Adapter::new(&graph.sites, format, *rank);
            made.ok_or_else(|| Error::Step(format!("no adapter can be made in {format}")))
        });
        Ok(Some(Self {
            adapters: adapters.collect::<Result<_>>()?,
            tokens: tokens.collect(),
            file,
            graph,
        }))
    }

    /// What an executable must be bound for.
    pub(crate) fn options(&self, kv: KvFormat) -> BindOptions {
        BindOptions {
            pages: pages().concat().len() as u32,
            kv,
            slots: self.adapters.len() as u32,
        }
    }

    /// Its kernels, so chosen that few rows take all tiles of matrix units.
    pub(crate) fn plan(&self, target: &Target) -> Result<Plan> {
        let mut plan = compile(&self.graph, target)?;
        plan.tuning.small_tile_rows = 32;
        plan.tuning.middle_tile_rows = 64;
        plan.tuning.large_tile_lanes = 1024;
        select::again(&mut plan)?;
        Ok(plan)
    }

    /// The oracle's answers.
    pub(crate) fn passes(&self) -> Result<Vec<Pass>> {
        let oracle = Interpreter::new(&self.graph, &*self.file)?;
        let logits = |deltas: &[SiteLora]| -> Result<Matrix> {
            Ok(oracle.run(&self.tokens, deltas)?.logits().clone())
        };
        let plain = logits(&[])?;
        let mut passes = vec![Pass {
            slots: [SlotId::BASE; 2],
            logits: [plain.clone(), plain],
        }];
        if let [long, short] = &self.adapters[..] {
            passes.push(Pass {
                slots: [SlotId(1), SlotId(2)],
                logits: [logits(&long.exact)?, logits(&short.exact)?],
            });
        }
        Ok(passes)
    }

    /// The largest [`distance`] from the oracle of what a device gives that is taken to be `target`.
    pub(crate) fn apart(
        &self,
        passes: &[Pass],
        target: &Target,
        device: &Device,
        kv: KvFormat,
    ) -> Result<f64> {
        let plan = self.plan(target)?;
        let mut exe = bind(plan, &*self.file, device, &self.options(kv))?;
        for (slot, adapter) in (1..).zip(&self.adapters) {
            exe.attach(SlotId(slot), adapter.data.clone())?;
        }
        let mut all = Vec::new();
        for pass in passes {
            for step in steps() {
                all.extend(self.distances(&mut *exe, pass, &step)?);
            }
        }
        Ok(largest(all.into_iter()))
    }

    /// How far each wanted row's logits are from the oracle's, and their largest from that which the device chose.
    fn distances(&self, exe: &mut dyn Executable, pass: &Pass, step: &Rows) -> Result<Vec<f64>> {
        let mut all = Vec::new();
        let logits = self.run(exe, pass, step, Want::Logits)?;
        // The same rows once more write the same keys and values.
        let chosen = self.run(exe, pass, step, Want::ArgMax)?;
        for ((row, logits), (_, chosen)) in logits.into_iter().zip(chosen) {
            let RowResult::Logits(logits) = logits else {
                return Err(Error::Step("a row that wants logits got none".into()));
            };
            let (sequence, position) = step.rows[row as usize];
            all.push(distance(&logits, pass.logits[sequence].row(position)));
            all.push(match chosen {
                RowResult::Token(token) => below_largest(&logits, token),
                _ => f64::NAN,
            });
        }
        Ok(all)
    }

    /// Runs rows of which the last ones want something.
    fn run(
        &self,
        exe: &mut dyn Executable,
        pass: &Pass,
        Rows { rows, wanted }: &Rows,
        want: Want,
    ) -> Result<Vec<(u32, RowResult)>> {
        let pages = pages();
        let sequence = |pages| Sequence {
            pages,
            rope_length: TOKENS as u32,
        };
        let wants = |i| match i + wanted >= rows.len() {
            true => want,
            false => Want::Nothing,
        };
        let step = Step {
            tokens: &rows.iter().map(|r| self.tokens[r.1]).collect::<Vec<_>>(),
            positions: &rows.iter().map(|r| r.1 as u32).collect::<Vec<_>>(),
            sequence_of: &rows.iter().map(|r| r.0 as u32).collect::<Vec<_>>(),
            sequences: &[sequence(&pages[0]), sequence(&pages[1])],
            slots: &rows.iter().map(|r| pass.slots[r.0]).collect::<Vec<_>>(),
            wants: &(0..rows.len()).map(wants).collect::<Vec<_>>(),
        };
        let results = exe.run(&step)?.results;
        match results.len() == *wanted {
            true => Ok(results),
            false => Err(Error::Step("a row did not get what it wants".into())),
        }
    }
}

/// Pages of the longer sequence, and of the shorter one behind them.
fn pages() -> [Vec<u32>; 2] {
    let long = BindOptions::pages_for(TOKENS);
    let short = BindOptions::pages_for(CHUNKS[0].0 + DECODED);
    [(0..long).collect(), (long..long + short).collect()]
}

/// The longer sequence's prompt, the shorter one's, and what both decode, first alone and then together.
fn steps() -> Vec<Rows> {
    let mut steps = Vec::new();
    let mut first = 0;
    for (count, wanted) in CHUNKS {
        let rows = (first..first + count).map(|at| (0, at)).collect();
        steps.push(Rows { rows, wanted });
        first += count;
    }
    let rows = (0..CHUNKS[0].0).map(|at| (1, at)).collect();
    steps.push(Rows { rows, wanted: 1 });
    for step in 0..DECODED {
        let rows = [(0, first + step), (1, CHUNKS[0].0 + step)];
        // One row has kernels of its own.
        for rows in rows.chunks(if step == 0 { 1 } else { 2 }) {
            let (rows, wanted) = (rows.to_vec(), rows.len());
            steps.push(Rows { rows, wanted });
        }
    }
    steps
}

/// An adapter at every site, as a device takes it and as the oracle does.
struct Adapter {
    data: Arc<SlotData>,
    exact: Vec<SiteLora>,
}

impl Adapter {
    /// None where tables of the format cannot be made.
    fn new(sites: &[Site], format: &str, rank: usize) -> Option<Self> {
        let format = Format::by_name(format)?;
        let mut data = SlotData::default();
        let mut exact = Vec::new();
        for (id, site) in (0..).map(SiteId).zip(sites) {
            let (k, n) = (site.k as usize, site.n as usize);
            let values: Vec<f32> = (0..rank * k).map(|i| spread(i, 0.1)).collect();
            let a = DeltaTable::ranks(format, rank, k, &values)?;
            let value = |c: usize, r: usize| spread(c * rank + r, 0.3);
            let b = DeltaTable::panels(format, n, rank, value)?;
            let mut stored = vec![0.0; n * rank];
            for (c, row) in stored.chunks_exact_mut(rank).enumerate() {
                b.read_panel_row(c, rank, row);
            }
            exact.push(SiteLora {
                site: id,
                a: a.values(),
                b: stored,
                scale: 1.0,
            });
            let delta = SiteDelta {
                rank: rank as u32,
                a: Some(a),
                b: Some(b),
                scale: vec![1.0; rank].into(),
                ..SiteDelta::default()
            };
            data.sites.push((id, delta));
        }
        let data = Arc::new(data);
        Some(Self { data, exact })
    }
}

/// The `i`-th of numbers spread evenly over `-most..most`, neighbours far apart: multiples of the golden ratio.
fn spread(i: usize, most: f32) -> f32 {
    let whole = (i as u32 + 1).wrapping_mul(0x9e37_79b9);
    (whole as f32 / 2f32.powi(31) - 1.0) * most
}

/// Half the squared distance of `a` from `b`, relative to `b`.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    let apart = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    apart.sum::<f64>() / (2.0 * b.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>())
}

/// How far a token's logit is below the largest, as half a square relative to the logits' mean square: comparable to a [`distance`].
fn below_largest(logits: &[f32], token: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let square = logits.iter().map(|l| f64::from(*l).powi(2)).sum::<f64>() / logits.len() as f64;
    let of = logits.get(token as usize).copied().unwrap_or(f32::NAN);
    f64::from(most - of).powi(2) / (2.0 * square)
}

/// The largest of some numbers; what is no number is larger than all.
pub(crate) fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |a: f64, b| match a.is_nan() || b <= a {
        true => a,
        false => b,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::self_test::allowed;

    #[test]
    fn numbers_that_are_none_are_apart() {
        assert!(distance(&[1.0, 2.0], &[1.0, 2.0]) < 1e-9);
        assert!(distance(&[2.0, 4.0], &[1.0, 2.0]) > 0.4);
        let most = allowed(KvFormat::F16);
        for bad in [f32::NAN, f32::INFINITY] {
            let apart = distance(&[1.0, bad], &[1.0, 2.0]);
            let trusted = largest([0.0, apart, 1e-5].into_iter()) <= most;
            assert!(!trusted, "{bad}: {apart}");
        }
        assert!(largest([f64::NAN, 0.2].into_iter()).is_nan());
        // The largest, one that is as good as that, another and none.
        let logits = [1.0, 4.0, 3.99, -2.0];
        assert!(below_largest(&logits, 1) == 0.0 && below_largest(&logits, 2) < most);
        assert!(below_largest(&logits, 0) > most && below_largest(&logits, 4).is_nan());
    }

    /// What adapters change must be far more than what is allowed, or their kernels would not be tested.
    #[test]
    fn adapters_change_much() {
        for shape in ["qwen3-tiny", "qwen3moe-tiny", "deepseek-tiny"] {
            let model = SmallModel::new(shape, "q8_0", true);
            let model = model.expect("built").expect("made");
            let passes = model.passes().expect("run");
            let [plain, adapted] = &passes[..] else {
                panic!("two passes")
            };
            for sequence in 0..2 {
                let (a, b) = (&adapted.logits[sequence], &plain.logits[sequence]);
                let apart = (0..TOKENS).map(|row| distance(a.row(row), b.row(row)));
                let least = apart.fold(f64::INFINITY, f64::min);
                assert!(least > 0.02, "{shape} {sequence}: {least}");
            }
        }
    }
}
