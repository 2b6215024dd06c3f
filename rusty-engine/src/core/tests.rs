//! Steps as an executable sees them: whose rows come with which slots.

use super::*;
use crate::adapters::{AdapterBudget, ReadTables, Source};
use crate::echo::{Echo, Row};
use crate::request::Prompt;
use proptest::prelude::*;
use rusty_adapters::{Precision, random};
use std::sync::Mutex;

/// Tokens of a prompt: more than one, so that rows of an answer are neighbours.
const PROMPT: usize = 3;

/// How much of adapters is at work at once, in the bytes of so many.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Nothing,
    /// What the engine was told to keep to.
    Budget(usize),
    /// What the device has.
    Room(usize),
}

/// Answers that run at once.
struct Running {
    core: Core,
    sessions: Vec<u64>,
    /// What each answer's rows are to find in their slots.
    wearing: Vec<String>,
    steps: Arc<Mutex<Vec<Vec<Row>>>>,
}

impl Running {
    /// An answer for each of `sets`: 0 is the base, others are adapters of their own, summed with all before where `mixed`.
    fn new(
        slots: u32,
        sets: &[usize],
        mixed: bool,
        length: usize,
        limit: Limit,
        queues: bool,
    ) -> Self {
        let file = rusty_loader::random::outline("qwen3-tiny", "f32").expect("outline");
        let graph = Arc::new(rusty_graph::arch::build(&*file).expect("graph"));
        let bytes = random("one", &graph.sites, 1, 1, Precision::F16).bytes();
        let (budget, room) = match limit {
            Limit::Nothing => (u64::MAX, None),
            Limit::Budget(count) => ((count * bytes) as u64, None),
            Limit::Room(count) => (u64::MAX, Some(count)),
        };
        let executable = Echo {
            room,
            queues,
            ..Echo::default()
        };
        let steps = executable.steps.clone();
        let budget = AdapterBudget {
            device: budget,
            ..AdapterBudget::default()
        };
        let registry = Registry::new(slots, budget, graph.clone());
        let mut core = Core::new(graph, 256, Box::new(executable), 256, 64, 64, registry);
        let most = sets.iter().copied().max().unwrap_or(0);
        let ids = (1..=most).map(|i| {
            let name = i.to_string();
            let data = random(&name, &core.graph.sites, 1, i as u64, Precision::F16);
            let (id, data) = (AdapterId(i as u32), Arc::new(data));
            core.admit(Arrival {
                id,
                held: data.clone(),
                data,
                source: Source::Given,
                prepared_s: 0.0,
            });
            id
        });
        let ids: Vec<AdapterId> = ids.collect();
        let (mut sessions, mut wearing) = (vec![], vec![]);
        for (token, set) in sets.iter().enumerate() {
            let first = if mixed { 0 } else { set.saturating_sub(1) };
            let own = AdapterSet::sum(ids[first..*set].iter().map(|id| (*id, 1.0)));
            let id = core.open();
            core.sequence(id).expect("open").0.set = own.clone();
            let key = core.adapters.resolve(&own).expect("attached");
            let mixture = match core.adapters.is_at_hand(&key) {
                true => None,
                false => {
                    let recipe = core.recipe(&key).expect("attached");
                    Some(recipe.make(&mut ReadTables::new()).expect("mixed"))
                }
            };
            let prompt = vec![token as u32; PROMPT];
            let request = Request {
                max_tokens: length,
                ..Request::new(Prompt::Tokens(prompt.clone()))
            };
            let begun = core.begin(id, &prompt, &request, None, mixture);
            begun.expect("begun");
            let names: Vec<String> = (first + 1..=*set).map(|i| i.to_string()).collect();
            sessions.push(id);
            wearing.push(if *set == 0 {
                "base".into()
            } else {
                names.join("+")
            });
        }
        Self {
            core,
            sessions,
            wearing,
            steps,
        }
    }

    /// Reads one answer as a session does, until a token comes; none at its end.
    fn pull(&mut self, at: usize) -> Option<u32> {
        let id = self.sessions[at];
        for _ in 0..1000 {
            let answer = self.core.sequence(id).expect("open").0.answer.as_mut();
            let answer = answer.expect("begun");
            if let Some(token) = answer.queue.pop_front() {
                return token.id;
            }
            assert!(answer.failure.is_none(), "{:?}", answer.failure);
            if answer.finish.is_some() {
                return None;
            }
            if let Some(recipe) = self.core.unmade_of(id).expect("attached") {
                let key = recipe.key.clone();
                let made = recipe.make(&mut ReadTables::new());
                self.core.hand(id, &key, made);
                continue;
            }
            assert!(self.core.step().expect("a step"), "nobody goes on");
        }
        panic!("answer {at} waits for ever");
    }
}

/// Rows of one adapter are neighbours in a step, so that its tables are read once.
#[test]
fn rows_are_grouped_by_adapter() {
    let mut running = Running::new(
        4,
        &[1, 2, 1, 0, 2, 1, 3, 0],
        false,
        4,
        Limit::Nothing,
        false,
    );
    for _ in 0..3 {
        assert!(running.core.step().expect("a step"));
    }
    let steps = running.steps.lock().expect("steps");
    assert_eq!(steps.iter().map(Vec::len).collect::<Vec<_>>(), [24, 8, 8]);
    for rows in steps.iter() {
        let mut runs: Vec<&str> = rows.iter().map(|(_, name)| name.as_str()).collect();
        runs.dedup();
        assert_eq!(runs.len(), 4, "{rows:?}");
    }
}

