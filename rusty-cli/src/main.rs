//! The `rusty` command: a thin skin over the libraries.

mod adapter;
mod args;
mod commands;
mod engine;
mod experts;
mod gpu;
mod model;
mod progress;
mod stderr;

use args::{Cli, Command};
use clap::{CommandFactory, FromArgMatches};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = command_line();
    let level = match cli.verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // Of a stderr that cannot be written it would tell there, and panic.
        .log_internal_errors(false)
        .init();
    let result = match &cli.command {
        Command::Run(options) => commands::run::run(options, cli.verbose > 0),
        Command::Chat(options) => commands::chat::run(options, cli.verbose > 0),
        Command::Logits(options) => commands::logits::run(options),
        Command::Explain(options) => commands::explain::run(options),
        Command::Compile(options) => commands::compile::run(options),
        Command::Inspect(options) => commands::inspect::run(options),
        Command::Tokenize(options) => commands::tokenize::run(options),
        Command::Adapter(options) => commands::adapter::run(options),
        Command::Quantize(options) => commands::quantize::run(options),
        Command::Perplexity(options) => commands::perplexity::run(options),
        Command::Bench(options) => commands::bench::run(options),
        Command::Devices(options) => commands::devices::run(options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough (`rusty run | head`) is no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            stderr::line(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn command_line() -> Cli {
    // Otherwise a negative number is taken for an option that there is not.
    fn with_negative_numbers(command: clap::Command) -> clap::Command {
        let command = command.allow_negative_numbers(true);
        command.mut_subcommands(with_negative_numbers)
    }
    let mut command = with_negative_numbers(Cli::command());
    let matches = command.get_matches_mut();
    Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut command).exit())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
