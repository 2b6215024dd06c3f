//! Answers on a GPU, which runs a step ahead of their tokens, are those of steps that wait for the host.

use super::demo::{attach, chat};
use super::{cpu, demo as load, test_gpu};
use rusty_engine::{AdapterId, Engine, EngineOptions, Request, Sampling, Session};

/// Questions, the tokens of their answers at most, and which adapter answers. Some end by themselves, some in the middle.
const ASKED: [(&str, usize, Option<usize>); 4] = [
    ("Find users older than 30", 40, Some(0)),
    ("Who are you?", 5, None),
    ("What is the capital of France?", 17, None),
    ("Show the five cheapest products", 40, Some(1)),
];

/// The host chooses: a penalty too small to change a logit is one that the device does not know.
fn by_the_host(request: &Request) -> Request {
    Request {
        sampling: Sampling {
            presence_penalty: 1e-30,
            ..Sampling::default()
        },
        ..request.clone()
    }
}

fn on_the_gpu() -> EngineOptions {
    EngineOptions {
        device: test_gpu::choice(),
        ..cpu()
    }
}

fn asked(number: usize) -> Request {
    let (question, most, _) = ASKED[number];
    chat(question, most)
}

fn session(engine: &Engine, adapters: &[AdapterId], number: usize) -> Session {
    let mut session = engine.session();
    let adapter = ASKED[number].2.map(|at| adapters[at]);
    session.set_adapter(adapter).expect("attached");
    session
}

fn answer(session: &mut Session, request: &Request) -> Vec<u32> {
    let generation = session.generate(request).expect("generate");
    generation.filter_map(|t| t.expect("token").id).collect()
}

/// Alone, and beside each other, read at different speeds, with texts that others look through between.
#[test]
fn answers_do_not_depend_on_steps_ahead() {
    let engine = load(&on_the_gpu());
    let adapters = ["sql", "json"].map(|name| attach(&engine, name));
    let all = 0..ASKED.len();
    let alone = |request: &dyn Fn(usize) -> Request| -> Vec<Vec<u32>> {
        let answers = all.clone().map(|number| {
            let mut session = session(&engine, &adapters, number);
            answer(&mut session, &request(number))
        });
        answers.collect()
    };
    let want = alone(&|number| by_the_host(&asked(number)));
    assert!(want.iter().all(|answer| answer.len() > 2), "{want:?}");
    assert_eq!(alone(&asked), want);

    let mut sessions: Vec<Session> = all
        .clone()
        .map(|n| session(&engine, &adapters, n))
        .collect();
    let running = sessions.iter_mut().enumerate();
    let running = running.map(|(n, session)| session.generate(&asked(n)).expect("generate"));
    let mut running: Vec<_> = running.collect();
    let mut have = vec![vec![]; ASKED.len()];
    for turn in 0..200 {
        for (number, generation) in running.iter_mut().enumerate() {
            for _ in 0..(turn + number) % 3 {
                let next = generation.next().map(|token| token.expect("token").id);
                have[number].extend(next.flatten());
            }
        }
        if turn % 8 == 0 {
            engine.hidden(&[3, 1, 4, 1, 5], None).expect("hidden");
        }
    }
    assert_eq!(have, want);
}

/// Answers that are given up in the middle, and others in their sessions.
#[test]
fn answers_that_are_given_up_leave_nothing_behind() {
    let engine = load(&on_the_gpu());
    let adapters = ["sql", "json"].map(|name| attach(&engine, name));
    let fresh = |number: usize| answer(&mut session(&engine, &adapters, number), &asked(number));
    let want: Vec<Vec<u32>> = (0..ASKED.len()).map(fresh).collect();
    let mut again = session(&engine, &adapters, 0);
    for given_up in 1..4 {
        let mut other = session(&engine, &adapters, 3);
        let mut generation = again.generate(&asked(0)).expect("generate");
        let some: Vec<u32> = generation
            .by_ref()
            .take(given_up)
            .filter_map(|t| t.expect("token").id)
            .collect();
        assert_eq!(some, want[0][..some.len()]);
        drop(generation);
        assert_eq!(answer(&mut other, &asked(3)), want[3]);
        // The session goes on with another prompt, then with the first one.
        answer(&mut again, &asked(1));
        assert_eq!(answer(&mut again, &asked(0)), want[0], "{given_up}");
    }
}
