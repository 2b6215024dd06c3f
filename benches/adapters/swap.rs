//! Hot swap. Every attached adapter answers once, and so does every adapter that got another weight; the answer is checked
//! against the one that the same tables gave before.

use crate::{RANK, engine};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode};
use rusty_adapters::{Precision, packed, random};
use rusty_engine::{AdapterId, AdapterSet, Engine, OnRunning, Prompt, Request};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const TOKENS: [u32; 4] = [7, 77, 777, 7777];
const COUNT: usize = 6;

struct Swap {
    engine: Engine,
    files: Vec<PathBuf>,
    want: Vec<Vec<f32>>,
    _folder: tempfile::TempDir,
}

impl Swap {
    fn new() -> Self {
        let engine = engine();
        let folder = tempfile::tempdir().expect("folder");
        let (mut files, mut want) = (vec![], vec![]);
        for seed in 0..COUNT as u64 {
            let sites = &engine.graph().sites;
            let adapter = random("random", sites, RANK, seed + 1, Precision::F16);
            let path = folder.path().join(format!("{seed}.safetensors"));
            packed::pack(&adapter, &engine.adapter_base(), &path, false).expect("packed");
            let id = engine.attach(adapter).expect("attached");
            want.push(engine.logits(&TOKENS, id).expect("logits"));
            engine.detach(id).expect("detached");
            files.push(path);
        }
        assert_ne!(want[0], want[1]);
        Self {
            engine,
            files,
            want,
            _folder: folder,
        }
    }

    fn attach(&self, count: usize) -> (Duration, Vec<AdapterId>) {
        let start = Instant::now();
        let attach = |path: &PathBuf| self.engine.attach_file(path, Precision::Stored);
        let ids = self.files[..count].iter().map(attach);
        let ids = ids.collect::<Result<_, _>>().expect("attached");
        (start.elapsed(), ids)
    }

    /// Whether all of them answer as before; the time of the first's first answer.
    fn answer(&self, ids: &[AdapterId]) -> Duration {
        let mut first = Duration::ZERO;
        for (i, (id, want)) in ids.iter().zip(&self.want).enumerate() {
            let start = Instant::now();
            let have = self.engine.logits(&TOKENS, *id).expect("logits");
            if i == 0 {
                first = start.elapsed();
            }
            assert!(have == *want, "adapter {i} says something else");
        }
        first
    }

    fn detach(&self, ids: Vec<AdapterId>) -> Duration {
        let start = Instant::now();
        for id in ids {
            self.engine.detach(id).expect("detached");
        }
        start.elapsed()
    }
}

/// Sums what `part` takes of setting a weight, and of the first answer with it; rounds are of two weights each.
fn weights(swap: &Swap, id: AdapterId, times: u64, part: usize) -> Duration {
    let half = AdapterSet::sum([(id, 0.5)]);
    let half = swap.engine.logits(&TOKENS, half).expect("logits");
    assert!(half != swap.want[0], "a weight changes nothing");
    let mut total = Duration::ZERO;
    for _ in 0..times {
        for (weight, want) in [(0.5, &half), (1.0, &swap.want[0])] {
            let start = Instant::now();
            let done = swap.engine.set_weight(id, weight, OnRunning::Refuse);
            let weighted = start.elapsed();
            done.expect("no answer runs");
            let start = Instant::now();
            let have = swap.engine.logits(&TOKENS, id).expect("logits");
            let answered = start.elapsed();
            assert!(have == *want, "weight {weight} says something else");
            total += [weighted, answered][part];
        }
    }
    total / 2
}

/// Sums what `part` takes of each round of attaching, answering and detaching.
fn rounds(swap: &Swap, count: usize, times: u64, part: usize) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..times {
        let (attached, ids) = swap.attach(count);
        let answered = swap.answer(&ids);
        let detached = swap.detach(ids);
        total += [attached, answered, detached][part];
    }
    total
}

/// Sums what `part` takes of attaching and detaching while an answer runs.
fn beside_an_answer(swap: &Swap, times: u64, part: usize) -> Duration {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = Request {
                max_tokens: 32,
                stop_at_end: false,
                ..Request::new(Prompt::Tokens(TOKENS.to_vec()))
            };
            let mut session = swap.engine.session();
            while !done.load(Ordering::Relaxed) {
                let mut answer = session.generate(&request).expect("an answer");
                assert!(answer.all(|token| token.is_ok()), "an answer ends");
            }
        });
        let mut total = Duration::ZERO;
        for _ in 0..times {
            let (attached, ids) = swap.attach(1);
            total += [attached, swap.detach(ids)][part];
        }
        done.store(true, Ordering::Relaxed);
        total
    })
}

/// Attaching, answering, weighting and detaching, one by one.
pub fn swaps(c: &mut Criterion) {
    let swap = Swap::new();
    let mut group = c.benchmark_group("swap");
    // Only parts of a round are measured; a round takes a thousand times as long as they.
    group
        .sample_size(10)
        .sampling_mode(SamplingMode::Flat)
        .warm_up_time(Duration::from_millis(1))
        .measurement_time(Duration::from_millis(1));
    for (name, count, part) in [
        ("attach/1", 1, 0),
        ("attach/6", COUNT, 0),
        ("first-answer", 1, 1),
        ("detach/1", 1, 2),
        ("detach/6", COUNT, 2),
    ] {
        group.bench_function(name, |b| {
            b.iter_custom(|times| rounds(&swap, count, times, part));
        });
    }
    for (name, part) in [
        ("attach/1-beside-an-answer", 0),
        ("detach/1-beside-an-answer", 1),
    ] {
        group.bench_function(name, |b| {
            b.iter_custom(|times| beside_an_answer(&swap, times, part));
        });
    }
    let (_, ids) = swap.attach(1);
    group.bench_function("later-answer", |b| b.iter(|| swap.answer(&ids)));
    reweighting(&mut group, &swap, ids[0]);
    swap.detach(ids);
    let base = swap.engine.logits(&TOKENS, AdapterSet::BASE).expect("base");
    group.bench_function("base-answer", |b| {
        b.iter(|| {
            let have = swap.engine.logits(&TOKENS, AdapterSet::BASE);
            assert!(have.expect("base") == base, "the base says something else");
        });
    });
}

fn reweighting(group: &mut BenchmarkGroup<'_, WallTime>, swap: &Swap, id: AdapterId) {
    for (name, part) in [("set-weight", 0), ("first-answer-weighted", 1)] {
        group.bench_function(name, |b| {
            b.iter_custom(|times| weights(swap, id, times, part));
        });
    }
}
