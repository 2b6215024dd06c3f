//! Adapters between slot, memory and file: within budgets, and back without anybody's notice.

use super::demo::attach;
use super::residency::{NAMES, assert_goes_on, fresh, request};
use super::warnings::told;
use super::{cpu, demo as load, devices, logits};
use crate::golden_paths::root;
use rusty_adapters::Precision;
use rusty_backend::DeviceChoice;
use rusty_engine::{
    AdapterBudget, AdapterId, AdapterMemory, AdapterSet, AdapterStatus, Engine, EngineOptions,
    Generation, OnRunning, Request, Result, Session, Tier, Token,
};
use std::path::{Path, PathBuf};
use tracing::Level;

fn folder(name: &str) -> PathBuf {
    root().join("assets/demo/adapters").join(name)
}

fn status(engine: &Engine, id: AdapterId) -> AdapterStatus {
    let mut all = engine.adapters().into_iter();
    all.find(|a| a.id == id).expect("attached")
}

fn tier(engine: &Engine, id: AdapterId) -> Tier {
    status(engine, id).tier
}

/// An engine on a device with budgets for adapters.
fn within(device: DeviceChoice, adapter_budget: AdapterBudget) -> Engine {
    load(&EngineOptions {
        device,
        context: Some(64),
        adapter_budget,
        ..cpu()
    })
}

#[test]
fn budgets_move_adapters_between_tiers_and_back() {
    let bytes = attach_file(&load(&cpu()), "sql").1;
    let budget = AdapterBudget {
        device: bytes * 3 / 2,
        host: bytes * 5 / 2,
    };
    for device in devices() {
        let engine = within(device, budget);
        let want = NAMES.map(|name| {
            let id = attach(&engine, name);
            let want = logits(&engine, id);
            engine.detach(id).expect("unused");
            want
        });
        assert!(want[0] != want[1] && want[1] != want[2] && want[2] != want[0]);
        let ids = NAMES.map(|name| attach_file(&engine, name).0);
        for round in 0..2 {
            for (id, want) in ids.iter().zip(&want) {
                assert!(logits(&engine, *id) == *want, "round {round} on {device}");
                assert_eq!(tier(&engine, *id), Tier::Device);
                let tiers = ids.map(|id| tier(&engine, id));
                let held = tiers.iter().filter(|t| **t == Tier::Device).count();
                assert_eq!(held, 1, "{tiers:?}");
                let memory = engine.adapter_memory();
                assert_eq!(memory.device, bytes);
                assert!(memory.host <= budget.host, "{memory:?} on {device}");
            }
            assert_eq!(tier(&engine, ids[0]), Tier::Disk);
            assert_eq!(tier(&engine, ids[1]), Tier::Host);
        }
        // Pinned adapters do not make room.
        assert!(logits(&engine, ids[0]) == want[0]);
        engine.pin(ids[0], true).expect("attached");
        assert!(logits(&engine, ids[1]) == want[1]);
        assert!(logits(&engine, ids[2]) == want[2]);
        assert_eq!(tier(&engine, ids[0]), Tier::Device);
        assert!(engine.adapters()[0].pinned);
    }
}

