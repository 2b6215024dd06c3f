//! Mixtures that were made before somebody else changed something, and tables of which a slot has a copy.

use super::*;
use crate::adapters::{AdapterMemory, Tier};
use crate::echo::Echo;
use rusty_adapters::{Base, Precision, Stamp, packed, random};
use rusty_compiler::{KvPrefix, PrefixLayer};
use std::path::Path;

fn graph() -> Arc<Graph> {
    let file = rusty_loader::random::outline("qwen3-tiny", "f32").expect("outline");
    Arc::new(rusty_graph::arch::build(&*file).expect("graph"))
}

/// Where an adapter's tables are read again.
fn file_at(path: &Path, graph: &Arc<Graph>) -> Source {
    Source::File {
        path: path.into(),
        precision: Precision::Stored,
        graph: graph.clone(),
        base: None,
        cache: None,
        stamp: Stamp::of(path),
    }
}

/// A budget without room in the host's memory.
fn no_host(device: u64) -> AdapterBudget {
    AdapterBudget { device, host: 0 }
}

/// A registry of two slots with adapters of ranks 2 and 3.
fn registry() -> (Registry, [AdapterId; 2]) {
    let graph = graph();
    let mut registry = Registry::new(2, AdapterBudget::default(), graph.clone());
    let ids = [2u32, 3].map(|rank| {
        let data = random("random", &graph.sites, rank, rank.into(), Precision::F16);
        add(&mut registry, Arc::new(data), Source::Given)
    });
    (registry, ids)
}

fn add(registry: &mut Registry, data: Arc<SlotData>, source: Source) -> AdapterId {
    let id = AdapterId(registry.entries.len() as u32 + 1);
    registry.add(Arrival {
        id,
        held: data.clone(),
        data,
        source,
        prepared_s: 0.0,
    });
    id
}

/// Puts an adapter that was just read where there is room.
fn settle(registry: &mut Registry, key: &Resolved, slots: &mut Echo) {
    let recipe = registry.recipe(key, false).expect("attached");
    let made = recipe.make(&mut ReadTables::new()).expect("made");
    registry.settle(made, slots).expect("no matter where");
}

/// The slot that a set got.
fn slot(taken: Result<Acquired>) -> SlotId {
    match taken.expect("acquired") {
        Acquired::Slot(slot, _) => slot,
        Acquired::Waits(_) => panic!("it waits"),
    }
}

#[test]
fn a_mixture_of_other_weights_fills_no_slot() {
    let (mut registry, [a, b]) = registry();
    let mut slots = Echo::default();
    let set = AdapterSet::sum([(a, 1.0), (b, 1.0)]);
    let old = registry.resolve(&set).expect("attached");
    let made = registry.recipe(&old, false).expect("attached");
    let made = made.make(&mut ReadTables::new()).expect("mixed");
    // Meanwhile somebody else changes a weight.
    registry.set_weight(b, 0.5).expect("attached");
    let now = registry.resolve(&set).expect("attached");
    assert_ne!(old, now);
    let taken = registry.acquire(&now, Some(made), &mut slots, &|_| false);
    let scale = &slots.filled[&slot(taken)].sites[0].1.scale;
    assert_eq!(scale[..], [1.0, 1.0, 0.5, 0.5, 0.5]);
}

/// Two want the same at once: the second takes what the first put into a slot.
#[test]
fn of_two_equal_mixtures_one_is_attached() {
    let (mut registry, [a, b]) = registry();
    let mut slots = Echo::default();
    let set = AdapterSet::sum([(a, 0.5), (b, 0.5)]);
    let key = registry.resolve(&set).expect("attached");
    assert!(!registry.is_at_hand(&key));
    let made = [(), ()].map(|()| {
        let recipe = registry.recipe(&key, false).expect("attached");
        recipe.make(&mut ReadTables::new()).expect("mixed")
    });
    let taken = made.map(|mixture| {
        let taken = registry.acquire(&key, Some(mixture), &mut slots, &|_| false);
        slot(taken)
    });
    assert_eq!(taken[0], taken[1]);
    assert_eq!(slots.attached, 1);
    assert!(registry.is_at_hand(&key));
}

