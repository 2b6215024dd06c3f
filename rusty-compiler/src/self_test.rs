//! What a GPU gets right: before a model first runs on a device, a small one of the same formats does, and is compared with
//! the oracle. Drivers and compilers have bugs; a slower answer is better than a wrong one.
//!
//! The small model has random weights and takes the kernels of decoders of dense layers: both ends of the ranges of rows in
//! layers and in the output head, tiles cut in the middle, two sequences that decode together with their keys split among cubes. Experts,
//! latent attention, the choice of the largest logit and adapters are not tested so, nor formats that random weights are not made of.
//! What was found is kept for the next process of the same build, device and driver.

use crate::{
    BindOptions, Error, Executable, KvFormat, Result, RowResult, Sequence, SlotId, Step, Want,
    bind, compile, device_cache,
};
use rusty_backend::{Device, Target, cache};
use rusty_graph::interpret::Interpreter;
use rusty_graph::{Graph, WeightDecl};
use rusty_loader::ModelFile;
use std::collections::BTreeSet;

/// The small model.
pub(crate) const SHAPE: &str = "qwen3-tiny";
/// Chunks of the longer sequence's prompt and rows of each that want logits: few and many for layers and output head.
const CHUNKS: [(usize, usize); 2] = [(20, 6), (124, 40)];
/// Tokens decoded after it, beside as many of a sequence that has the first chunk only.
const DECODED: usize = 3;
/// Tokens of the longer sequence.
const TOKENS: usize = CHUNKS[0].0 + CHUNKS[1].0 + DECODED;

/// Names what it leaves out of a target's facts.
type Reduction = (&'static str, fn(&mut Target));

/// In the order in which they are tried.
const REDUCTIONS: [Reduction; 3] = [
    ("nothing", |_| {}),
    ("matrix units", |t| t.matrix_tiles.clear()),
    ("planes and matrix units", |t| {
        t.matrix_tiles.clear();
        t.plane_ops = false;
    }),
];

/// Half the squared distance of logits from the oracle's, relative to theirs, that is taken for rounding (one less the cosine, where
/// lengths agree): products in bf16 make some hundredths of the last.
pub(crate) fn allowed(kv: KvFormat) -> f64 {
    match kv {
        KvFormat::Q4_0 => 0.1,
        KvFormat::Q8_0 => 5e-3,
        KvFormat::F32 | KvFormat::F16 | KvFormat::Bf16 => 1e-3,
    }
}

/// The facts of a device, without those whose kernels go wrong there in a format that `weights` have. A CPU is trusted.
///
/// # Errors
/// [`Error::Target`] where a device is wrong whatever is left out; [`Error::Device`] where it fails.
pub fn trusted(device: &Device, weights: &[WeightDecl], kv: KvFormat) -> Result<Target> {
    let facts = device.target();
    let mut target = facts.clone();
    if facts.is_cpu() {
        return Ok(target);
    }
    let mut least = 0;
    for format in formats(weights) {
        least = least.max(reduction(device, format, kv)?);
    }
    let (without, reduce) = REDUCTIONS[least];
    if least > 0 {
        tracing::warn!(
            "{}: its self-test goes wrong with them, so it does without {without}",
            facts.name
        );
    }
    reduce(&mut target);
    Ok(target)
}

/// Formats of matrices.
pub(crate) fn formats(weights: &[WeightDecl]) -> BTreeSet<&'static str> {
    let matrices = weights.iter().filter(|w| w.shape.len() > 1);
    matrices.map(|w| w.format.name()).collect()
}

