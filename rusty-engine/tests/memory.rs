//! What loading a large model holds, by the system's own account.
#![cfg(target_os = "linux")]

use rusty_backend::DeviceChoice;
use rusty_engine::{AdapterSet, Engine, EngineOptions};

/// Resident bytes of this process that are no file's pages.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|l| l.starts_with("RssAnon:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("RssAnon") * 1024
}

/// More than 4 GiB of random weights: opening and loading hold less than 100 MB beside the file's pages, and so does a
/// first answer; from the second on an engine holds no more than it says it does, but for 100 MB.
#[test]
fn loading_four_gigabytes_holds_what_it_says() {
    const ROOM: u64 = 100_000_000;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("model.gguf");
    rusty_loader::random::save("llama-3-8b", "q4_0", &path).expect("saved");
    let size = std::fs::metadata(&path).expect("saved").len();
    assert!(size > 4 << 30, "{size}");
    let before = anonymous();
    let file = rusty_loader::open(&path).expect("opens");
    let opened = anonymous() - before;
    assert!(opened < ROOM, "opening holds {opened} bytes");
    let options = EngineOptions {
        device: DeviceChoice::Cpu,
        context: Some(512),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&*file, &options).expect("engine");
    let loaded = anonymous() - before;
    assert!(loaded < ROOM, "loading holds {loaded} bytes");
    // The first answer is made from the file, the second from copies of its own.
    for copies in [false, true] {
        let logits = engine.logits(&[7, 77], AdapterSet::default());
        assert!(logits.expect("logits").iter().all(|l| l.is_finite()));
        let (held, memory) = (anonymous() - before, engine.memory());
        assert!(copies || held < ROOM, "a first answer holds {held} bytes");
        let stated = memory.resident_weights + memory.kv + memory.arena;
        assert!(
            held < stated + ROOM,
            "holds {held} bytes, says {stated} (the file has {size})"
        );
        assert_eq!(memory.resident_weights > size / 2, copies, "{memory:?}");
    }
}
