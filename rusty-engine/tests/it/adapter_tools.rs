//! Merged models, packed and cached adapters, compression: each against the adapter itself.

use super::adapters::{BASES, Golden, assert_close, check_prompts, names};
use super::gguf_twin::twin;
use super::{engine, golden, logits, open};
use rusty_adapters::merge::{Method, merge};
use rusty_adapters::{Cache, Precision, Pruning, compress, load, packed, random};
use rusty_backend::DeviceChoice;
use rusty_compiler::{KvFormat, SlotData};
use rusty_engine::{AdapterSet, Engine, EngineOptions, Message, Prompt};
use std::path::{Path, PathBuf};

fn prepared(engine: &Engine, name: &str) -> SlotData {
    let path = golden(&format!("adapters/{name}"));
    load(&path, &engine.adapter_base(), Precision::Stored).expect(name)
}

/// The base as a folder and as a GGUF file.
fn sources(base: &str, folder: &Path) -> [PathBuf; 2] {
    let file = rusty_loader::open(golden(base)).expect(base);
    let gguf = folder.join(format!("{}.gguf", base.replace('/', "-")));
    std::fs::write(&gguf, twin(&*file)).expect("written");
    [golden(base), gguf]
}

/// A merged model says what the model with its adapters says: every kind that is weights, from either container,
/// tied heads and shards included.
#[test]
fn merged_models_equal_the_adapters() {
    let folder = tempfile::tempdir().expect("folder");
    let mut merged = 0;
    for base in &BASES[..2] {
        for source in sources(base, folder.path()) {
            let engine = open(&source);
            for name in names() {
                let about = Golden::read(&format!("adapters/{name}"));
                if about.base() != *base {
                    continue;
                }
                let adapter = prepared(&engine, &name);
                let out = folder.path().join("merged").join(&name);
                let out = out.with_extension(if source.is_dir() { "" } else { "gguf" });
                std::fs::create_dir_all(out.parent().expect("parent")).expect("folder");
                let done = merge(
                    &[(&adapter, 1.0)],
                    Method::Linear,
                    &engine.adapter_base(),
                    (&source, &out),
                    &|_, _| {},
                );
                // The model has no biases to which one could be added.
                if adapter.virtual_tokens() > 0 || name == "llama-lora-bias" {
                    let error = done.expect_err(&name).to_string();
                    let why = ["soft prompt", "a bias at 'blk.0"];
                    assert!(why.iter().any(|w| error.contains(w)), "{error}");
                    continue;
                }
                done.expect(&name);
                let want = logits(&engine, engine.attach(adapter).expect("attached"));
                let what = format!("{name} in {}", out.display());
                assert_close(&what, &logits(&open(&out), None), &want);
                merged += 1;
            }
        }
    }
    assert!(merged >= 38, "{merged} merged");
}

