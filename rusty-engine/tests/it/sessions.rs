//! What a session says does not depend on its neighbours, on chunks, on reuse or on what went wrong before.

use super::demo::{attach, chat};
use super::{cpu, demo as load};
use rusty_backend::DeviceChoice;
use rusty_compiler::KvFormat;
use rusty_engine::{
    AdapterId, AdapterSet, Engine, EngineOptions, Error, Finish, Prompt, Request, Sampling, Session,
};
use std::sync::Barrier;

const QUESTIONS: [&str; 4] = [
    "Find users older than 30",
    "Who are you?",
    "What is the capital of France?",
    "Show the five cheapest products",
];

fn answer(session: &mut Session, request: &Request) -> Vec<u32> {
    let generation = session.generate(request).expect("generate");
    generation.filter_map(|t| t.expect("token").id).collect()
}

/// All questions with the base and each adapter, one after the other in fresh sessions.
fn alone(
    engine: &Engine,
    adapters: &[Option<AdapterId>],
    request: impl Fn(&str) -> Request,
) -> Vec<Vec<u32>> {
    let mut answers = vec![];
    for (i, question) in QUESTIONS.iter().enumerate() {
        let mut session = engine.session();
        session.set_adapter(adapters[i]).expect("attached");
        answers.push(answer(&mut session, &request(question)));
    }
    answers
}

fn sampled(text: &str) -> Request {
    Request {
        sampling: Sampling {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            repetition_penalty: 1.05,
            seed: 7,
            ..Sampling::default()
        },
        ..chat(text, 32)
    }
}

