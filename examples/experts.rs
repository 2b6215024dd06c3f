//! One model, three experts resident at once: sessions with different adapters share every batch.
//!
//! `cargo run --release -p rusty-examples --example experts`

use anyhow::{Context, Result};
use rusty_engine::{Engine, EngineOptions, Message, Prompt, Request, demo};

fn main() -> Result<()> {
    let options = EngineOptions {
        sessions: 3,
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*demo::model()?, &options)?;
    let request = Request::new(Prompt::Chat(vec![Message::new(
        "user",
        "Find users older than 30",
    )]));

    let mut sessions = Vec::new();
    for name in demo::adapters() {
        let adapter = demo::adapter(name, &engine.adapter_base()).context(name)??;
        let mut session = engine.session();
        session.set_adapter(engine.attach(adapter)?)?;
        sessions.push((name, session, String::new()));
    }
    // Each thread pulls its own answer; whoever pulls runs a step for all that wait.
    std::thread::scope(|scope| {
        let threads: Vec<_> = sessions
            .iter_mut()
            .map(|(_, session, answer)| {
                scope.spawn(|| -> Result<()> {
                    for token in session.generate(&request)? {
                        answer.push_str(&token?.text);
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => anyhow::bail!("a session's thread panicked"),
            })
    })?;
    for (name, _, answer) in &sessions {
        println!("{name:>7}: {answer}");
    }
    Ok(())
}