#[test]
fn several_adapters_merge_as_they_mix() {
    let folder = tempfile::tempdir().expect("folder");
    let source = golden(BASES[0]);
    let engine = open(&source);
    let parts = ["qwen3-lora-all", "qwen3-loha"].map(|name| prepared(&engine, name));
    let ids = parts.clone().map(|p| engine.attach(p).expect("attached"));
    let weighted = [(&parts[0], 0.7), (&parts[1], -0.4)];
    let run = |name: &str, parts: &[(&SlotData, f32)], method| {
        let out = folder.path().join(name);
        let paths = (&*source, &*out);
        merge(parts, method, &engine.adapter_base(), paths, &|_, _| {}).map(|()| open(&out))
    };
    let want = logits(&engine, AdapterSet::sum([(ids[0], 0.7), (ids[1], -0.4)]));
    let linear = run("linear", &weighted, Method::Linear).expect("merged");
    assert_close("linear", &logits(&linear, None), &want);
    // Everything kept is the linear merge again.
    let dare = Method::Dare {
        density: 1.0,
        seed: 3,
    };
    let dare = run("dare", &weighted, dare).expect("merged");
    assert_close("dare", &logits(&dare, None), &want);
    let ties = Method::Ties { density: 1.0 };
    let ties = run("ties", &[(&parts[0], 0.7)], ties).expect("merged");
    let alone = logits(&engine, AdapterSet::sum([(ids[0], 0.7)]));
    assert_close("ties", &logits(&ties, None), &alone);
    // The ends of the arc are the two models.
    for (weights, id) in [([1.0, 0.0], ids[0]), ([0.0, 1.0], ids[1])] {
        let name = format!("slerp-{}", weights[0]);
        let both = [(&parts[0], weights[0]), (&parts[1], weights[1])];
        let slerp = run(&name, &both, Method::Slerp).expect("merged");
        assert_close(&name, &logits(&slerp, None), &logits(&engine, id));
    }
    // Only shares count, also for a weight that one adapter alone changes: the other's end of the arc is the base's weight.
    let [mut first, mut second] = parts.clone();
    first.sites.retain(|(site, _)| site.index() % 2 == 0);
    second.sites.retain(|(site, _)| site.index() % 2 == 1);
    let halfway = [[1.0, 1.0], [0.5, 0.5]].map(|[a, b]| {
        let both = [(&first, a), (&second, b)];
        let slerp = run(&format!("halfway-{a}"), &both, Method::Slerp).expect("merged");
        logits(&slerp, None)
    });
    assert_close("halfway", &halfway[0], &halfway[1]);
    let opposed = [(&parts[0], 1.0), (&parts[1], -1.0)];
    let problem = run("opposed", &opposed, Method::Slerp)
        .err()
        .expect("no share");
    assert!(problem.to_string().contains("sum to 0"), "{problem}");
    let three = [(&parts[0], 1.0); 3];
    assert!(run("three", &three, Method::Slerp).is_err());
    assert!(run("none", &weighted, Method::Ties { density: 0.0 }).is_err());
    let there = run("linear", &weighted, Method::Linear)
        .err()
        .expect("there");
    assert!(there.to_string().contains("is there already"), "{there}");
}

/// Packed adapters are the adapters, every kind, deflated or not; and the cache gives them again.
#[test]
fn packed_and_cached_adapters_are_the_adapters() {
    let folder = tempfile::tempdir().expect("folder");
    for base in BASES {
        let engine = engine(base, DeviceChoice::Cpu, KvFormat::F32);
        for name in names() {
            let about = Golden::read(&format!("adapters/{name}"));
            if about.base() != base {
                continue;
            }
            let adapter = prepared(&engine, &name);
            for deflate in [false, true] {
                let path = folder.path().join(format!("{name}-{deflate}.safetensors"));
                packed::pack(&adapter, &engine.adapter_base(), &path, deflate).expect("packed");
                let id = engine.attach_file(&path, Precision::Stored).expect(&name);
                check_prompts(&engine, id, &about, &name);
                engine.detach(id).expect("detach");
            }
        }
    }
}

/// A packed file is its tables and a header, which hardly depends on the rank: half the ranks are half the tables, but for the
/// scales of outputs in bytes.
#[test]
fn half_the_rank_is_half_of_a_packed_file() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = open(&golden(BASES[0]));
    let base = engine.adapter_base();
    for precision in [Precision::F16, Precision::Int8, Precision::Int4] {
        let [eight, sixteen] = [8, 16].map(|rank| {
            let adapter = random("r", &base.graph.sites, rank, 1, precision);
            let path = folder
                .path()
                .join(format!("{precision:?}-{rank}.safetensors"));
            packed::pack(&adapter, &base, &path, false).expect("packed");
            let stored = std::fs::metadata(&path).expect("packed").len();
            (stored, adapter.bytes() as u64)
        });
        let scales = if precision == Precision::Int8 {
            sixteen.1 / 10
        } else {
            0
        };
        let twice = sixteen.1..=sixteen.1 + scales;
        assert!(twice.contains(&(2 * eight.1)), "{precision:?}");
        let headers = [eight, sixteen].map(|(stored, tables)| stored - tables);
        let apart = headers[0].abs_diff(headers[1]);
        assert!(apart < headers[0] / 10, "{precision:?}: {headers:?}");
    }
}

