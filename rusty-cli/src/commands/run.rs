//! `rusty run`: one prompt, one answer, streamed.

use crate::args::Run;
use crate::{engine, experts, stderr};
use anyhow::{Context, Result, ensure};
use rusty_engine::{Engine, Message, Prompt, Timings};
use serde_json::json;
use std::io::{IsTerminal, Read, Write};

/// Generates and prints.
pub fn run(options: &Run, verbose: bool) -> Result<()> {
    engine::check(&options.sampling)?;
    let text = prompt_text(options)?;
    let (engine, mut session, answering) = experts::load(
        options.model.as_deref(),
        &options.load,
        &options.experts,
        verbose,
    )?;
    let asked = answering.prepare(&mut session, &text)?;
    let prompt = prompt(options, asked.prompt, &engine);
    let prompt_tokens = session.prompt_tokens(&prompt)?;
    // The ids are known already; rendering and tokenizing again would only cost time to the first token.
    let prompt = Prompt::Tokens(prompt_tokens.clone());
    let request = engine::request(prompt, &options.sampling, &engine);
    let mut answer = session.generate(&request)?;
    let mut out = std::io::stdout().lock();
    let (mut ids, mut text) = (Vec::new(), String::new());
    for token in answer.by_ref() {
        let token = token.inspect_err(|_| {
            // What went wrong is told on a line of its own.
            if !options.json && !ids.is_empty() {
                let _ = writeln!(out);
            }
        })?;
        ids.extend(token.id);
        if options.json {
            text.push_str(&token.text);
        } else {
            out.write_all(token.text.as_bytes())?;
            out.flush()?;
        }
    }
    let timings = answer.timings();
    if options.json {
        let object = json!({
            "expert": asked.expert,
            "tokens": ids,
            "text": text,
            "prompt_tokens": prompt_tokens.len(),
            "finish": answer.finish(),
            "device": engine.device(),
            "timings": {
                "prefill_tok_s": timings.prefill_tok_s(),
                "decode_tok_s": timings.decode_tok_s(),
                "load_s": engine.load_s(),
                "ttft_s": timings.ttft_s,
            },
        });
        writeln!(out, "{object}")?;
    } else {
        writeln!(out)?;
    }
    answering.tell_tiers(&engine);
    if !options.json {
        stderr::line(summary(&timings, &engine));
    }
    Ok(())
}

/// One line of speeds.
pub fn summary(timings: &Timings, engine: &Engine) -> String {
    format!(
        "[{} prompt tokens at {:.1} tok/s, {} generated at {:.1} tok/s, on {}]",
        timings.prompt_tokens,
        timings.prefill_tok_s(),
        timings.generated,
        timings.decode_tok_s(),
        engine.device(),
    )
}

fn prompt_text(options: &Run) -> Result<String> {
    let text = match options.prompt.as_ref().or(options.prompt_flag.as_ref()) {
        Some(text) => text.clone(),
        None => standard_input(options.raw)?,
    };
    let said = match options.raw {
        true => text.as_str(),
        false => text.trim(),
    };
    ensure!(
        !said.is_empty(),
        "no prompt: give it as an argument, with -p, or on standard input"
    );
    Ok(text)
}

/// All of it as it is, or without the ends of lines behind it, which are the input's and not the prompt's.
fn standard_input(raw: bool) -> Result<String> {
    if std::io::stdin().is_terminal() {
        stderr::line("reading the prompt from standard input; end it with Ctrl-D");
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("standard input")?;
    if !raw {
        text.truncate(text.trim_end_matches(['\n', '\r']).len());
    }
    Ok(text)
}

/// A chat turn where the model has a template, plain text otherwise.
fn prompt(options: &Run, text: String, engine: &Engine) -> Prompt {
    if options.raw || !engine.has_template() {
        return Prompt::Text(text);
    }
    let system = options.system.iter().map(|s| Message::new("system", s));
    Prompt::Chat(system.chain([Message::new("user", &text)]).collect())
}