/// The first reduction with which a format is right.
fn reduction(device: &Device, format: &str, kv: KvFormat) -> Result<usize> {
    let what = format!("{format}-{}", kv.name());
    let name = device_cache::name("self-test", device.target(), &what);
    let kept = name.as_deref().and_then(cache::load);
    if let Some(&[kept]) = kept.as_deref()
        && usize::from(kept) < REDUCTIONS.len()
    {
        return Ok(kept.into());
    }
    let Ok(file) = rusty_loader::random::model(SHAPE, format) else {
        tracing::debug!("{format} is not tested: random weights are not made of it");
        return Ok(0);
    };
    let graph = rusty_graph::arch::build(&*file)?;
    let tokens = (0..TOKENS as u32).map(|i| (i * 37 + 11) % graph.vocab);
    let tokens: Vec<u32> = tokens.collect();
    let oracle = Interpreter::new(&graph, &*file)?.run(&tokens, &[])?;
    let right = first_right(device.target(), format, allowed(kv), |target| {
        let mut exe = small(&*file, &graph, target, device, kv)?;
        let rows = all_logits(&mut *exe, &tokens)?;
        let apart = rows
            .iter()
            .map(|(row, logits)| distance(logits, oracle.logits().row(*row)));
        Ok(largest(apart))
    })?;
    if let Some(name) = name {
        cache::store(&name, &[right as u8]);
    }
    Ok(right)
}

/// The first reduction of `facts` under which results are not too far `apart`, or kernels are taken at all.
fn first_right(
    facts: &Target,
    format: &str,
    allowed: f64,
    mut apart: impl FnMut(&Target) -> Result<f64>,
) -> Result<usize> {
    let mut before: Option<(Target, String)> = None;
    for (at, (without, reduce)) in REDUCTIONS.iter().enumerate() {
        let mut target = facts.clone();
        reduce(&mut target);
        // Nothing to leave out is nothing to try.
        if before.as_ref().is_some_and(|(b, _)| *b == target) {
            continue;
        }
        let wrong = match apart(&target) {
            Ok(worst) if worst <= allowed => return Ok(at),
            Ok(worst) => format!("logits are {worst:.1e} apart"),
            Err(error) if is_refusal(&error) => error.to_string(),
            Err(error) => return Err(error),
        };
        tracing::warn!(
            "{}: kernels go wrong in {format} without {without}: {wrong}",
            facts.name
        );
        before = Some((target, wrong));
    }
    let wrong = before.map_or_else(String::new, |(_, wrong)| wrong);
    Err(Error::Target {
        target: facts.name.clone(),
        kernel: "self-test".into(),
        reason: format!(
            "goes wrong in {format} ({wrong}): update its driver, or take another device"
        ),
    })
}

/// Whether a kernel was refused, as opposed to a device that is lost or full.
pub(crate) fn is_refusal(error: &Error) -> bool {
    use rusty_backend::Error as Backend;
    matches!(
        error,
        Error::Target { .. } | Error::Device(Backend::Kernel { .. } | Backend::Launch { .. })
    )
}

/// The largest of some numbers; what is no number is larger than all.
fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |a: f64, b| match a.is_nan() || b <= a {
        true => a,
        false => b,
    })
}

/// Pages of the longer sequence, and of the shorter one behind them.
fn pages() -> [Vec<u32>; 2] {
    let long = BindOptions::pages_for(TOKENS);
    let short = BindOptions::pages_for(CHUNKS[0].0 + DECODED);
    [(0..long).collect(), (long..long + short).collect()]
}

fn small(
    file: &dyn ModelFile,
    graph: &Graph,
    target: &Target,
    device: &Device,
    kv: KvFormat,
) -> Result<Box<dyn Executable>> {
    let options = BindOptions {
        pages: pages().concat().len() as u32,
        kv,
        slots: 0,
    };
    bind(compile(graph, target)?, file, device, &options)
}

/// Logits of the rows that want them, with their positions.
fn all_logits(exe: &mut dyn Executable, tokens: &[u32]) -> Result<Vec<(usize, Vec<f32>)>> {
    let mut all = Vec::new();
    let mut first = 0;
    for (count, wanted) in CHUNKS {
        let rows: Vec<_> = (first..first + count).map(|row| (0, row)).collect();
        all.extend(some_logits(exe, tokens, &rows, wanted)?);
        first += count;
    }
    let prompt: Vec<_> = (0..CHUNKS[0].0).map(|row| (1, row)).collect();
    all.extend(some_logits(exe, tokens, &prompt, 1)?);
    for step in 0..DECODED {
        let rows = [(0, first + step), (1, CHUNKS[0].0 + step)];
        all.extend(some_logits(exe, tokens, &rows, 2)?);
    }
    Ok(all)
}