/// Where the host's budget is nothing, a GPU's copies are all there is; a CPU's slots read what lies in the host's memory.
#[test]
fn coming_and_going_compiles_nothing_and_holds_no_more_memory() {
    for device in devices() {
        let engine = within(
            device,
            AdapterBudget {
                host: 0,
                ..AdapterBudget::default()
            },
        );
        let (loaded, kernels) = (engine.memory(), engine.compiled_kernels());
        assert_eq!(kernels > 0, device != DeviceChoice::Cpu);
        let (mut said, mut left) = (None, None);
        for round in 0..3 {
            let files = NAMES.map(|name| attach_file(&engine, name));
            let ids = files.map(|(id, _)| id);
            let mixed = AdapterSet::sum([(ids[0], 0.5), (ids[1], 0.5)]);
            let sets = ids.map(AdapterSet::from).into_iter().chain([mixed]);
            let mut now: Vec<Vec<f32>> = sets.map(|set| logits(&engine, set)).collect();
            let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
            let held = engine.adapter_memory();
            assert!(held.device > bytes, "{held:?}: the mixture is there too");
            let host = if kernels > 0 { 0 } else { bytes };
            assert_eq!(held.host, host, "on {device}");
            // The weight is another adapter's, made of a file that is read again.
            let weighed = engine.set_weight(ids[0], 0.5, OnRunning::Refuse);
            weighed.expect("idle");
            now.push(logits(&engine, ids[0]));
            assert!((1..now.len()).all(|i| !now[..i].contains(&now[i])));
            assert!(*said.get_or_insert_with(|| now.clone()) == now, "{round}");
            for id in ids {
                engine.detach(id).expect("unused");
            }
            assert_eq!(engine.adapter_memory(), AdapterMemory::default());
            let memory = engine.memory();
            let tables = memory.adapters - memory.adapter_room;
            assert_eq!(tables, loaded.adapters - loaded.adapter_room);
            let kept = (memory.adapters, memory.arena);
            assert_eq!(*left.get_or_insert(kept), kept, "{round} on {device}");
            assert_eq!(engine.compiled_kernels(), kernels);
        }
    }
}

pub fn attach_file(engine: &Engine, name: &str) -> (AdapterId, u64) {
    let id = engine.attach_file(&folder(name), Precision::Stored);
    let id = id.expect(name);
    let status = status(engine, id);
    assert!(status.prepared_s > 0.0);
    (id, status.bytes)
}

/// A few slots, and no memory for adapters that are in none.
pub fn forgetful(adapter_slots: u32) -> Engine {
    load(&EngineOptions {
        adapter_slots,
        adapter_budget: AdapterBudget {
            host: 0,
            ..AdapterBudget::default()
        },
        ..cpu()
    })
}

/// Writes a demo adapter's files into a folder of the test's own.
fn copied(name: &str, to: &Path) {
    std::fs::create_dir_all(to).expect("folder");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        let bytes = std::fs::read(folder(name).join(file)).expect(file);
        std::fs::write(to.join(file), bytes).expect(file);
    }
}

#[test]
fn a_file_that_is_gone_is_told_to_its_user_only() {
    let temporary = tempfile::tempdir().expect("folder");
    let copy = temporary.path().join("adapter");
    copied("sql", &copy);
    let engine = forgetful(1);
    let id = engine
        .attach_file(&copy, Precision::Stored)
        .expect("attached");
    let json = attach(&engine, "json");
    let want = fresh(&engine, json);
    assert_eq!(tier(&engine, id), Tier::Disk);
    std::fs::remove_dir_all(&copy).expect("removed");
    let mut session = engine.session();
    session.set_adapter(id).expect("attached");
    let error = session.generate(&request()).err().expect("gone");
    assert!(error.to_string().contains("adapter_config.json"), "{error}");
    assert_eq!(fresh(&engine, json), want);
}

#[test]
fn a_file_that_changed_is_not_taken_for_what_it_was() {
    let temporary = tempfile::tempdir().expect("folder");
    let copy = temporary.path().join("adapter");
    copied("sql", &copy);
    let engine = forgetful(1);
    let id = engine
        .attach_file(&copy, Precision::Stored)
        .expect("attached");
    fresh(&engine, attach(&engine, "json"));
    copied("cypher", &copy);
    let mut session = engine.session();
    session.set_adapter(id).expect("attached");
    let error = session.generate(&request()).err().expect("changed");
    assert!(error.to_string().contains("changed since"), "{error}");
}

/// A session with a set.
pub fn wearing(engine: &Engine, set: impl Into<AdapterSet>) -> Session {
    let mut session = engine.session();
    session.set_adapter(set).expect("attached");
    session
}

/// An answer that ends with its length only.
pub fn endless() -> Request {
    Request {
        stop_at_end: false,
        ..request()
    }
}

pub fn ids(tokens: impl Iterator<Item = Result<Token>>) -> Vec<u32> {
    tokens.filter_map(|t| t.expect("token").id).collect()
}

