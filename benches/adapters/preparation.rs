//! What is done once for each adapter: from a PEFT folder to tables in memory, and to a file that is mapped from then on.

use crate::{RANK, dora, engine};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion};
use rusty_adapters::{Base, Cache, Container, Precision, export, load, random};
use std::path::Path;
use std::time::{Duration, Instant};

/// A LoRA in two precisions, and a DoRA.
pub fn preparation(c: &mut Criterion) {
    let engine = engine();
    let folder = tempfile::tempdir().expect("folder");
    let mut group = c.benchmark_group("prepare");
    group.sample_size(10);
    let adapter = random("random", &engine.graph().sites, RANK, 1, Precision::F16);
    let base = engine.adapter_base();
    let peft = folder.path().join("peft");
    export(&adapter, &base, &peft, Container::Peft).expect("exported");
    for (name, precision) in [("f16", Precision::Stored), ("int8", Precision::Int8)] {
        group.bench_function(name, |b| {
            b.iter(|| {
                let read = load(&peft, &base, precision).expect("loaded");
                assert_eq!(read.sites.len(), adapter.sites.len());
                read
            });
        });
    }
    cached(&mut group, &base, &peft, folder.path());
}

/// A DoRA, the first time and from the cache.
fn cached(group: &mut BenchmarkGroup<'_, WallTime>, base: &Base<'_>, peft: &Path, folder: &Path) {
    let source = folder.join("dora");
    dora::write(peft, &source);
    let want = load(&source, base, Precision::Stored).expect("loaded");
    dora::check(&want, base);
    let kept = folder.join("cache");
    let cache = Cache::new(&kept);
    let read = || {
        let start = Instant::now();
        let read = cache.load(&source, base, Precision::Stored);
        let took = start.elapsed();
        assert!(
            dora::same(&read.expect("loaded"), &want),
            "another adapter than without a cache"
        );
        took
    };
    group.bench_function("dora/first", |b| {
        b.iter_custom(|times| {
            let emptied = || {
                if kept.exists() {
                    std::fs::remove_dir_all(&kept).expect("emptied");
                }
            };
            (0..times).fold(Duration::ZERO, |sum, _| {
                emptied();
                sum + read()
            })
        });
    });
    read();
    group.bench_function("dora/cached", |b| {
        b.iter_custom(|times| (0..times).fold(Duration::ZERO, |sum, _| sum + read()));
    });
    let entries = std::fs::read_dir(&kept).expect("cache").count();
    assert_eq!(entries, 1, "entries of one adapter");
}
