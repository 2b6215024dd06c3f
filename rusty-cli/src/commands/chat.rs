//! `rusty chat`: a conversation on the terminal.

use super::run::summary;
use crate::args::Chat;
use crate::{engine, experts, stderr};
use anyhow::{Result, anyhow, ensure};
use rusty_engine::{Engine, Message, Prompt};
use std::io::{BufRead, IsTerminal, Write};

const COMMANDS: &str = "/clear starts anew, /exit or Ctrl-D ends";

/// Reads turns until the input ends or says `/exit`; `/clear` forgets the conversation.
pub fn run(options: &Chat, verbose: bool) -> Result<()> {
    engine::check(&options.sampling)?;
    let (engine, mut session, answering) = experts::load(
        options.model.as_deref(),
        &options.load,
        &options.experts,
        verbose,
    )?;
    check(&engine)?;
    let system: Vec<Message> = options
        .system
        .iter()
        .map(|text| Message::new("system", text))
        .collect();
    let mut messages = system.clone();
    let terminal = std::io::stdin().is_terminal();
    if terminal {
        let (label, device) = (engine.label(), engine.device());
        stderr::line(format_args!("{label} on {device}. {COMMANDS}."));
    }
    let mut out = std::io::stdout().lock();
    let mut input = std::io::stdin().lock();
    let mut failed = 0;
    while let Some(line) = next_line(&mut input, terminal)? {
        let said = match Line::read(&line) {
            Line::Nothing => continue,
            Line::Exit => break,
            Line::Clear => {
                messages = system.clone();
                continue;
            }
            Line::Said(text) => Message::new("user", text),
        };
        let turn = answering
            .prepare(&mut session, &said.content)
            .and_then(|asked| {
                let asked = [Message::new("user", &asked.prompt)];
                let prompt = Prompt::Chat([&messages[..], &asked].concat());
                let request = engine::request(prompt, &options.sampling, &engine);
                answer(&mut session, &request, &mut out)
            });
        match turn {
            // What was said, not an expert's template of it: the next turn may be another expert's.
            Ok((text, timings)) => {
                messages.extend([said, Message::new("assistant", &text)]);
                answering.tell_tiers(&engine);
                if terminal {
                    stderr::line(summary(&timings, &engine));
                }
            }
            // The conversation goes on without the turn that could not be answered.
            Err(error) if error.downcast_ref::<rusty_engine::Error>().is_some() => {
                failed += usize::from(!terminal);
                complain(&error);
            }
            Err(error) => return Err(error),
        }
    }
    ensure!(failed == 0, "turns that were not answered: {failed}");
    Ok(())
}

/// Refuses a model with which every turn would fail.
fn check(engine: &Engine) -> Result<()> {
    let label = engine.label();
    let tokenizer = engine.text_tokenizer().map(drop);
    tokenizer.map_err(|error| anyhow!("{error}; `rusty logits` takes those"))?;
    ensure!(
        engine.has_template(),
        "{label} has no chat template, so that it takes no turns; `rusty run` gives it a prompt as plain text"
    );
    let template = engine.template().map(drop);
    template.map_err(|error| anyhow!("{error}; `rusty run --raw` goes without the chat template"))
}

/// The next line, asked for on a terminal; `None`: the input has ended.
fn next_line(input: &mut impl BufRead, terminal: bool) -> Result<Option<String>> {
    if terminal {
        stderr::text("> ");
    }
    let mut line = Vec::new();
    let read = input.read_until(b'\n', &mut line)?;
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
}

/// What a line asks for.
enum Line<'a> {
    Nothing,
    Exit,
    Clear,
    Said(&'a str),
}

impl<'a> Line<'a> {
    /// Of a line. One that begins as commands do and is none is refused.
    fn read(line: &'a str) -> Self {
        let text = line.trim();
        match text {
            "" => Self::Nothing,
            "/exit" | "/quit" => Self::Exit,
            "/clear" => Self::Clear,
            _ if begins_as_command(text) => {
                let word = text.split_whitespace().next().unwrap_or(text);
                stderr::line(format_args!("{word} is no command; {COMMANDS}"));
                Self::Nothing
            }
            _ => Self::Said(text),
        }
    }
}

/// Whether the first word has a slash in front and no other: with another it is a path.
fn begins_as_command(text: &str) -> bool {
    let first = text.split_whitespace().next();
    let behind = first.and_then(|word| word.strip_prefix('/'));
    behind.is_some_and(|word| !word.contains('/'))
}

/// Says why a turn was not answered.
fn complain(error: &anyhow::Error) {
    let full = matches!(
        error.downcast_ref(),
        Some(rusty_engine::Error::ContextFull { .. })
    );
    let hint = if full { ", or /clear" } else { "" };
    stderr::line(format_args!("error: {error:#}{hint}"));
}

fn answer(
    session: &mut rusty_engine::Session,
    request: &rusty_engine::Request,
    out: &mut impl Write,
) -> Result<(String, rusty_engine::Timings)> {
    let mut text = String::new();
    let mut generation = session.generate(request)?;
    let said = generation.by_ref().try_for_each(|token| -> Result<()> {
        let piece = token?.text;
        out.write_all(piece.as_bytes())?;
        out.flush()?;
        text.push_str(&piece);
        Ok(())
    });
    // The part of an answer that failed is a line, too: the next answer begins its own.
    if said.is_ok() || !text.is_empty() {
        writeln!(out)?;
    }
    said?;
    Ok((text, generation.timings()))
}