#[test]
fn the_cache_is_used_renewed_and_bounded() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASES[0], DeviceChoice::Cpu, KvFormat::F32);
    let base = engine.adapter_base();
    let source = folder.path().join("adapter");
    let copy = |name: &str| {
        std::fs::create_dir_all(&source).expect("folder");
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            let from = golden(&format!("adapters/{name}")).join(file);
            std::fs::write(source.join(file), std::fs::read(from).expect(name)).expect(name);
        }
    };
    let kept = folder.path().join("cache");
    let cache = Cache::new(&kept);
    let entries = || {
        let files = std::fs::read_dir(&kept).expect("cache");
        files.map(|f| f.expect("file").path()).collect::<Vec<_>>()
    };
    let answer = |adapter: SlotData| {
        let id = engine.attach(adapter).expect("attached");
        let logits = logits(&engine, id);
        engine.detach(id).expect("detached");
        logits
    };
    copy("qwen3-dora");
    let load = |precision| cache.load(&source, &base, precision).expect("loaded");
    let want = answer(prepared(&engine, "qwen3-dora"));
    for _ in 0..2 {
        let adapter = load(Precision::Stored);
        let mapped = adapter.sites.iter().all(|(_, d)| {
            let tables = [&d.a, &d.b].into_iter().flatten();
            tables.into_iter().all(|t| t.bytes().is_mapped())
        });
        assert!(mapped);
        assert_eq!(answer(adapter), want);
        assert_eq!(entries().len(), 1);
    }
    // A damaged entry is made anew; another precision and another adapter are other entries.
    std::fs::write(&entries()[0], b"damaged").expect("written");
    assert_eq!(answer(load(Precision::Stored)), want);
    load(Precision::Int8);
    assert_eq!(entries().len(), 2);
    copy("qwen3-lora-all");
    assert_ne!(answer(load(Precision::Stored)), want);
    assert_eq!(entries().len(), 3);
    // What lies there beside the entries is somebody's own.
    let own = kept.join("model.safetensors");
    std::fs::write(&own, [0; 100]).expect("written");
    let small = Cache::new(&kept).with_limit(1);
    small.load(&source, &base, Precision::F16).expect("loaded");
    assert!(entries().len() == 2 && own.exists());
}

/// Whatever changes in an entry is noticed: the adapter is prepared again, and so is the entry.
#[test]
fn a_damaged_entry_of_the_cache_is_made_anew() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASES[0], DeviceChoice::Cpu, KvFormat::F32);
    let base = engine.adapter_base();
    let kept = folder.path().join("cache");
    let cache = Cache::new(&kept);
    let source = golden("adapters/qwen3-dora");
    let load = || {
        cache
            .load(&source, &base, Precision::Stored)
            .expect("loaded")
    };
    load();
    let mut files = std::fs::read_dir(&kept).expect("cache");
    let entry = files.next().expect("an entry").expect("an entry").path();
    let good = std::fs::read(&entry).expect("read");
    let header = u64::from_le_bytes(good[..8].try_into().expect("a length")) as usize + 8;
    let ends = [0, 7, 8, header - 1, header, good.len() - 1];
    let names = ["\"sums\"", ".scale\"", ".gain_out\""].map(|name| {
        let mut places = good.windows(name.len());
        let found = places.position(|w| w == name.as_bytes());
        found.expect(name) + 2
    });
    let step = good.len() / 150;
    for at in (0..good.len()).step_by(step).chain(ends).chain(names) {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        std::fs::write(&entry, &bytes).expect("written");
        load();
        let renewed = std::fs::read(&entry).expect("read");
        assert!(renewed == good, "byte {at} of {}", good.len());
    }
}

