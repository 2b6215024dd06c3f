//! Routing: who answers a message. Every choice is checked.

use criterion::{Criterion, criterion_group, criterion_main};
use rusty_backend::DeviceChoice;
use rusty_engine::experts::{Library, Router};
use rusty_engine::{Engine, EngineOptions, demo};
use std::hint::black_box;

const MESSAGE: &str = "Give me this address as a JSON object: 5 Elm Street, Bern";

fn measure(c: &mut Criterion, name: &str, router: &Router, library: &Library, message: &str) {
    c.bench_function(name, |b| {
        b.iter(|| {
            let choice = router.route(black_box(message));
            let expert = choice.expert.map(|i| library.experts()[i].name());
            assert_eq!(expert, Some("json"), "{choice:?}");
        });
    });
}

/// By words: a sentence, and a page of 1000 words before it.
fn keywords(c: &mut Criterion) {
    let library = Library::demo().expect("library");
    let router = Router::keywords(&library);
    measure(c, "route/keywords", &router, &library, MESSAGE);
    let page = format!("{} {MESSAGE}", "some words in front ".repeat(250));
    measure(c, "route/keywords/page", &router, &library, &page);
}

/// By hidden states of the demo model.
fn embedding(c: &mut Criterion) {
    let options = EngineOptions {
        device: DeviceChoice::Cpu,
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*demo::model().expect("demo"), &options).expect("engine");
    let library = Library::demo().expect("library");
    let router = Router::embedding(&library, &engine).expect("router");
    measure(c, "route/embedding", &router, &library, MESSAGE);
}

criterion_group!(benches, keywords, embedding);
criterion_main!(benches);
