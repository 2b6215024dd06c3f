//! Adapters come, go and change while others answer; slots and memory are caches that nobody notices.

use super::demo::{attach, chat};
use super::{cpu, demo as load};
use crate::golden_paths::{golden, root};
use rusty_adapters::Precision;
use rusty_backend::DeviceChoice;
use rusty_engine::adapters::{AdapterBudget, OnRunning, Tier};
use rusty_engine::{AdapterId, AdapterSet, Engine, EngineOptions, Request, Session};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const QUESTION: &str = "Find users older than 30";
const NAMES: [&str; 3] = ["sql", "json", "cypher"];

fn request() -> Request {
    chat(QUESTION, 48)
}

fn answer(session: &mut Session) -> Vec<u32> {
    let tokens = session.generate(&request()).expect("generate");
    tokens.filter_map(|t| t.expect("token").id).collect()
}

fn fresh(engine: &Engine, set: impl Into<AdapterSet>) -> Vec<u32> {
    let mut session = engine.session();
    session.set_adapter(set).expect("attached");
    answer(&mut session)
}

fn folder(name: &str) -> PathBuf {
    root().join("assets/demo/adapters").join(name)
}

fn tier(engine: &Engine, id: AdapterId) -> Tier {
    let all = engine.adapters();
    all.iter().find(|a| a.id == id).expect("attached").tier
}

#[test]
fn attaching_and_detaching_leave_running_answers_as_they_are() {
    let engine = load(&cpu());
    let sql = attach(&engine, "sql");
    let want = fresh(&engine, sql);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swaps = scope.spawn(|| {
            let mut swaps = 0;
            while !done.load(Ordering::Relaxed) {
                let json = attach(&engine, "json");
                engine.detach(json).expect("detach");
                swaps += 1;
            }
            swaps
        });
        for _ in 0..8 {
            assert_eq!(fresh(&engine, sql), want);
        }
        done.store(true, Ordering::Relaxed);
        assert!(swaps.join().expect("swaps") > 0);
    });
}

#[test]
fn an_adapter_in_use_stays_and_a_detached_one_is_refused() {
    let engine = load(&cpu());
    let before = engine.memory();
    let sql = attach(&engine, "sql");
    let mut session = engine.session();
    session.set_adapter(sql).expect("attached");
    let error = engine.detach(sql).expect_err("in use").to_string();
    assert!(error.contains("1 sessions"), "{error}");
    session.set_adapter(None).expect("base");
    engine.detach(sql).expect("unused");
    assert!(session.set_adapter(sql).is_err());
    assert!(engine.detach(sql).is_err() && engine.adapters().is_empty());
    let after = engine.memory();
    assert_eq!((after.adapters, before.adapters), (0, 0));
    // Room for `A x` of the largest rank stays with the arena.
    assert!(after.arena - before.arena < 1 << 20, "{before:?} {after:?}");
}

#[test]
fn changing_adapters_or_weights_never_reuses_the_cache() {
    let engine = load(&cpu());
    let ids = NAMES.map(|name| attach(&engine, name));
    let mut session = engine.session();
    for set in [
        AdapterSet::from(ids[0]),
        ids[1].into(),
        AdapterSet::BASE,
        AdapterSet::sum([(ids[0], 0.5), (ids[2], 0.5)]),
        ids[0].into(),
    ] {
        session.set_adapter(set.clone()).expect("attached");
        assert_eq!(answer(&mut session), fresh(&engine, set));
    }
    // Another weight is another adapter, for every session that uses it.
    let full = answer(&mut session);
    engine
        .set_weight(ids[0], 0.0, OnRunning::Refuse)
        .expect("idle");
    let none = answer(&mut session);
    assert_ne!(none, full);
    assert_eq!(none, fresh(&engine, None));
    engine
        .set_weight(ids[0], 1.0, OnRunning::Refuse)
        .expect("idle");
    assert_eq!(answer(&mut session), full);
    assert!(
        engine
            .set_weight(ids[0], f32::NAN, OnRunning::Refuse)
            .is_err()
    );
}

