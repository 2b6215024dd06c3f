//! Adapters come, go and change while others answer; slots and memory are caches that nobody notices.

use super::demo::{attach, chat};
use super::tiers::{attach_file, forgetful};
use super::{cpu, demo as load, logits};
use crate::golden_paths::golden;
use rusty_adapters::Precision;
use rusty_backend::DeviceChoice;
use rusty_engine::{
    AdapterId, AdapterSet, Engine, EngineOptions, OnRunning, Prompt, Request, Session,
};
use std::sync::atomic::{AtomicBool, Ordering};

const QUESTION: &str = "Find users older than 30";
pub const NAMES: [&str; 3] = ["sql", "json", "cypher"];

pub fn request() -> Request {
    chat(QUESTION, 48)
}

fn answer(session: &mut Session) -> Vec<u32> {
    let tokens = session.generate(&request()).expect("generate");
    tokens.filter_map(|t| t.expect("token").id).collect()
}

pub fn fresh(engine: &Engine, set: impl Into<AdapterSet>) -> Vec<u32> {
    let mut session = engine.session();
    session.set_adapter(set).expect("attached");
    answer(&mut session)
}

/// Asserts that the rest of an answer is what a set makes of the prompt and all that it `had`; the rest's first token may
/// have been sampled before.
pub fn assert_goes_on(
    engine: &Engine,
    set: impl Into<AdapterSet>,
    ask: &Request,
    [had, rest]: [&[u32]; 2],
) {
    let mut session = engine.session();
    session.set_adapter(set).expect("attached");
    let prompt = session.prompt_tokens(&ask.prompt).expect("prompt");
    let known = [&prompt[..], had, &rest[..1]].concat();
    let go_on = Request {
        prompt: Prompt::Tokens(known),
        max_tokens: ask.max_tokens - had.len() - 1,
        ..ask.clone()
    };
    let tokens = session.generate(&go_on).expect("generate");
    let expected: Vec<u32> = tokens.filter_map(|t| t.expect("token").id).collect();
    assert_eq!(rest[1..], expected);
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
    assert_goes_on(&engine, AdapterSet::BASE, &ask, [&have, &rest]);
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

/// The weights that an adapter has in turn.
const WEIGHTS: [f32; 2] = [1.0, 0.5];

/// Sets with an adapter whose weight changes, and what they give.
struct Weighed {
    engine: Engine,
    changing: AdapterId,
    sets: [AdapterSet; 3],
    /// At each of the two weights.
    want: [[Vec<f32>; 3]; 2],
    base: Vec<f32>,
}

impl Weighed {
    fn new(slots: u32) -> Self {
        let engine = forgetful(slots);
        let [sql, json, cypher] = NAMES.map(|name| attach_file(&engine, name).0);
        let sets = [
            AdapterSet::sum([(sql, 0.5), (json, 0.5)]),
            AdapterSet::sum([(json, 0.7), (cypher, 0.3)]),
            json.into(),
        ];
        let want = WEIGHTS.map(|weight| {
            let weighed = engine.set_weight(json, weight, OnRunning::Refuse);
            weighed.expect("idle");
            sets.each_ref().map(|set| logits(&engine, set.clone()))
        });
        let base = logits(&engine, None);
        assert!((0..3).all(|i| want[0][i] != want[1][i] && want[1][i] != base));
        Self {
            engine,
            changing: json,
            sets,
            want,
            base,
        }
    }

    /// Asserts that every set gives what it gives at one of these weights.
    fn assert_of(&self, weights: &[usize]) {
        for (i, set) in self.sets.iter().enumerate() {
            let have = logits(&self.engine, set.clone());
            let right = weights.iter().any(|w| have == self.want[*w][i]);
            assert!(right, "set {i} is of none of weights {weights:?}");
        }
    }

    /// The weight changes while two ask, and is the last of these then.
    fn race(&self, weights: [usize; 3]) {
        let ask = || (0..2).for_each(|_| self.assert_of(&[0, 1]));
        std::thread::scope(|scope| {
            scope.spawn(ask);
            scope.spawn(ask);
            for weight in weights.map(|w| WEIGHTS[w]) {
                let weighed = self
                    .engine
                    .set_weight(self.changing, weight, OnRunning::Refuse);
                weighed.expect("no answer runs");
                assert!(logits(&self.engine, None) == self.base);
            }
        });
    }
}

/// Adapters are stacked while others run: what comes of it belongs to the weights that hold when a step runs, whatever
/// changed meanwhile. With one slot everything is stacked each time; with eight a slot with what was stacked of another
/// weight would stay there.
#[test]
fn mixtures_are_of_one_weight_while_weights_change() {
    for slots in [1, 8] {
        let weighed = Weighed::new(slots);
        for weights in [[1, 0, 1], [0, 1, 0], [1, 0, 1]] {
            weighed.race(weights);
            for _ in 0..2 {
                weighed.assert_of(&weights[2..]);
            }
        }
    }
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
            ..Request::new(Prompt::Tokens(vec![1, 2, 3]))
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