#[test]
fn damaged_packed_adapters_are_errors_that_name_the_file() {
    let folder = tempfile::tempdir().expect("folder");
    let engine = engine(BASES[0], DeviceChoice::Cpu, KvFormat::F32);
    let adapter = prepared(&engine, "qwen3-lora-all");
    let path = folder.path().join("adapter.safetensors");
    packed::pack(&adapter, &engine.adapter_base(), &path, true).expect("packed");
    let good = std::fs::read(&path).expect("read");
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("written");
        let error = engine.attach_file(&path, Precision::Stored);
        error.err().map(|e| e.to_string())
    };
    for cut in [0, 8, 100, good.len() / 2, good.len() - 1] {
        let error = refused(&good[..cut]).expect("cut off");
        assert!(error.contains("adapter.safetensors"), "{error}");
    }
    let text = String::from_utf8_lossy(&good).into_owned();
    assert!(text.contains("blk.0.attn_q"));
    for (from, to) in [
        ("blk.0.attn_q", "blk.9.attn_q"),
        (r#"\"rows\":"#, r#"\"rowz\":"#),
        (r#"\"version\":6"#, r#"\"version\":1"#),
        ("false", "true "),
    ] {
        let mut bytes = good.clone();
        let at = |b: &[u8]| b.windows(from.len()).position(|w| w == from.as_bytes());
        let place = at(&bytes).expect(from);
        bytes[place..place + to.len()].copy_from_slice(to.as_bytes());
        let error = refused(&bytes).unwrap_or_else(|| panic!("{from} as {to} is accepted"));
        assert!(error.contains("adapter.safetensors"), "{error}");
    }
    // Any damage to the data is an error or finite numbers, never a panic.
    for at in (0..good.len()).step_by(97) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x55;
        refused(&bytes);
    }
}

#[test]
fn compression_costs_what_it_says() {
    let engine = super::demo(&EngineOptions {
        device: DeviceChoice::Cpu,
        kv: KvFormat::F32,
        ..EngineOptions::default()
    });
    let base = engine.adapter_base();
    let sql = rusty_engine::demo::adapter("sql", &base)
        .expect("sql")
        .expect("sql");
    let whole = AdapterSet::from(engine.attach(sql.clone()).expect("attached"));
    let questions = [
        "Find users older than 30",
        "Count the books written by Anna",
    ];
    let prompts = questions.map(|q| Prompt::Chat(vec![Message::new("user", q)]));
    let cost = |adapter: SlotData| {
        let set = engine.attach(adapter).expect("attached").into();
        let apart = engine
            .divergence(&prompts, 32, &whole, &set)
            .expect("divergence");
        assert!(apart.positions > 20);
        apart
    };
    let same = cost(compress(&sql, &base, Pruning::Nothing, Precision::Stored));
    assert!(same.mean < 1e-4 && same.same_top == 1.0, "{same:?}");
    let int4 = compress(&sql, &base, Pruning::Nothing, Precision::Int4);
    assert!(int4.bytes() * 3 < sql.bytes());
    let int4 = cost(int4);
    assert!(int4.mean < 0.01 && int4.mean > same.mean, "{int4:?}");
    let int8 = compress(&sql, &base, Pruning::Nothing, Precision::Int8);
    assert!(int8.bytes() * 3 < sql.bytes() * 2);
    let int8 = cost(int8);
    assert!(
        int8.mean > same.mean && int8.mean < int4.mean,
        "{same:?} {int8:?} {int4:?}"
    );
    let folder = tempfile::tempdir().expect("folder");
    let size = |pruning, precision| {
        let path = folder.path().join("small.safetensors");
        let small = compress(&sql, &base, pruning, precision);
        packed::pack(&small, &base, &path, true).expect("packed");
        std::fs::metadata(&path).expect("written").len()
    };
    let sizes = [
        size(Pruning::Nothing, Precision::Stored),
        size(Pruning::Nothing, Precision::Int4),
        size(Pruning::Values(0.6), Precision::Int4),
        size(Pruning::Blocks(0.6), Precision::Int4),
        size(Pruning::Blocks(0.95), Precision::Int4),
    ];
    assert!(sizes.is_sorted_by(|a, b| a > b), "{sizes:?}");
    let few = cost(compress(&sql, &base, Pruning::Values(0.9), Precision::Int4));
    assert!(few.mean > int4.mean, "{few:?}");
}