#[test]
fn a_weight_changes_under_a_running_answer_only_where_asked() {
    let engine = load(&cpu());
    let (sql, other) = (attach(&engine, "sql"), attach(&engine, "json"));
    let want = fresh(&engine, sql);
    let mut session = engine.session();
    session.set_adapter(sql).expect("attached");
    let ask = request();
    let prompt = session.prompt_tokens(&ask.prompt).expect("prompt");
    let mut running = session.generate(&ask).expect("generate");
    let mut have: Vec<u32> = running
        .by_ref()
        .take(4)
        .filter_map(|t| t.expect("token").id)
        .collect();
    let error = engine.set_weight(sql, 0.0, OnRunning::Refuse);
    let error = error.expect_err("an answer runs").to_string();
    assert!(error.contains("1 answers"), "{error}");
    engine
        .set_weight(other, 0.3, OnRunning::Refuse)
        .expect("another's weight");
    have.extend(
        running
            .by_ref()
            .take(2)
            .filter_map(|t| t.expect("token").id),
    );
    assert_eq!(have, want[..have.len()]);
    engine
        .set_weight(sql, 0.0, OnRunning::Recompute)
        .expect("recomputed");
    let rest: Vec<u32> = running.filter_map(|t| t.expect("token").id).collect();
    // What is left is what the base makes of the prompt and the answer so far; one token was sampled before.
    let known = [&prompt[..], &have, &rest[..1]].concat();
    let mut base = engine.session();
    let go_on = Request {
        max_tokens: 48 - have.len() - 1,
        ..Request::new(rusty_engine::Prompt::Tokens(known))
    };
    let tokens = base.generate(&go_on).expect("generate");
    let expected: Vec<u32> = tokens.filter_map(|t| t.expect("token").id).collect();
    assert_eq!(rest[1..], expected);
}

#[test]
fn more_adapters_than_slots_take_turns() {
    let engine = load(&EngineOptions {
        adapter_slots: 2,
        ..cpu()
    });
    let roomy = load(&cpu());
    let ids = NAMES.map(|name| (name, attach(&engine, name)));
    for _ in 0..2 {
        for (name, id) in ids {
            assert_eq!(fresh(&engine, id), fresh(&roomy, attach(&roomy, name)));
        }
    }
    // Two answers hold both slots; a third waits for neither and is told so. The base needs no slot.
    let mut sessions: Vec<Session> = ids
        .iter()
        .map(|(_, id)| {
            let mut session = engine.session();
            session.set_adapter(*id).expect("attached");
            session
        })
        .collect();
    let [a, b, c] = &mut sessions[..] else {
        panic!("three sessions")
    };
    let ask = request();
    let mut first = a.generate(&ask).expect("generate");
    let mut second = b.generate(&ask).expect("generate");
    assert!(first.next().is_some() && second.next().is_some());
    let error = c.generate(&ask).err().expect("no slot").to_string();
    assert!(error.contains("all 2 adapter slots"), "{error}");
    fresh(&engine, None);
    drop(first);
    assert!(c.generate(&ask).is_ok());
}

#[test]
fn budgets_move_adapters_between_tiers_and_back() {
    let bytes = attach_file(&load(&cpu()), "sql").1;
    let engine = load(&EngineOptions {
        adapter_budget: AdapterBudget {
            device: bytes * 3 / 2,
            host: bytes * 5 / 2,
        },
        ..cpu()
    });
    let ids = NAMES.map(|name| attach_file(&engine, name).0);
    let want: Vec<_> = NAMES
        .map(|name| {
            let roomy = load(&cpu());
            fresh(&roomy, attach(&roomy, name))
        })
        .to_vec();
    for round in 0..2 {
        for (id, want) in ids.iter().zip(&want) {
            assert_eq!(fresh(&engine, *id), *want, "round {round}");
            assert_eq!(tier(&engine, *id), Tier::Device);
            let tiers = ids.map(|id| tier(&engine, id));
            let held = tiers.iter().filter(|t| **t == Tier::Device).count();
            assert_eq!(held, 1, "{tiers:?}");
        }
        assert_eq!(tier(&engine, ids[0]), Tier::Disk);
        assert_eq!(tier(&engine, ids[1]), Tier::Host);
    }
    // Pinned adapters do not make room.
    fresh(&engine, ids[0]);
    engine.pin(ids[0], true).expect("attached");
    assert_eq!(fresh(&engine, ids[1]), want[1]);
    assert_eq!(fresh(&engine, ids[2]), want[2]);
    assert_eq!(tier(&engine, ids[0]), Tier::Device);
    assert!(engine.adapters()[0].pinned);
}