/// Packs an adapter of rank 2; gives the network that it is for.
fn packed_at(path: &Path) -> Arc<Graph> {
    let file = rusty_loader::random::outline("qwen3-tiny", "f32").expect("outline");
    let graph = graph();
    let data = random("random", &graph.sites, 2, 1, Precision::F16);
    packed::pack(&data, &Base::new(&graph, &*file), path, false).expect("packed");
    graph
}

/// A host's budget of nothing is kept where slots are copies: nobody holds the tables any more, and they come back from
/// their file.
#[test]
fn tables_that_a_slot_copied_leave_the_hosts_memory() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("adapter.safetensors");
    let graph = packed_at(&path);
    for copies in [true, false] {
        let mut registry = Registry::new(1, no_host(u64::MAX), graph.clone());
        let mut slots = Echo {
            copies,
            ..Echo::default()
        };
        let source = file_at(&path, &graph);
        let data = source.read().expect("read");
        let held = Arc::downgrade(&data);
        let id = add(&mut registry, data, source);
        for weight in [1.0, 0.5] {
            let set = AdapterSet::sum([(id, weight)]);
            let key = registry.resolve(&set).expect("attached");
            let taken = registry.acquire(&key, None, &mut slots, &|_| false);
            slot(taken);
            let status = registry.status(|_| 0).remove(0);
            assert_eq!(status.tier, Tier::Device);
            let host = if copies { 0 } else { status.bytes };
            let device = status.bytes;
            assert_eq!(registry.memory(), AdapterMemory { device, host });
            assert_eq!(status.host_bytes, host);
        }
        assert_eq!(held.upgrade().is_none(), copies);
    }
}

/// Where several sets want an adapter that is not in memory, its file may be gone by the second: it is not looked at again.
#[test]
fn tables_that_were_read_go_into_later_mixtures_too() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("adapter.safetensors");
    let graph = packed_at(&path);
    let mut registry = Registry::new(1, no_host(u64::MAX), graph.clone());
    let source = file_at(&path, &graph);
    let data = source.read().expect("read");
    let id = add(&mut registry, data, source);
    registry.shrink_host();
    let mut read = ReadTables::new();
    for weight in [0.5, 0.25] {
        let key = registry.resolve(&AdapterSet::sum([(id, weight)]));
        let recipe = registry
            .recipe(&key.expect("attached"), false)
            .expect("attached");
        assert!(matches!(recipe.parts[0].tables, Tables::Absent(_)));
        let made = recipe.make(&mut read).expect("read, if once");
        assert!(made.made_of[0].read_s.is_some());
        let _ = std::fs::remove_file(&path);
    }
}

/// Keys and values of one token, of which a device's slot has no copy.
fn prefix() -> Arc<KvPrefix> {
    let values: Arc<[f32]> = [0.0f32; 64].into();
    let layer = PrefixLayer {
        keys: values.clone(),
        values,
    };
    Arc::new(KvPrefix {
        tokens: 1,
        layers: vec![layer],
    })
}

/// What the host alone needs takes no room on a device, so that an adapter settles where its tables fit.
#[test]
fn adapters_settle_where_what_slots_hold_of_them_fits() {
    let graph = graph();
    let mut data = random("random", &graph.sites, 2, 1, Precision::F16);
    let tables = data.bytes() as u64;
    data.prefix = Some(prefix());
    let data = Arc::new(data);
    for copies in [true, false] {
        let mut registry = Registry::new(1, no_host(tables), graph.clone());
        let mut slots = Echo {
            copies,
            ..Echo::default()
        };
        let id = add(&mut registry, data.clone(), Source::Given);
        let key = registry.resolve(&AdapterSet::from(id)).expect("attached");
        settle(&mut registry, &key, &mut slots);
        assert_eq!(registry.is_at_hand(&key), copies);
    }
}