proptest! {
    /// Whatever wants to run and in whichever order it is read: all of it comes, and each row finds its own adapters.
    #[test]
    fn every_row_finds_its_own_adapters(
        slots in 1u32..4,
        sets in prop::collection::vec(0usize..6, 1..9),
        limit in prop_oneof![
            Just(Limit::Nothing),
            (1usize..3).prop_map(Limit::Budget),
            (1usize..3).prop_map(Limit::Room),
        ],
        mixed in any::<bool>(),
        queues in any::<bool>(),
        order in prop::collection::vec(0usize..9, 1..20),
    ) {
        const LENGTH: usize = 70;
        // Mixtures are larger than what these leave.
        let mixed = mixed && matches!(limit, Limit::Nothing);
        let mut running = Running::new(slots, &sets, mixed, LENGTH, limit, queues);
        let mut came = vec![0; sets.len()];
        let all = (0..sets.len()).cycle().take(sets.len() * (LENGTH + 1));
        for at in order.iter().map(|at| at % sets.len()).chain(all) {
            if let Some(token) = running.pull(at) {
                prop_assert_eq!(token, at as u32);
                came[at] += 1;
            }
        }
        prop_assert!(came.iter().all(|count| *count == LENGTH), "{:?}", came);
        for rows in running.steps.lock().expect("steps").iter() {
            let mut distinct: Vec<&str> = rows.iter().map(|(_, name)| name.as_str()).collect();
            distinct.retain(|name| *name != "base");
            distinct.sort_unstable();
            distinct.dedup();
            let most = match limit {
                Limit::Nothing => slots as usize,
                Limit::Budget(count) | Limit::Room(count) => count.min(slots as usize),
            };
            prop_assert!(distinct.len() <= most, "{:?}", rows);
            for (token, name) in rows {
                prop_assert_eq!(name, &running.wearing[*token as usize]);
            }
        }
    }
}

/// Steps that ran so far, and those of them whose results were not taken.
fn counts(running: &Running) -> (usize, bool) {
    let steps = running.steps.lock().expect("steps").len();
    (steps, running.core.under_way.is_some())
}

/// A step more than were waited for, until an answer is about to end; and as many pages as without.
#[test]
fn steps_run_ahead_until_the_end_is_known() {
    const LENGTH: usize = 14;
    let mut left = vec![];
    for queues in [false, true] {
        let mut running = Running::new(1, &[0, 0], false, LENGTH, Limit::Nothing, queues);
        for at in 1..LENGTH {
            assert_eq!(running.pull(0), Some(0));
            let ahead = usize::from(queues);
            assert_eq!(counts(&running), (at + ahead, queues), "token {at}");
        }
        assert_eq!(running.pull(0), Some(0));
        assert_eq!(counts(&running), (LENGTH, false));
        assert_eq!(running.pull(0), None);
        left.push(running.core.pool.free());
    }
    assert_eq!(left[0], left[1], "free pages");
}

/// An answer that lost its slot, and whose reader does not ask for it, holds up nobody.
#[test]
fn steps_run_ahead_of_readers_that_pause() {
    let mut running = Running::new(1, &[1, 2], false, 100, Limit::Nothing, true);
    assert_eq!(running.pull(0), Some(0));
    // It waits for the other's turn to end.
    assert_eq!(running.pull(1), Some(1));
    let paused = running.core.sequence(running.sessions[0]).expect("open").0;
    assert!(paused.waiting().rows > 0, "its queue has room");
    for _ in 0..20 {
        assert_eq!(running.pull(1), Some(1));
        assert!(running.core.under_way.is_some());
    }
    assert_eq!(std::iter::from_fn(|| running.pull(0)).count(), 99);
}

/// What is under way for an answer that was given up does not come to the next one of its session, nor to others.
#[test]
fn an_answer_gets_no_tokens_of_the_one_before() {
    let mut running = Running::new(1, &[0, 0], false, 20, Limit::Nothing, true);
    for at in [0, 1, 0] {
        assert_eq!(running.pull(at), Some(at as u32));
    }
    assert!(running.core.under_way.is_some());
    let id = running.sessions[0];
    // The same tokens up to the one that is under way, then another one.
    let tokens = [
        running.core.sequence(id).expect("open").0.tokens.clone(),
        vec![9],
    ]
    .concat();
    let request = Request {
        max_tokens: 3,
        ..Request::new(Prompt::Tokens(tokens.clone()))
    };
    let begun = running.core.begin(id, &tokens, &request, None, None);
    begun.expect("begun");
    let came: Vec<u32> = std::iter::from_fn(|| running.pull(0)).collect();
    assert_eq!(came, [9; 3]);
    assert_eq!(std::iter::from_fn(|| running.pull(1)).count(), 19);
}

/// Whoever runs rows of his own does so behind what is under way, which comes to those who wait for it.
#[test]
fn what_is_under_way_is_settled() {
    let mut running = Running::new(1, &[0], false, 5, Limit::Nothing, true);
    assert_eq!(running.pull(0), Some(0));
    assert!(running.core.under_way.is_some());
    running.core.settle().expect("settled");
    assert!(running.core.under_way.is_none());
    assert_eq!(std::iter::from_fn(|| running.pull(0)).count(), 4);
}