fn attach_file(engine: &Engine, name: &str) -> (AdapterId, u64) {
    let id = engine.attach_file(&folder(name), Precision::Stored);
    let id = id.expect(name);
    let all = engine.adapters();
    let status = all.iter().find(|a| a.id == id).expect(name);
    assert!(status.prepared_s > 0.0);
    (id, status.bytes)
}

/// One slot, and no memory for adapters that are in none.
fn forgetful() -> Engine {
    load(&EngineOptions {
        adapter_slots: 1,
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
    let engine = forgetful();
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
fn an_adapter_of_another_model_is_refused_with_both_shapes() {
    let engine = load(&cpu());
    let path = golden("adapters/qwen3-lora-all");
    let error = engine.attach_file(&path, Precision::Stored);
    let error = error.expect_err("another model").to_string();
    assert!(
        error.contains("lora_A") && error.contains("needs"),
        "{error}"
    );
    assert!(engine.adapters().is_empty());
}

#[test]
fn a_file_that_changed_is_not_taken_for_what_it_was() {
    let temporary = tempfile::tempdir().expect("folder");
    let copy = temporary.path().join("adapter");
    copied("sql", &copy);
    let engine = forgetful();
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

/// Reweighting all answers of an engine with one slot, and adapters whose virtual tokens stand in the answers.
#[test]
fn weights_change_in_the_slot_at_hand_and_soft_prompts_stay() {
    let engine = load(&EngineOptions {
        adapter_slots: 1,
        ..cpu()
    });
    let sql = attach(&engine, "sql");
    let mut sessions = [engine.session(), engine.session()];
    let ask = request();
    let mut running: Vec<_> = sessions
        .iter_mut()
        .map(|s| {
            s.set_adapter(sql).expect("attached");
            s.generate(&ask).expect("generate")
        })
        .collect();
    for answer in &mut running {
        answer.next().expect("goes on").expect("token");
    }
    engine
        .set_weight(sql, 0.9, OnRunning::Recompute)
        .expect("in its own slot");
    for answer in running {
        assert!(answer.filter_map(|t| t.expect("token").id).count() > 3);
    }

    let base = "models/qwen3-tied";
    let engine = super::engine(base, DeviceChoice::Cpu, rusty_compiler::KvFormat::F32);
    for name in ["qwen3-prompt", "qwen3-prefix"] {
        let path = golden(&format!("adapters/{name}"));
        let id = engine.attach_file(&path, Precision::Stored).expect(name);
        let ask = Request {
            max_tokens: 6,
            stop_at_end: false,
            ..Request::new(rusty_engine::Prompt::Tokens(vec![1, 2, 3]))
        };
        let mut session = engine.session();
        session.set_adapter(id).expect(name);
        let all = |s: &mut Session| -> Vec<u32> {
            let tokens = s.generate(&ask).expect("generate");
            tokens.filter_map(|t| t.expect("token").id).collect()
        };
        let want = all(&mut session);
        let mut running = session.generate(&ask).expect("generate");
        let first = running.next().expect("goes on").expect("token");
        let error = engine.set_weight(id, 0.0, OnRunning::Recompute);
        let error = error.expect_err("a soft prompt").to_string();
        assert!(error.contains("soft prompt"), "{error}");
        let rest: Vec<u32> = running.filter_map(|t| t.expect("token").id).collect();
        assert_eq!(
            [&[first.id.expect("id")], &rest[..]].concat(),
            want,
            "{name}"
        );
    }
}
