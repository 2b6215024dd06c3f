//! A GPU whose memory is spent: an adapter that finds no room stays in the host's memory, who asks with it is refused, and
//! everybody else's answers are what they were.

use super::demo::attach;
use super::residency::{fresh, request};
use super::{cpu, demo as load, test_gpu};
use rusty_adapters::{Precision, random_with_head};
use rusty_compiler::SlotData;
use rusty_engine::{Engine, EngineOptions, Tier};

/// Bytes for what an engine does not list, and for the copy of a pool that grows; too few for an adapter.
const SLACK: u64 = 1 << 20;

/// An engine on a GPU, with slots for two adapters.
fn within(gpu_memory: Option<u64>) -> Engine {
    load(&EngineOptions {
        device: test_gpu::choice(),
        gpu_memory,
        context: Some(128),
        sessions: 2,
        adapter_slots: 2,
        ..cpu()
    })
}

/// Ten megabytes for the first layer's queries, keys and values alone.
fn large(engine: &Engine) -> SlotData {
    let sites = &engine.graph().sites[..3];
    random_with_head("large", sites, 4096, 1, Precision::F16)
}

#[test]
fn an_adapter_that_finds_no_memory_waits_while_others_answer() {
    let roomy = within(None);
    let want = ["sql", "json"].map(|name| fresh(&roomy, attach(&roomy, name)));
    let used = roomy.memory();
    let used = used.resident_weights + used.kv + used.adapters + used.arena;
    let engine = within(Some(used + SLACK));
    assert_eq!(engine.memory().mapped_weights, 0, "all weights are there");
    let sql = attach(&engine, "sql");
    let mut session = engine.session();
    session.set_adapter(sql).expect("attached");
    let ask = request();
    let mut running = session.generate(&ask).expect("generate");
    let first = running.by_ref().take(4);
    let mut have: Vec<u32> = first.filter_map(|t| t.expect("token").id).collect();
    let memory = engine.memory();
    let large = engine.attach(large(&engine)).expect("registered");
    assert_eq!(engine.memory(), memory);
    assert_eq!(engine.adapters()[1].tier, Tier::Host);
    have.extend(running.filter_map(|t| t.expect("token").id));
    assert_eq!(have, want[0]);
    let json = attach(&engine, "json");
    assert_eq!(fresh(&engine, json), want[1]);
    // Who asks with it is told; what made room for it comes back.
    let mut other = engine.session();
    other.set_adapter(large).expect("attached");
    for _ in 0..2 {
        let error = other.generate(&ask).err().expect("no memory").to_string();
        assert!(error.contains("out of memory: adapters asked"), "{error}");
    }
    assert_eq!(fresh(&engine, sql), want[0]);
    assert_eq!(fresh(&engine, json), want[1]);
}
