//! Whose cache is dropped is told so, and nobody else.

use super::demo::{attach, chat};
use super::{cpu, demo as load};
use rusty_engine::Session;
use rusty_engine::adapters::OnRunning;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tracing::Level;

/// What is said, kept.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What this thread is warned of meanwhile.
fn warnings(act: impl FnOnce()) -> String {
    told(Level::WARN, act)
}

/// What this thread is told meanwhile, up to a level of detail.
pub fn told(level: Level, act: impl FnOnce()) -> String {
    let said = Said::default();
    let writer = said.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, act);
    let bytes = said.0.lock().expect("no panic").clone();
    String::from_utf8(bytes).expect("UTF-8")
}

/// A few tokens.
fn answer(session: &mut Session) {
    let request = chat("Find users older than 30", 4);
    let tokens = session.generate(&request).expect("generate");
    tokens.for_each(|token| {
        token.expect("token");
    });
}

#[test]
fn changing_adapters_drops_the_cache_with_a_warning() {
    let engine = load(&cpu());
    let (sql, json) = (attach(&engine, "sql"), attach(&engine, "json"));
    let mut session = engine.session();
    // There is nothing to lose yet.
    let said = warnings(|| session.set_adapter(sql).expect("attached"));
    assert_eq!(said, "");
    answer(&mut session);
    let said = warnings(|| session.set_adapter(sql).expect("the same"));
    assert_eq!(said, "");
    let said = warnings(|| session.set_adapter(json).expect("attached"));
    assert!(
        said.contains("WARN") && said.contains("a session's cache of "),
        "{said}"
    );
    let reason = " tokens is dropped: the session changed its adapters";
    assert!(said.contains(reason), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    // Another weight is another adapter: the next answer starts anew.
    answer(&mut session);
    let weighted = engine.set_weight(json, 0.5, OnRunning::Refuse);
    weighted.expect("no answer runs");
    let said = warnings(|| answer(&mut session));
    let reason = " tokens is dropped: its adapters or their weights changed";
    assert!(said.contains(reason), "{said}");
    // Who clears a session means it.
    session.clear();
    let said = warnings(|| session.set_adapter(sql).expect("attached"));
    assert_eq!(said, "");
}
