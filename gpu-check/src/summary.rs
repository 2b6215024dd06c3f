//! What is printed last: a page of what matters most, for those who see but the end of what was printed. Each part of it has
//! so many lines at most, and each line so many characters; table.txt has everything.

use crate::devices::All;
use crate::model::GUESSED;
use crate::outcome::{Found, Outcome, Stage};
use crate::report::{PREFILL_AIM, beside_bounds, copies, peer, per_token};
use std::fmt::Write;

/// Characters of a line.
const WIDTH: usize = 130;
/// Lines of what one program or model did wrong.
const OF_ONE: usize = 4;
/// Lengths of prompts that have a column.
const PROMPTS: usize = 3;

/// Devices, what went wrong, the main speeds, what adapters cost, starts, and what no time was left for.
pub fn summary(devices: &All, outcomes: &[Outcome]) -> String {
    let parts = [
        (devices.lines.clone(), 3),
        (wrong(outcomes), 10),
        (speeds(devices, outcomes), 18),
        (adapters(outcomes), 8),
        (starts(outcomes), 2),
        (left_out(outcomes), 2),
    ];
    let mut text = String::new();
    for line in parts
        .into_iter()
        .flat_map(|(lines, most)| capped(lines, most))
    {
        text.extend(line.chars().take(WIDTH));
        text.push('\n');
    }
    text + "All of it is in table.txt and report.json."
}

/// The first lines, and how many others there are.
fn capped(mut lines: Vec<String>, most: usize) -> Vec<String> {
    let others = (lines.len() + 1).saturating_sub(most);
    if others > 1 {
        lines.truncate(most - 1);
        lines.push(format!("... and {others} lines more"));
    }
    lines
}

/// Words behind a head, in as many lines as they take.
fn wrapped(head: &str, words: &[String]) -> Vec<String> {
    let mut lines = vec![head.to_string()];
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("  {word}")),
        }
    }
    lines
}

/// How many tests passed, and what failed by name.
fn wrong(outcomes: &[Outcome]) -> Vec<String> {
    let mut all = [0; 3];
    let mut lines = vec![];
    for outcome in outcomes {
        let name = format!("{} {}", outcome.device, outcome.what);
        let mut add = |what: &str, words: &[String]| {
            if !words.is_empty() {
                lines.extend(capped(wrapped(&format!("{name}: {what}"), words), OF_ONE));
            }
        };
        match &outcome.found {
            Found::Tests {
                passed,
                failed,
                unfinished,
                ..
            } => {
                let counts = [*passed, failed.len(), unfinished.len()];
                all.iter_mut().zip(counts).for_each(|(all, n)| *all += n);
                add("FAILED", failed);
                add("UNFINISHED", unfinished);
            }
            Found::Without(variants) => add("DOES WITHOUT", variants),
            Found::Error(_) | Found::Absent(_) => lines.push(outcome.line()),
            _ => {}
        }
    }
    let [passed, failed, unfinished] = all;
    let count = format!("tests: {passed} passed, {failed} failed, {unfinished} unfinished");
    [count].into_iter().chain(lines).collect()
}

/// A model's tests on a device, by their names.
struct Line<'a> {
    name: String,
    tests: Vec<(&'a str, &'a Outcome)>,
}

impl Line<'_> {
    fn find(&self, wanted: impl Fn(&str) -> bool) -> Option<(&Outcome, f64)> {
        let (_, outcome) = *self.tests.iter().find(|(test, _)| wanted(test))?;
        Some((outcome, rate(outcome)?))
    }
}

/// Tokens per second, of those that are.
fn rate(outcome: &Outcome) -> Option<f64> {
    match outcome.found {
        Found::Speed { rate, .. } => Some(rate),
        _ => None,
    }
}

/// Device, shape and format, and the test, of a sequence that is alone and has nothing special about it.
fn plain(outcome: &Outcome) -> Option<(String, &str)> {
    if !matches!(outcome.stage, Stage::Speeds | Stage::More) {
        return None;
    }
    rate(outcome)?;
    let mut words = outcome.what.splitn(4, ' ');
    let (shape, format, test) = (words.next()?, words.next()?, words.next()?);
    let count = test.strip_prefix("tg").or(test.strip_prefix("pp"))?;
    let alone = count.bytes().all(|b| b.is_ascii_digit());
    let name = format!("{} {shape} {format}", outcome.device);
    match words.next() {
        None if alone => Some((name, test)),
        Some(GUESSED) if alone => Some((format!("{name} {GUESSED}"), test)),
        _ => None,
    }
}