/// Two answers run with an adapter that gets another weight; one of them also needs an adapter whose file is gone.
#[test]
fn a_weight_ends_only_answers_that_cannot_go_on() {
    let temporary = tempfile::tempdir().expect("folder");
    let copy = temporary.path().join("adapter");
    copied("json", &copy);
    let engine = forgetful(2);
    let sql = attach(&engine, "sql");
    let json = engine.attach_file(&copy, Precision::Stored);
    let json = json.expect("attached");
    let mut both = wearing(&engine, AdapterSet::sum([(sql, 1.0), (json, 1.0)]));
    let mut alone = wearing(&engine, sql);
    let ask = endless();
    let mut both = both.generate(&ask).expect("generate");
    let mut alone = alone.generate(&ask).expect("generate");
    let had = ids(alone.by_ref().take(4));
    assert_eq!(status(&engine, json).host_bytes, 0);
    std::fs::remove_dir_all(&copy).expect("removed");
    let error = engine.set_weight(sql, 0.5, OnRunning::Recompute);
    let error = error.expect_err("a file is gone").to_string();
    assert!(error.contains("adapter_config.json"), "{error}");
    let told = both.find_map(Result::err).expect("it cannot go on");
    let told = told.to_string();
    assert!(told.contains("its adapters changed"), "{told}");
    let rest = ids(alone);
    assert_eq!(had.len() + rest.len(), ask.max_tokens);
    assert_goes_on(&engine, sql, &ask, [&had, &rest]);
}

/// An answer comes to need what an idle slot holds, and what cannot be read again. Another, which needs a slot before, takes
/// one of which nobody needs anything.
#[test]
fn what_is_at_hand_stays_for_answers_that_come_to_need_it() {
    let temporary = tempfile::tempdir().expect("folder");
    let copy = temporary.path().join("adapter");
    copied("json", &copy);
    let engine = forgetful(3);
    let sql = attach(&engine, "sql");
    let json = engine.attach_file(&copy, Precision::Stored);
    let json = json.expect("attached");
    // The slot that was used longest ago, when the weight changes.
    logits(&engine, AdapterSet::sum([(sql, 1.0), (json, 1.0)]));
    let set = AdapterSet::sum([(sql, 2.0), (json, 1.0)]);
    let (mut alone, mut both) = (wearing(&engine, sql), wearing(&engine, set.clone()));
    let ask = endless();
    let alone = alone.generate(&ask).expect("generate");
    let mut both = both.generate(&ask).expect("generate");
    let had = ids(both.by_ref().take(4));
    assert_eq!(status(&engine, json).host_bytes, 0);
    std::fs::remove_dir_all(&copy).expect("removed");
    engine
        .set_weight(sql, 0.5, OnRunning::Recompute)
        .expect("all is at hand");
    assert_goes_on(&engine, set, &ask, [&had, &ids(both)]);
    assert_eq!(ids(alone).len(), ask.max_tokens);
}

/// What several answers need is read once, in whatever sets it is.
#[test]
fn a_file_that_several_answers_need_is_read_once() {
    let engine = forgetful(2);
    let sql = attach(&engine, "sql");
    let json = attach_file(&engine, "json").0;
    let ask = endless();
    let mut sessions =
        [1.0, 0.5].map(|weight| wearing(&engine, AdapterSet::sum([(sql, 1.0), (json, weight)])));
    let answers = sessions.iter_mut().map(|s| s.generate(&ask));
    let answers: Vec<Generation<'_>> = answers.collect::<Result<_>>().expect("generate");
    assert_eq!(status(&engine, json).host_bytes, 0);
    let said = told(Level::DEBUG, || {
        let weighed = engine.set_weight(sql, 0.5, OnRunning::Recompute);
        weighed.expect("recomputed");
    });
    assert_eq!(said.matches("read again").count(), 1, "{said}");
    for answer in answers {
        assert_eq!(ids(answer).len(), ask.max_tokens);
    }
}
