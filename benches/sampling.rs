//! Choosing a token of a large vocabulary: what the host does between two steps of an answer that is not greedy. Choices are checked.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use rusty_engine::Sampling;
use rusty_engine::sampler::{History, Sampler};

/// Entries of Qwen3's vocabulary.
const VOCAB: usize = 151_936;

/// Logits as models have them: a few of many stand out. The bell is a sum of twelve even numbers.
fn logits() -> Vec<f32> {
    let mut state = 1u64;
    let mut even = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let mut logits: Vec<f32> = (0..VOCAB)
        .map(|_| ((0..12).map(|_| even()).sum::<f32>() - 6.0) * 2.5)
        .collect();
    for (rank, token) in [77_777, 12, 151_000, 3_456, 99_999].into_iter().enumerate() {
        logits[token] = 20.0 - rank as f32;
    }
    logits
}

/// Whether a token is among those that may be chosen, by plain definitions over all of them sorted.
fn may_be_chosen(logits: &[f32], sampling: &Sampling, token: u32) -> bool {
    let scaled: Vec<f64> = logits
        .iter()
        .map(|l| f64::from(*l) / f64::from(sampling.temperature))
        .collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| scaled[*b].total_cmp(&scaled[*a]));
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let largest = scaled[order[0]];
    let weight = |t: &usize| (scaled[*t] - largest).exp();
    let all: f64 = order.iter().map(weight).sum();
    let mut before = 0.0;
    for t in &order {
        let inside =
            before < f64::from(sampling.top_p) * all && weight(t) >= f64::from(sampling.min_p);
        if *t == token as usize {
            return inside;
        }
        before += weight(t);
    }
    false
}

fn choices(c: &mut Criterion) {
    let logits = logits();
    let plain = Sampling {
        temperature: 0.8,
        ..Sampling::default()
    };
    let top_p = Sampling {
        top_p: 0.95,
        ..plain.clone()
    };
    let min_p = Sampling {
        min_p: 0.05,
        ..plain.clone()
    };
    let top_k = Sampling {
        top_k: 20,
        ..top_p.clone()
    };
    let said: Vec<u32> = (0..2000).map(|i| i * 31 % VOCAB as u32).collect();
    let history = History {
        tokens: &said,
        prompt: 1000,
    };
    for (name, sampling) in [
        ("temperature", plain),
        ("top-p", top_p),
        ("min-p", min_p),
        ("top-k, top-p", top_k),
    ] {
        let mut sampler = Sampler::new(&sampling);
        for _ in 0..20 {
            let token = sampler.choose(&mut logits.clone(), history);
            assert!(may_be_chosen(&logits, &sampling, token), "{name}: {token}");
        }
        c.bench_function(&format!("sampling/{name}"), |b| {
            b.iter_batched_ref(
                || logits.clone(),
                |logits| sampler.choose(logits, history),
                BatchSize::LargeInput,
            );
        });
    }
}

criterion_group!(benches, choices);
criterion_main!(benches);