/// To drop what a slot's host side holds anyway would free nothing, and cost a reading.
#[test]
fn what_a_slot_needs_of_the_hosts_memory_is_not_dropped() {
    let graph = graph();
    let mut registry = Registry::new(1, no_host(u64::MAX), graph.clone());
    let mut slots = Echo {
        copies: true,
        ..Echo::default()
    };
    let data = SlotData {
        name: "prefix".into(),
        prefix: Some(prefix()),
        ..SlotData::default()
    };
    let bytes = data.bytes() as u64;
    let source = file_at(Path::new("nowhere"), &graph);
    let id = add(&mut registry, Arc::new(data), source);
    let half = registry.set_weight(id, 0.5).expect_err("no half of it");
    assert!(half.to_string().contains("no weight but 1"), "{half}");
    let key = registry.resolve(&AdapterSet::from(id)).expect("attached");
    let taken = registry.acquire(&key, None, &mut slots, &|_| false);
    slot(taken);
    assert_eq!(registry.memory().host, bytes);
    let recipe = registry.recipe(&key, false).expect("attached");
    assert!(matches!(recipe.parts[0].tables, Tables::Held(_)));
}

/// What is idle makes room on a device that is full, whatever the budget; what is in use does not.
#[test]
fn where_a_device_is_full_idle_adapters_make_room() {
    let (mut registry, [a, b]) = registry();
    let mut slots = Echo {
        room: Some(1),
        ..Echo::default()
    };
    let [first, second] =
        [a, b].map(|id| registry.resolve(&AdapterSet::from(id)).expect("attached"));
    settle(&mut registry, &first, &mut slots);
    assert!(registry.is_at_hand(&first));
    settle(&mut registry, &second, &mut slots);
    assert!(registry.is_at_hand(&first) && !registry.is_at_hand(&second));
    // Who holds the memory may be done some time.
    let waits = registry.acquire(&second, None, &mut slots, &|_| true);
    assert!(matches!(waits, Ok(Acquired::Waits(m)) if m.key == second));
    registry.pin(a, true).expect("attached");
    let refused = registry.acquire(&second, None, &mut slots, &|_| true);
    let refused = refused.expect_err("no memory").to_string();
    assert!(refused.contains("out of memory"), "{refused}");
    registry.pin(a, false).expect("attached");
    let taken = registry.acquire(&second, None, &mut slots, &|_| false);
    slot(taken);
    assert!(!registry.is_at_hand(&first) && registry.is_at_hand(&second));
}

/// A pinned adapter keeps the slot that it was used in last, not one for every weight that it ever had.
#[test]
fn a_pinned_adapter_keeps_one_slot() {
    let (mut registry, [pinned, other]) = registry();
    let mut slots = Echo::default();
    registry.pin(pinned, true).expect("attached");
    let key = |registry: &Registry, weight| {
        let set = AdapterSet::sum([(pinned, weight)]);
        registry.resolve(&set).expect("attached")
    };
    for weight in [1.0, 0.5, 0.25] {
        let key = key(&registry, weight);
        let taken = registry.acquire(&key, None, &mut slots, &|_| false);
        slot(taken);
    }
    let set = registry
        .resolve(&AdapterSet::from(other))
        .expect("attached");
    let taken = registry.acquire(&set, None, &mut slots, &|_| false);
    slot(taken);
    assert!(registry.is_at_hand(&key(&registry, 0.25)));
    assert!(!registry.is_at_hand(&key(&registry, 0.5)));
    // Both of its weights are at work in one step.
    let taken = registry.acquire(&key(&registry, 0.5), None, &mut slots, &|_| false);
    let both = [key(&registry, 0.25), key(&registry, 0.5)].map(|k| registry.slot_with(&k));
    assert_eq!(both[1], Some(slot(taken)));
    registry.serve(both.into_iter().flatten());
    let taken = registry.acquire(&set, None, &mut slots, &|_| false);
    slot(taken);
}