#[test]
fn neighbours_with_other_adapters_change_nothing() {
    let engine = load(&cpu());
    let adapters = [
        Some(attach(&engine, "sql")),
        None,
        Some(attach(&engine, "json")),
        Some(attach(&engine, "cypher")),
    ];
    for request in [|q: &str| chat(q, 32), sampled] {
        let want = alone(&engine, &adapters, request);
        let start = Barrier::new(QUESTIONS.len());
        let have: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = QUESTIONS
                .iter()
                .zip(adapters)
                .map(|(question, adapter)| {
                    let (engine, start) = (&engine, &start);
                    scope.spawn(move || {
                        let mut session = engine.session();
                        session.set_adapter(adapter).expect("attached");
                        start.wait();
                        answer(&mut session, &request(question))
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("thread"))
                .collect()
        });
        assert_eq!(have, want);
    }
}

#[test]
fn interleaved_sessions_are_isolated() {
    let engine = load(&cpu());
    let want = alone(&engine, &[None; 4], |q| chat(q, 24));
    let mut sessions: Vec<Session> = QUESTIONS.iter().map(|_| engine.session()).collect();
    let mut running: Vec<_> = sessions
        .iter_mut()
        .zip(QUESTIONS)
        .map(|(s, q)| s.generate(&chat(q, 24)).expect("generate"))
        .collect();
    let mut have = vec![vec![]; 4];
    loop {
        let mut any = false;
        for (generation, ids) in running.iter_mut().zip(&mut have) {
            if let Some(token) = generation.next() {
                ids.extend(token.expect("token").id);
                any = true;
            }
        }
        if !any {
            break;
        }
    }
    assert_eq!(have, want);
}

#[test]
fn a_kept_prefix_gives_what_a_fresh_session_gives() {
    let engine = load(&cpu());
    let tokens: Vec<u32> = (0..90).map(|i| 300 + i * 13 % 900).collect();
    let request = |tokens: &[u32]| Request {
        max_tokens: 12,
        stop_at_end: false,
        ..Request::new(Prompt::Tokens(tokens.to_vec()))
    };
    let mut kept = engine.session();
    answer(&mut kept, &request(&tokens[..40]));
    // The second prompt shares 37 tokens with what is in the cache, then departs.
    let mut second = tokens.clone();
    second[37] = 5;
    let mut generation = kept.generate(&request(&second)).expect("generate");
    let have: Vec<u32> = generation
        .by_ref()
        .filter_map(|t| t.expect("token").id)
        .collect();
    let cached = generation.timings().cached_tokens;
    assert!((32..=37).contains(&cached), "{cached} tokens were kept");
    assert_eq!(have, answer(&mut engine.session(), &request(&second)));
}

/// Where frequencies depend on the length, an answer and a chat that grow past the limit go on as fresh prompts of the
/// same tokens would.
#[test]
fn growing_past_a_rotary_limit_is_as_starting_beyond_it() {
    for (model, grows) in [
        ("models/phi3-longrope", true),
        ("models/llama-dynamic", false),
    ] {
        let file = rusty_loader::open(super::golden(model)).expect(model);
        let options = EngineOptions {
            // References are single precision.
            single_precision: true,
            device: DeviceChoice::Cpu,
            kv: KvFormat::F32,
            context: Some(96),
            sessions: 2,
            ..EngineOptions::default()
        };
        let engine = Engine::load(&*file, &options).expect(model);
        let request = |tokens: &[u32], max_tokens| Request {
            max_tokens,
            stop_at_end: false,
            ..Request::new(Prompt::Tokens(tokens.to_vec()))
        };
        let fresh = |tokens: &[u32], count| answer(&mut engine.session(), &request(tokens, count));
        // Both limits lie between 20 and 60 tokens.
        let mut tokens: Vec<u32> = (0..20).map(|i| i * 37 % 251).collect();
        let mut session = engine.session();
        let count = if grows { 24 } else { 4 };
        let said = answer(&mut session, &request(&tokens, count));
        for token in &said {
            if grows {
                assert_eq!([*token], fresh(&tokens, 1)[..], "{model} {}", tokens.len());
            }
            tokens.push(*token);
        }
        tokens.extend((0..40).map(|i| (i * 53 + 7) % 251));
        let again = answer(&mut session, &request(&tokens, 4));
        assert_eq!(again, fresh(&tokens, 4), "{model}");
    }
}

#[test]
fn endings_are_told_apart() {
    let engine = load(&cpu());
    let finish = |request: &Request| {
        let mut session = engine.session();
        let mut generation = session.generate(request).expect("generate");
        let text: String = generation
            .by_ref()
            .map(|t| t.expect("token").text)
            .collect();
        (text, generation.finish())
    };
    let whole = "You could look through the users and keep those older than 30.";
    assert_eq!(
        finish(&chat(QUESTIONS[0], 64)),
        (whole.into(), Some(Finish::End))
    );
    let (text, end) = finish(&chat(QUESTIONS[0], 3));
    assert!(
        whole.starts_with(&text) && end == Some(Finish::Length),
        "{text} {end:?}"
    );
    let stopping = Request {
        stop: vec!["older".into()],
        ..chat(QUESTIONS[0], 64)
    };
    let before = "You could look through the users and keep those ";
    assert_eq!(finish(&stopping), (before.into(), Some(Finish::Stop)));
}

#[test]
fn a_full_context_ends_the_answer_and_a_longer_prompt_is_refused() {
    let engine = load(&EngineOptions {
        context: Some(48),
        ..cpu()
    });
    let request = |count: u32| Request {
        max_tokens: 1000,
        stop_at_end: false,
        ..Request::new(Prompt::Tokens((0..count).map(|i| 400 + i).collect()))
    };
    let mut session = engine.session();
    let mut generation = session.generate(&request(40)).expect("generate");
    let count = generation
        .by_ref()
        .filter(|t| t.as_ref().expect("token").id.is_some())
        .count();
    assert_eq!(generation.finish(), Some(Finish::Context));
    assert!((8..=9).contains(&count), "{count} tokens");
    drop(generation);
    let refused = session.generate(&request(60)).err().expect("too long");
    assert!(
        matches!(refused, Error::ContextFull { context: 48, .. }),
        "{refused}"
    );
    // The session goes on after the refusal.
    assert_eq!(answer(&mut session, &chat("Who are you?", 4)).len(), 4);
}

#[test]
fn a_full_cache_is_an_error_that_harms_nobody() {
    let engine = load(&EngineOptions {
        context: Some(64),
        sessions: 1,
        ..cpu()
    });
    let request = |first: u32| Request {
        max_tokens: 8,
        stop_at_end: false,
        ..Request::new(Prompt::Tokens((0..48).map(|i| first + i).collect()))
    };
    let mut one = engine.session();
    let mut generation = one.generate(&request(400)).expect("first");
    let head = generation.next().expect("token").expect("token").id;
    let mut other = engine.session();
    let full = other
        .generate(&request(500))
        .and_then(|generation| generation.collect::<Result<Vec<_>, _>>().map(|_| ()))
        .expect_err("no room");
    assert!(full.to_string().contains("page"), "{full}");
    let rest: Vec<u32> = generation.filter_map(|t| t.expect("token").id).collect();
    let have: Vec<u32> = head.into_iter().chain(rest).collect();
    drop(one);
    let mut fresh = engine.session();
    assert_eq!(have, answer(&mut fresh, &request(400)));
    drop(fresh);
    assert_eq!(answer(&mut other, &request(500)).len(), 8);
}

/// Tokens of an answer, and how it failed.
fn outcome(generation: rusty_engine::Generation<'_>) -> (Vec<u32>, Option<Error>) {
    let (mut ids, mut failure) = (vec![], None);
    for token in generation {
        match token {
            Ok(token) => ids.extend(token.id),
            Err(error) => failure = Some(error),
        }
    }
    (ids, failure)
}

#[test]
fn who_outgrows_the_cache_ends_alone() {
    // Four pages: the long answer needs a third when both hold two.
    let engine = load(&EngineOptions {
        context: Some(64),
        sessions: 1,
        ..cpu()
    });
    let request = |first: u32, prompt: u32, most: usize| Request {
        max_tokens: most,
        stop_at_end: false,
        ..Request::new(Prompt::Tokens((0..prompt).map(|i| first + i).collect()))
    };
    let (short, long) = (request(400, 10, 20), request(500, 20, 30));
    let want = [&short, &long].map(|r| answer(&mut engine.session(), r));
    let mut sessions = [engine.session(), engine.session()];
    let [one, other] = &mut sessions;
    let (mut one, mut other) = (
        one.generate(&short).expect("short"),
        other.generate(&long).expect("long"),
    );
    // The reader of the short answer drives the steps in which the long one finds no page.
    let first = other.next().expect("token").expect("token").id;
    let mut have = vec![];
    for token in one.by_ref() {
        have.extend(token.expect("the short answer is not harmed").id);
    }
    assert_eq!(have, want[0]);
    let (rest, failure) = outcome(other);
    let have: Vec<u32> = first.into_iter().chain(rest).collect();
    assert!(have.len() >= 12 && want[1].starts_with(&have), "{have:?}");
    assert!(
        matches!(failure, Some(Error::CacheFull { .. })),
        "{failure:?}"
    );
    drop(one);
    // The one that ended goes on once there is room.
    let [one, mut other] = sessions;
    drop(one);
    assert_eq!(answer(&mut other, &long), want[1]);
}

#[test]
fn an_answer_that_is_given_up_takes_no_part_in_later_steps() {
    let engine = load(&cpu());
    let endless = |text: &str| Request {
        stop_at_end: false,
        ..chat(text, 100)
    };
    let mut one = engine.session();
    let mut generation = one.generate(&endless(QUESTIONS[0])).expect("generate");
    generation.next().expect("token").expect("token");
    drop(generation);
    let mut other = engine.session();
    let before = engine.pages().0;
    answer(&mut other, &endless(QUESTIONS[1]));
    drop(other);
    assert_eq!(engine.pages().0, before, "pages of the answer given up");
}

#[test]
fn numbers_that_are_none_end_their_own_answer_only() {
    for device in super::devices() {
        let engine = load(&EngineOptions { device, ..cpu() });
        let wild = AdapterSet::sum([(attach(&engine, "sql"), 1e38)]);
        for request in [chat(QUESTIONS[0], 8), sampled(QUESTIONS[0])] {
            let want = answer(&mut engine.session(), &request);
            let (mut sane, mut broken) = (engine.session(), engine.session());
            broken.set_adapter(wild.clone()).expect("attached");
            let running = broken.generate(&request).expect("generate");
            assert_eq!(answer(&mut sane, &request), want, "{device}");
            let (ids, failure) = outcome(running);
            assert!(ids.is_empty(), "{device}: {ids:?}");
            let failure = failure.expect("not finite").to_string();
            assert!(failure.contains("not finite"), "{device}: {failure}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_answer_and_another_seed_another() {
    let engine = load(&cpu());
    let with = |seed| Request {
        sampling: Sampling {
            temperature: 1.5,
            seed,
            ..Sampling::default()
        },
        stop_at_end: false,
        ..chat("Who are you?", 24)
    };
    let run = |seed| answer(&mut engine.session(), &with(seed));
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn loading_can_be_checked_by_a_test_inference() {
    let engine = load(&cpu());
    engine.check().expect("finite logits");
}