/// Runs rows, each of a sequence and position; the last `wanted` want logits.
fn some_logits(
    exe: &mut dyn Executable,
    tokens: &[u32],
    rows: &[(u32, usize)],
    wanted: usize,
) -> Result<Vec<(usize, Vec<f32>)>> {
    let pages = pages();
    let sequence = |pages| Sequence {
        pages,
        rope_length: TOKENS as u32,
    };
    let want = |i| match i + wanted >= rows.len() {
        true => Want::Logits,
        false => Want::Nothing,
    };
    let step = Step {
        tokens: &rows.iter().map(|(_, p)| tokens[*p]).collect::<Vec<_>>(),
        positions: &rows.iter().map(|(_, p)| *p as u32).collect::<Vec<_>>(),
        sequence_of: &rows.iter().map(|(s, _)| *s).collect::<Vec<_>>(),
        sequences: &[sequence(&pages[0]), sequence(&pages[1])],
        slots: &vec![SlotId::BASE; rows.len()],
        wants: &(0..rows.len()).map(want).collect::<Vec<_>>(),
    };
    let results = exe.run(&step)?.results.into_iter();
    let logits = results.filter_map(|(row, result)| match result {
        RowResult::Logits(logits) => Some((rows[row as usize].1, logits)),
        _ => None,
    });
    let logits: Vec<_> = logits.collect();
    match logits.len() == wanted {
        true => Ok(logits),
        false => Err(Error::Step("a row that wants logits got none".into())),
    }
}

/// Half the squared distance of `a` from `b`, relative to `b`.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    let apart = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    let whole = b.iter().map(|b| f64::from(*b).powi(2));
    apart.sum::<f64>() / (2.0 * whole.sum::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    fn refused() -> Result<f64> {
        Err(Error::Device(rusty_backend::Error::Kernel {
            device: "test".into(),
            entry: "gemm".into(),
            log: "no such instruction".into(),
        }))
    }

    /// What goes wrong or is not taken is left out, and no more than that.
    #[test]
    fn the_first_right_reduction_is_taken() {
        let facts = Target::named("h200").expect("target");
        let right = |wrong: fn(&Target) -> bool| {
            let apart = |target: &Target| Ok(if wrong(target) { 0.5 } else { 1e-6 });
            first_right(&facts, "q4_0", 1e-3, apart)
        };
        assert_eq!(right(|_| false).expect("right"), 0);
        assert_eq!(right(|t| !t.matrix_tiles.is_empty()).expect("right"), 1);
        assert_eq!(right(|t| t.plane_ops).expect("right"), 2);
        let apart = |t: &Target| match t.matrix_tiles.is_empty() {
            true => Ok(1e-6),
            false => refused(),
        };
        assert_eq!(first_right(&facts, "q4_0", 1e-3, apart).expect("right"), 1);
        let wrong = right(|_| true).expect_err("wrong").to_string();
        assert!(
            wrong.contains("q4_0") && wrong.contains("driver"),
            "{wrong}"
        );
        // Without matrix units there are two ways; a device that is full has none.
        let mut plain = facts.clone();
        plain.matrix_tiles.clear();
        let mut tried = 0;
        let wrong = first_right(&plain, "q4_0", 1e-3, |_| {
            tried += 1;
            refused()
        });
        assert!(wrong.is_err() && tried == 2, "{tried}");
        let full = first_right(&facts, "q4_0", 1e-3, |_| Err(Error::Step("full".into())));
        assert!(full.expect_err("full").to_string().contains("full"));
    }
}
