//! Loads a model (a path, or the built-in demo), asks a question and streams the answer.
//!
//! `cargo run --release -p rusty-examples --example generate -- "What is the capital of France?" [MODEL]`

use anyhow::Result;
use rusty_engine::{Engine, EngineOptions, Message, Prompt, Request, demo};
use std::io::Write;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let question = arguments.next().unwrap_or("Who are you?".into());
    let file = match arguments.next() {
        Some(path) => rusty_loader::open(path)?,
        None => demo::model()?,
    };
    let engine = Engine::load(&*file, &EngineOptions::default())?;
    let mut session = engine.session();
    let prompt = Prompt::Chat(vec![Message::new("user", &question)]);
    for token in session.generate(&Request::new(prompt))? {
        print!("{}", token?.text);
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
