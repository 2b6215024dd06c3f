//! What a GPU gets right: before a model first runs on a device, a small one of the same formats does, and is compared with
//! the oracle. Drivers and compilers have bugs; a slower answer is better than a wrong one.
//!
//! The small model has random weights and takes every kind of kernel that a decoder of dense layers has: both ends of the
//! ranges of rows, tiles cut in the middle, decoding with keys split among cubes. Experts, latent attention and adapters are not
//! tested so. What was found is kept for the next process of the same build, device and driver.

use crate::{
    BindOptions, Error, Executable, KvFormat, Result, RowResult, Sequence, SlotId, Step, Want,
    bind, compile,
};
use rusty_backend::{Device, Target, cache};
use rusty_graph::interpret::Interpreter;
use rusty_graph::{Graph, WeightDecl};
use rusty_loader::ModelFile;
use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

/// The small model.
const SHAPE: &str = "qwen3-tiny";
/// Its prompt, in chunks for each kernel of many rows, and tokens decoded after it, at a depth that is split.
const CHUNKS: [usize; 2] = [20, 124];
const DECODED: usize = 3;
/// How far a row of logits may point elsewhere, as one less the cosine: rounding to bf16 makes a tenth of it.
const APART: f64 = 1e-3;

/// Names what it leaves out of a target's facts.
type Reduction = (&'static str, fn(&mut Target));

/// In the order in which they are tried.
const REDUCTIONS: [Reduction; 3] = [
    ("", |_| {}),
    ("matrix units", |t| t.matrix_tiles.clear()),
    ("planes", |t| {
        t.matrix_tiles.clear();
        t.plane_ops = false;
    }),
];

/// The facts of a device, without those whose kernels go wrong there in a format that `weights` have. A CPU is trusted.
///
/// # Errors
/// [`Error::Target`] where a device is wrong whatever is left out; [`Error::Device`] where it fails.
pub fn trusted(device: &Device, weights: &[WeightDecl]) -> Result<Target> {
    let facts = device.target();
    if facts.is_cpu() {
        return Ok(facts.clone());
    }
    let formats: BTreeSet<&'static str> = weights.iter().map(|w| w.format.name()).collect();
    let mut least = 0;
    for format in formats {
        least = least.max(reduction(device, format, least)?);
    }
    let mut target = facts.clone();
    REDUCTIONS[least].1(&mut target);
    Ok(target)
}

/// The first reduction from `least` on with which a format is right.
fn reduction(device: &Device, format: &str, least: usize) -> Result<usize> {
    let name = cache_name(device.target(), format);
    let kept = name.as_deref().and_then(cache::load);
    if let Some(&[kept]) = kept.as_deref()
        && usize::from(kept) < REDUCTIONS.len()
    {
        return Ok(usize::from(kept).max(least));
    }
    let Ok(file) = rusty_loader::random::model(SHAPE, format) else {
        // A format that random weights are not made of, as are norms' and those of some checkpoints.
        return Ok(least);
    };
    let graph = rusty_graph::arch::build(&*file)?;
    let tokens: Vec<u32> = (0..CHUNKS.iter().sum::<usize>() + DECODED)
        .map(|i| (i as u32 * 37 + 11) % graph.vocab)
        .collect();
    let oracle = Interpreter::new(&graph, &*file)?.run(&tokens, &[])?;
    let right = first_right(device.target(), format, least, |target| {
        let rows = logits(&*file, &graph, target, device, &tokens)?;
        let apart = rows
            .iter()
            .map(|(row, logits)| one_less_cosine(logits, oracle.logits().row(*row)));
        Ok(largest(apart))
    })?;
    if let Some(name) = name {
        cache::store(&name, &[right as u8]);
    }
    Ok(right)
}

/// The first reduction from `least` on of `facts` under which results are not too far `apart`.
fn first_right(
    facts: &Target,
    format: &str,
    least: usize,
    mut apart: impl FnMut(&Target) -> Result<f64>,
) -> Result<usize> {
    let mut before = None;
    for (at, (_, reduce)) in REDUCTIONS.iter().enumerate().skip(least) {
        let mut target = facts.clone();
        reduce(&mut target);
        // Nothing to leave out is nothing to try.
        if before.as_ref().is_some_and(|(b, _)| *b == target) {
            continue;
        }
        let worst = apart(&target)?;
        if worst <= APART {
            return Ok(at);
        }
        let next = REDUCTIONS.get(at + 1).map_or("nothing else", |r| r.0);
        tracing::warn!(
            "{}: kernels go wrong in {format} (1 - cosine {worst:.1e}); next is to do without {next}",
            facts.name
        );
        before = Some((target, worst));
    }
    let worst = before.map_or(f64::NAN, |(_, worst)| worst);
    Err(Error::Target {
        target: facts.name.clone(),
        kernel: "self-test".into(),
        reason: format!(
            "gives wrong results in {format} (1 - cosine {worst:.1e}): update its driver, or take another device"
        ),
    })
}

/// The largest of some numbers; what is no number is larger than all.
fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |a: f64, b| match a.is_nan() || b <= a {
        true => a,
        false => b,
    })
}