/// A table of models: decoding beside bounds and PyTorch, and prefill of some lengths.
fn speeds(devices: &All, outcomes: &[Outcome]) -> Vec<String> {
    let mut lines: Vec<Line<'_>> = vec![];
    let mut prompts: Vec<&str> = vec![];
    for outcome in outcomes {
        let Some((name, test)) = plain(outcome) else {
            continue;
        };
        if test.starts_with("pp") && !prompts.contains(&test) && prompts.len() < PROMPTS {
            prompts.push(test);
        }
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.tests.push((test, outcome)),
            None => lines.push(Line {
                name,
                tests: vec![(test, outcome)],
            }),
        }
    }
    if lines.is_empty() {
        return vec![];
    }
    let first = devices.present.first().map_or("", |d| d.choice.as_str());
    let aim = 100.0 * PREFILL_AIM;
    let legend = format!(
        "tok/s, % of copies, all-in us per launch, x PyTorch's bf16; \
         prompts: tok/s, % of PyTorch's products (aim: {aim:.0}%)"
    );
    let of_first = format!("x {first}");
    let names = [
        "tok/s",
        "copies",
        "us",
        "eager",
        "compiled",
        of_first.as_str(),
    ];
    let names = names.iter().chain(&prompts).map(|n| Some(n.to_string()));
    let head = aligned("decoding", names);
    let rows = lines.iter().map(|line| {
        let decoding = decoding(line, first, outcomes);
        let prompts = prompts.iter().map(|test| prompt(line, test, outcomes));
        aligned(&line.name, decoding.into_iter().chain(prompts))
    });
    [legend, head].into_iter().chain(rows).collect()
}

/// A name and cells in columns.
fn aligned(name: &str, cells: impl Iterator<Item = Option<String>>) -> String {
    const WIDTHS: [usize; 9] = [8, 7, 7, 7, 9, 9, 13, 13, 13];
    let mut line = format!("{name:<37}");
    for (cell, width) in cells.zip(WIDTHS) {
        let _ = write!(line, "{:>width$}", cell.as_deref().unwrap_or("-"));
    }
    line
}

/// What is known of decoding: the rate, its share of copies, microseconds per launch, and how many times the rate of
/// PyTorch, operation by operation and compiled, and of the first device it is.
fn decoding(line: &Line<'_>, first: &str, all: &[Outcome]) -> [Option<String>; 6] {
    let Some((outcome, rate)) = line.find(|test| test.starts_with("tg")) else {
        return Default::default();
    };
    let copied = copies(&outcome.device, all);
    let bounds = match &outcome.found {
        Found::Speed { facts, .. } => per_token(rate, facts, copied),
        _ => None,
    };
    let times = |other: Option<f64>| other.map(|other| format!("{:.2}x", rate / other));
    let same = |o: &&Outcome| o.device == first && o.what == outcome.what;
    let on_first = all.iter().find(same).and_then(self::rate);
    [
        Some(format!("{rate:.1}")),
        bounds.map(|(share, _)| format!("{:.0}%", 100.0 * share)),
        bounds.map(|(_, launch)| format!("{launch:.2}")),
        times(peer(outcome, Stage::Eager, all)),
        times(peer(outcome, Stage::Compiled, all)),
        times(on_first.filter(|_| outcome.device != first)),
    ]
}

/// The rate of a prompt's tokens, and its share of PyTorch's products.
fn prompt(line: &Line<'_>, test: &str, all: &[Outcome]) -> Option<String> {
    let (outcome, rate) = line.find(|known| known == test)?;
    let products = peer(outcome, Stage::Matmul, all);
    let share = products.map_or(String::new(), |p| format!(" {:.0}%", 100.0 * rate / p));
    Some(format!("{rate:.0}{share}"))
}

/// What adapters cost.
fn adapters(outcomes: &[Outcome]) -> Vec<String> {
    let each = outcomes.iter().filter_map(|outcome| match &outcome.found {
        Found::Speed { rate, facts } if facts.adapted.is_some() => {
            let beside = beside_bounds(*rate, facts, None);
            Some(format!("{}{beside}", outcome.line()))
        }
        _ => None,
    });
    each.collect()
}

fn starts(outcomes: &[Outcome]) -> Vec<String> {
    let starts = outcomes.iter().filter_map(|outcome| match outcome.found {
        Found::Start { .. } => Some(outcome.line()),
        _ => None,
    });
    starts.collect()
}

/// What no time was left for.
fn left_out(outcomes: &[Outcome]) -> Vec<String> {
    let each = outcomes.iter().filter_map(|outcome| {
        let name = format!("{} {}", outcome.device, outcome.what);
        match &outcome.found {
            Found::NoTime => Some(format!("{name};")),
            Found::Tests { left_out: some, .. } if *some > 0 => {
                Some(format!("{name} ({some} tests);"))
            }
            _ => None,
        }
    });
    let each: Vec<String> = each.collect();
    match each.is_empty() {
        true => vec![],
        false => wrapped("no time was left for:", &each),
    }
}

#[cfg(test)]
mod tests;
