//! Rows of many adapters in one step: each gets what it would get alone.

use super::adapters::{Golden, names};
use super::{devices, engine, golden};
use rusty_adapters::{Precision, random_with_head};
use rusty_backend::DeviceChoice;
use rusty_compiler::interleaving::Factor;
use rusty_compiler::{DeltaTable, KvFormat, SiteDelta, SlotData};
use rusty_engine::{AdapterId, AdapterSet, Engine, EngineOptions, Prompt, Request, Session};
use rusty_loader::Format;

const BASE: &str = "models/qwen3-tied";

fn with_sessions(device: DeviceChoice) -> Engine {
    let file = rusty_loader::open(golden(BASE)).expect(BASE);
    let options = EngineOptions {
        // References are single precision.
        single_precision: true,
        device,
        sessions: 18,
        context: Some(64),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*file, &options).expect(BASE);
    engine.keep_base(file.into());
    engine
}

/// Random adapters of ranks 1 to 16 in every precision, at weights that change what is said.
fn adapters(engine: &Engine) -> Vec<AdapterSet> {
    let precisions = [
        Precision::Stored,
        Precision::F16,
        Precision::Int8,
        Precision::Int4,
    ];
    let attach = |rank: u32| {
        let precision = precisions[rank as usize % 4];
        let name = format!("r{rank}");
        let sites = &engine.graph().sites;
        let adapter = random_with_head(&name, sites, rank, rank.into(), precision);
        let id: AdapterId = engine.attach(adapter).expect("fits");
        AdapterSet::sum([(id, 30.0)])
    };
    (1..=16).map(attach).collect()
}

fn request(seed: u32) -> Request {
    let tokens = (0..5 + seed % 7).map(|i| (seed * 31 + i * 17) % 200);
    Request {
        max_tokens: 8,
        stop_at_end: false,
        ..Request::new(Prompt::Tokens(tokens.collect()))
    }
}

/// The answers of sessions that run side by side, a token of each in turn.
fn together(sessions: &mut [Session]) -> Vec<Vec<u32>> {
    let start = |(i, s): (usize, _)| Session::generate(s, &request(i as u32)).expect("generate");
    let mut running: Vec<_> = sessions.iter_mut().enumerate().map(start).collect();
    let mut answers = vec![vec![]; running.len()];
    for _ in 0..8 {
        for (generation, answer) in running.iter_mut().zip(&mut answers) {
            let token = generation.next().expect("goes on").expect("token");
            answer.extend(token.id);
        }
    }
    answers
}

fn session(engine: &Engine, set: &AdapterSet) -> Session {
    let mut session = engine.session();
    session.set_adapter(set.clone()).expect("attached");
    session
}

/// Runs sets side by side and each alone, which must say the same; how many say what the base does not.
fn assert_as_alone(engine: &Engine, sets: &[AdapterSet], device: DeviceChoice) -> usize {
    let mut sessions: Vec<Session> = sets.iter().map(|set| session(engine, set)).collect();
    let have = together(&mut sessions);
    drop(sessions);
    let mut changed = 0;
    for (i, (set, have)) in sets.iter().zip(&have).enumerate() {
        let answer = |set: &AdapterSet| {
            let mut session = session(engine, set);
            let tokens = session.generate(&request(i as u32)).expect("generate");
            let tokens = tokens.filter_map(|t| t.expect("token").id);
            tokens.collect::<Vec<u32>>()
        };
        assert_eq!(*have, answer(set), "session {i} on {device}");
        changed += usize::from(*have != answer(&AdapterSet::BASE));
    }
    changed
}

#[test]
fn sixteen_adapters_of_mixed_ranks_in_one_batch_are_as_alone() {
    for device in devices() {
        let engine = with_sessions(device);
        let mut sets = adapters(&engine);
        sets.insert(3, AdapterSet::BASE);
        sets.push(AdapterSet::BASE);
        let changed = assert_as_alone(&engine, &sets, device);
        assert!(
            changed >= 12,
            "only {changed} adapters say what the base does not"
        );
    }
}

