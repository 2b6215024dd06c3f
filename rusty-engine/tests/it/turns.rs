//! More sets of adapters than slots: answers that run at once take turns, and say what they would say alone.

use super::residency::NAMES;
use super::tiers::{attach_file, endless, ids, wearing};
use super::{cpu, demo as load, logits};
use rusty_engine::{AdapterBudget, AdapterSet, Engine, EngineOptions, Request, Session};

/// Longer than a turn.
const TOKENS: usize = 80;

fn ask() -> Request {
    Request {
        max_tokens: TOKENS,
        ..endless()
    }
}

/// An engine with a few slots, three adapters, and sets of them.
fn crowded(adapter_slots: u32, budget: AdapterBudget) -> (Engine, Vec<AdapterSet>) {
    let engine = load(&EngineOptions {
        adapter_slots,
        adapter_budget: budget,
        sessions: 8,
        ..cpu()
    });
    let [sql, json, cypher] = NAMES.map(|name| attach_file(&engine, name).0);
    let sets = vec![
        sql.into(),
        json.into(),
        AdapterSet::BASE,
        cypher.into(),
        AdapterSet::sum([(sql, 0.5), (cypher, 0.5)]),
        json.into(),
    ];
    (engine, sets)
}

fn sessions(engine: &Engine, sets: &[AdapterSet]) -> Vec<Session> {
    let wearing = |set: &AdapterSet| wearing(engine, set.clone());
    sets.iter().map(wearing).collect()
}

/// What each set says where all have slots.
fn said_alone() -> Vec<Vec<u32>> {
    let (engine, sets) = crowded(16, AdapterBudget::default());
    let alone = sessions(&engine, &sets);
    let alone = alone.into_iter();
    alone
        .map(|mut s| ids(s.generate(&ask()).expect("generate")))
        .collect()
}

#[test]
fn answers_with_more_adapters_than_slots_take_turns() {
    let want = said_alone();
    assert!(want.iter().all(|said| said.len() == TOKENS));
    assert!(want[0] != want[1] && want[1] != want[3] && want[1] == want[5]);
    let forgetful = AdapterBudget {
        host: 0,
        ..AdapterBudget::default()
    };
    for (slots, budget) in [(1, AdapterBudget::default()), (2, forgetful)] {
        let (engine, sets) = crowded(slots, budget);
        // One reader takes a token of each.
        let mut all = sessions(&engine, &sets);
        let ask = ask();
        let answers = all.iter_mut().map(|s| s.generate(&ask).expect("generate"));
        let mut answers: Vec<_> = answers.collect();
        let mut have = vec![vec![]; sets.len()];
        for _ in 0..=TOKENS {
            for (answer, have) in answers.iter_mut().zip(&mut have) {
                have.extend(ids(answer.take(1)));
            }
        }
        assert!(have == want, "one reader, {slots} slots");
        drop(answers);
        // Each has a reader of its own, and somebody asks between.
        all.iter_mut().for_each(Session::clear);
        let before = logits(&engine, sets[4].clone());
        std::thread::scope(|scope| {
            let readers = all.iter_mut().map(|session| {
                let ask = &ask;
                scope.spawn(move || ids(session.generate(ask).expect("generate")))
            });
            let readers: Vec<_> = readers.collect();
            assert!(logits(&engine, sets[4].clone()) == before);
            for (reader, want) in readers.into_iter().zip(&want) {
                assert_eq!(&reader.join().expect("an answer"), want, "{slots} slots");
            }
        });
    }
}

/// Who waits is served before those who have slots are done.
#[test]
fn no_answer_keeps_a_slot_for_itself() {
    let (engine, sets) = crowded(1, AdapterBudget::default());
    let mut all = sessions(&engine, &sets[..2]);
    let [first, second] = &mut all[..] else {
        panic!("two sessions")
    };
    let (ask, brief) = (
        ask(),
        Request {
            max_tokens: 1,
            ..ask()
        },
    );
    let mut long = first.generate(&ask).expect("generate");
    let began = ids(long.by_ref().take(1));
    assert_eq!(began.len(), 1);
    assert_eq!(ids(second.generate(&brief).expect("generate")).len(), 1);
    assert!(long.finish().is_none(), "the other waited for all of it");
    assert_eq!(ids(long).len(), TOKENS - 1);
}

/// Where pinned adapters have all slots, nobody waits for what never comes.
#[test]
fn pinned_adapters_in_all_slots_are_told() {
    let (engine, sets) = crowded(1, AdapterBudget::default());
    let [first, second] = [&sets[0], &sets[1]];
    let pinned = first.entries()[0].0;
    logits(&engine, first.clone());
    engine.pin(pinned, true).expect("attached");
    let mut session = wearing(&engine, second.clone());
    let error = session.generate(&ask()).err().expect("no slot").to_string();
    assert!(error.contains("all 1 adapter slots hold pinned"), "{error}");
    engine.pin(pinned, false).expect("attached");
    assert_eq!(
        ids(session.generate(&ask()).expect("generate")).len(),
        TOKENS
    );
}

/// Adapters that arrive while somebody waits for a slot keep to the host's budget, too.
#[test]
fn who_arrives_while_others_wait_keeps_to_the_budget() {
    let forgetful = AdapterBudget {
        host: 0,
        ..AdapterBudget::default()
    };
    let (engine, sets) = crowded(1, forgetful);
    let mut all = sessions(&engine, &sets[..2]);
    let ask = ask();
    let answers = all.iter_mut().map(|s| s.generate(&ask).expect("generate"));
    let mut answers: Vec<_> = answers.collect();
    assert_eq!(ids(answers[0].by_ref().take(1)).len(), 1);
    let held = engine.adapter_memory().host;
    for name in NAMES {
        attach_file(&engine, name);
        assert_eq!(engine.adapter_memory().host, held, "{name}");
    }
    for (answer, left) in answers.into_iter().zip([TOKENS - 1, TOKENS]) {
        assert_eq!(ids(answer).len(), left);
    }
}