/// The last logits of each chunk and of each decoded token, with their rows.
fn logits(
    file: &dyn ModelFile,
    graph: &Graph,
    target: &Target,
    device: &Device,
    tokens: &[u32],
) -> Result<Vec<(usize, Vec<f32>)>> {
    let pages: Vec<u32> = (0..BindOptions::pages_for(tokens.len())).collect();
    let options = BindOptions {
        pages: pages.len() as u32,
        kv: KvFormat::F16,
        slots: 0,
    };
    let mut exe = bind(compile(graph, target)?, file, device, &options)?;
    let mut all = Vec::new();
    let mut first = 0;
    for count in CHUNKS.into_iter().chain([1; DECODED]) {
        let last = first + count - 1;
        all.push((last, last_logits(&mut *exe, tokens, first..=last, &pages)?));
        first += count;
    }
    Ok(all)
}

fn last_logits(
    exe: &mut dyn Executable,
    tokens: &[u32],
    rows: std::ops::RangeInclusive<usize>,
    pages: &[u32],
) -> Result<Vec<f32>> {
    let positions: Vec<u32> = rows.clone().map(|p| p as u32).collect();
    let mut wants = vec![Want::Nothing; positions.len()];
    wants.last_mut().into_iter().for_each(|w| *w = Want::Logits);
    let step = Step {
        tokens: &tokens[rows],
        positions: &positions,
        sequence_of: &vec![0; positions.len()],
        sequences: &[Sequence {
            pages,
            rope_length: tokens.len() as u32,
        }],
        slots: &vec![SlotId::BASE; positions.len()],
        wants: &wants,
    };
    let results = exe.run(&step)?.results;
    let logits = results.into_iter().find_map(|(_, result)| match result {
        RowResult::Logits(logits) => Some(logits),
        _ => None,
    });
    logits.ok_or_else(|| Error::Step("a row that wants logits got none".into()))
}

fn one_less_cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Where it is kept what was found; none where this program cannot tell its build.
fn cache_name(target: &Target, format: &str) -> Option<String> {
    let program = std::env::current_exe().ok()?.metadata().ok()?;
    let built = program.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let words = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    Some(format!(
        "self-test/{}/{}-{}/{:x}-{}",
        words(&target.name),
        words(&target.driver),
        words(&format!("{:?}", target.family)),
        built.as_nanos(),
        words(format)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_are_apart() {
        assert!(one_less_cosine(&[1.0, 2.0], &[1.0, 2.0]) < 1e-9);
        assert!(one_less_cosine(&[1.0, 2.0], &[2.0, -1.0]) > 0.9);
        for bad in [f32::NAN, f32::INFINITY] {
            let apart = one_less_cosine(&[1.0, bad], &[1.0, 2.0]);
            let trusted = largest([0.1, apart, 0.2].into_iter()) <= APART;
            assert!(!trusted, "{bad}: {apart}");
        }
        assert!(largest([f64::NAN, 0.2].into_iter()).is_nan());
    }

    /// What goes wrong is left out, and no more than that.
    #[test]
    fn the_first_right_reduction_is_taken() {
        let facts = Target::named("h200").expect("target");
        let right = |wrong: fn(&Target) -> bool| {
            let apart = |target: &Target| Ok(if wrong(target) { 0.5 } else { 1e-6 });
            first_right(&facts, "q4_0", 0, apart)
        };
        assert_eq!(right(|_| false).expect("right"), 0);
        assert_eq!(right(|t| !t.matrix_tiles.is_empty()).expect("right"), 1);
        assert_eq!(right(|t| t.plane_ops).expect("right"), 2);
        let refused = right(|_| true).expect_err("wrong").to_string();
        assert!(
            refused.contains("q4_0") && refused.contains("driver"),
            "{refused}"
        );
        let mut plain = facts.clone();
        plain.matrix_tiles.clear();
        let mut tried = 0;
        let refused = first_right(&plain, "q4_0", 0, |_| {
            tried += 1;
            Ok(f64::NAN)
        });
        assert!(refused.is_err() && tried == 2, "{tried}");
    }
}