/// Gains, biases, whole matrices, changed embeddings and soft prompts in the rows of one step, and mixtures of some.
#[test]
fn adapters_of_all_kinds_in_one_batch_are_as_alone() {
    let mut names = names();
    names.retain(|name| Golden::read(&format!("adapters/{name}")).base() == BASE);
    assert!(names.len() >= 12, "{names:?}");
    // Slots are for sixteen sets.
    names.truncate(14);
    for device in devices() {
        let engine = with_sessions(device);
        let attach = |name: &String| {
            let path = golden(&format!("adapters/{name}"));
            engine.attach_file(&path, Precision::Stored).expect(name)
        };
        let ids: Vec<AdapterId> = names.iter().map(attach).collect();
        let mut sets: Vec<AdapterSet> = ids.iter().map(|id| (*id).into()).collect();
        let of = |part: &str| {
            let at = names.iter().position(|name| name.contains(part));
            ids[at.expect(part)]
        };
        sets.push(AdapterSet::sum([(of("dora"), 0.5), (of("lora"), 0.5)]));
        sets.push(AdapterSet::sum([(of("ia3"), 0.5), (of("loha"), -0.5)]));
        sets.insert(5, AdapterSet::BASE);
        let changed = assert_as_alone(&engine, &sets, device);
        assert!(changed + 3 >= sets.len(), "only {changed} change an answer");
    }
}

/// Each slot takes the room of its own adapter: none is padded to the largest rank beside it.
#[test]
fn slots_of_mixed_ranks_hold_their_own_bytes() {
    for device in devices() {
        let engine = with_sessions(device);
        let sites = &engine.graph().sites;
        let before = engine.memory().adapters;
        let mut own = 0;
        for (seed, rank) in (1..).zip([16, 2, 1, 4]) {
            let adapter = random_with_head("r", sites, rank, seed, Precision::F16);
            let bytes = adapter.bytes() as u64;
            let id = engine.attach(adapter).expect("fits");
            let all = engine.adapters();
            let status = all.iter().find(|a| a.id == id).expect("attached");
            assert_eq!((status.rank, status.bytes), (rank, bytes));
            own += bytes;
            let held = engine.memory().adapters - before;
            if device == DeviceChoice::Cpu {
                assert_eq!(held, own, "rank {rank}");
            }
            // Pools of GPUs have a quarter of room, whole words and aligned buffers.
            let most = own + own / 4 + sites.len() as u64 * (256 + 10 * seed);
            assert!(held <= most, "rank {rank} on {device}: {held} for {own}");
        }
    }
}

fn in_format(adapter: &SlotData, format: Format) -> SlotData {
    let mut adapter = adapter.clone();
    for (_, delta) in &mut adapter.sites {
        for table in [&mut delta.a, &mut delta.b].into_iter().flatten() {
            *table = table.converted(format);
        }
    }
    adapter
}

/// Tables of every format give what their values give in single precision.
#[test]
fn tables_are_read_as_their_values_say() {
    for device in devices() {
        let engine = engine(BASE, device, KvFormat::F32);
        let ids: Vec<u32> = (0..12).map(|i| i * 13 % 200).collect();
        let logits = |adapter: SlotData| {
            let id = engine.attach(adapter).expect("fits");
            let logits = engine.logits(&ids, AdapterSet::sum([(id, 10.0)]));
            engine.detach(id).expect("detach");
            logits.expect("logits")
        };
        let source = random_with_head("r", &engine.graph().sites, 5, 1, Precision::F16);
        let base = engine.logits(&ids, None).expect("base");
        for format in DeltaTable::FORMATS {
            let stored = in_format(&source, format);
            let want = logits(in_format(&stored, Format::F32));
            let have = logits(stored);
            let apart = |a: &[f32], b: &[f32]| {
                let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs());
                apart.fold(0.0, f32::max)
            };
            let name = format.name();
            assert!(apart(&want, &base) > 0.5, "{name} changes something");
            let far = apart(&have, &want);
            assert!(far <= 1e-3, "{name} on {device}: {far}");
        }
    }
}

/// Kernels read factors in Q8_0 as they lie; others are refused before that.
#[test]
fn factors_that_lie_otherwise_are_refused() {
    let engine = engine(BASE, DeviceChoice::Cpu, KvFormat::F32);
    let good = random_with_head("r", &engine.graph().sites, 4, 1, Precision::Int8);
    let relaid = |table: &DeltaTable, factor: Option<Factor>| {
        let (rows, columns) = (table.rows(), table.columns());
        DeltaTable::encode(table.format(), factor, rows, columns, &table.values()).expect("table")
    };
    let refused = |change: &dyn Fn(&mut SiteDelta)| {
        let mut adapter = good.clone();
        change(&mut adapter.sites[0].1);
        engine.attach(adapter).err().map(|e| e.to_string())
    };
    assert_eq!(refused(&|_| ()), None);
    let a = refused(&|d| d.a = d.a.as_ref().map(|a| relaid(a, None)));
    let b = refused(&|d| {
        let half = Factor::B { rank: 2 };
        d.b = d.b.as_ref().map(|b| relaid(b, Some(half)));
    });
    for error in [a, b] {
        let error = error.expect("refused");
        assert!(error.contains("Q8_0 do not lie"), "{error}");
    }
}
