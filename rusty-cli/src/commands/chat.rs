//! `rusty chat`: a conversation on the terminal.

use super::run::summary;
use crate::args::Chat;
use crate::engine;
use anyhow::{Result, ensure};
use rusty_engine::{Message, Prompt};
use std::io::{BufRead, IsTerminal, Write};

/// Reads turns until the input ends or says `/exit`; `/clear` forgets the conversation.
pub fn run(options: &Chat) -> Result<()> {
    let (engine, adapters) = engine::load(options.model.as_deref(), &options.load)?;
    let mut session = engine.session();
    session.set_adapter(adapters)?;
    let system: Vec<Message> = options
        .system
        .iter()
        .map(|text| Message::new("system", text))
        .collect();
    let mut messages = system.clone();
    let terminal = std::io::stdin().is_terminal();
    if terminal {
        eprintln!(
            "{} on {}. /clear starts anew, /exit or Ctrl-D ends.",
            engine.label(),
            engine.device()
        );
    }
    let mut out = std::io::stdout().lock();
    let mut input = std::io::stdin().lock();
    let mut failed = 0;
    loop {
        if terminal {
            eprint!("> ");
        }
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        match String::from_utf8_lossy(&line).trim() {
            "" => continue,
            "/exit" | "/quit" => break,
            "/clear" => {
                messages = system.clone();
                continue;
            }
            text => messages.push(Message::new("user", text)),
        }
        let request = engine::request(Prompt::Chat(messages.clone()), &options.sampling);
        match answer(&mut session, &request, &mut out) {
            Ok((text, timings)) => {
                messages.push(Message::new("assistant", &text));
                if terminal {
                    eprintln!("{}", summary(&timings, &engine));
                }
            }
            // The conversation goes on without the turn that could not be answered.
            Err(error) if error.downcast_ref::<rusty_engine::Error>().is_some() => {
                messages.pop();
                failed += usize::from(!terminal);
                eprintln!("error: {error:#}");
            }
            Err(error) => return Err(error),
        }
    }
    ensure!(failed == 0, "{failed} turns were not answered");
    Ok(())
}

fn answer(
    session: &mut rusty_engine::Session,
    request: &rusty_engine::Request,
    out: &mut impl Write,
) -> Result<(String, rusty_engine::Timings)> {
    let mut text = String::new();
    let mut generation = session.generate(request)?;
    for token in generation.by_ref() {
        let piece = token?.text;
        out.write_all(piece.as_bytes())?;
        out.flush()?;
        text.push_str(&piece);
    }
    writeln!(out)?;
    Ok((text, generation.timings()))
}
