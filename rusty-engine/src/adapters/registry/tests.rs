//! Mixtures that were made before somebody else changed something, and tables of which a slot has a copy.

use super::*;
use crate::adapters::{AdapterMemory, Tier};
use rusty_adapters::{Base, Precision, Stamp, packed, random};
use rusty_compiler::{KvPrefix, MemoryUse, Step, StepOutput};

/// Slots that remember what they read, and forget what they copy.
#[derive(Default)]
struct Slots {
    filled: BTreeMap<SlotId, Arc<SlotData>>,
    attached: usize,
    copies: bool,
}

impl Executable for Slots {
    fn run(&mut self, _: &Step<'_>) -> rusty_compiler::Result<StepOutput> {
        Ok(StepOutput::default())
    }

    fn attach(&mut self, slot: SlotId, data: Arc<SlotData>) -> rusty_compiler::Result<()> {
        self.attached += 1;
        if !self.copies {
            self.filled.insert(slot, data);
        }
        Ok(())
    }

    fn detach(&mut self, slot: SlotId) -> rusty_compiler::Result<()> {
        self.filled.remove(&slot);
        Ok(())
    }

    fn write_prefix(&mut self, _: &[u32], _: &KvPrefix) -> rusty_compiler::Result<()> {
        Ok(())
    }

    fn copy_page(&mut self, _: u32, _: u32) -> rusty_compiler::Result<()> {
        Ok(())
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse::default()
    }

    fn copies_tables(&self) -> bool {
        self.copies
    }

    fn compiled_kernels(&self) -> usize {
        0
    }
}

/// A registry of two slots with adapters of ranks 2 and 3.
fn registry() -> (Registry, [AdapterId; 2]) {
    let file = rusty_loader::random::outline("qwen3-tiny", "f32").expect("outline");
    let graph = Arc::new(rusty_graph::arch::build(&*file).expect("graph"));
    let mut registry = Registry::new(2, AdapterBudget::default(), graph.clone());
    let ids = [2u32, 3].map(|rank| {
        let data = random("random", &graph.sites, rank, rank.into(), Precision::F16);
        registry.add(Arc::new(data), Source::Given, 0.0)
    });
    (registry, ids)
}

#[test]
fn a_mixture_of_other_weights_fills_no_slot() {
    let (mut registry, [a, b]) = registry();
    let mut slots = Slots::default();
    let set = AdapterSet::sum([(a, 1.0), (b, 1.0)]);
    let old = registry.resolve(&set).expect("attached");
    let made = registry.recipe(&old).expect("attached");
    let made = made.make().expect("mixed");
    // Meanwhile somebody else changes a weight.
    registry.set_weight(b, 0.5).expect("attached");
    let now = registry.resolve(&set).expect("attached");
    assert_ne!(old, now);
    let taken = registry.acquire(&now, Some(made), &mut slots, &|_| false);
    let (slot, _) = taken.expect("a slot");
    let scale = &slots.filled[&slot].sites[0].1.scale;
    assert_eq!(scale[..], [1.0, 1.0, 0.5, 0.5, 0.5]);
}

/// Two want the same at once: the second takes what the first put into a slot.
#[test]
fn of_two_equal_mixtures_one_is_attached() {
    let (mut registry, [a, b]) = registry();
    let mut slots = Slots::default();
    let set = AdapterSet::sum([(a, 0.5), (b, 0.5)]);
    let key = registry.resolve(&set).expect("attached");
    assert!(!registry.is_at_hand(&key));
    let make = |()| registry.recipe(&key).and_then(Recipe::make);
    let made = [(), ()].map(make).map(|made| made.expect("mixed"));
    let taken = made.map(|mixture| {
        let taken = registry.acquire(&key, Some(mixture), &mut slots, &|_| false);
        taken.expect("a slot").0
    });
    assert_eq!(taken[0], taken[1]);
    assert_eq!(slots.attached, 1);
    assert!(registry.is_at_hand(&key));
}

/// A host's budget of nothing is kept where slots are copies: nobody holds the tables any more, and they come back from
/// their file.
#[test]
fn tables_that_a_slot_copied_leave_the_hosts_memory() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("adapter.safetensors");
    let file = rusty_loader::random::outline("qwen3-tiny", "f32").expect("outline");
    let graph = Arc::new(rusty_graph::arch::build(&*file).expect("graph"));
    let data = random("random", &graph.sites, 2, 1, Precision::F16);
    packed::pack(&data, &Base::new(&graph, &*file), &path, false).expect("packed");
    for copies in [true, false] {
        let budget = AdapterBudget {
            host: 0,
            ..AdapterBudget::default()
        };
        let mut registry = Registry::new(1, budget, graph.clone());
        let mut slots = Slots {
            copies,
            ..Slots::default()
        };
        let source = Source::File {
            path: path.clone(),
            precision: Precision::Stored,
            graph: graph.clone(),
            base: None,
            cache: None,
            stamp: Stamp::of(&path),
        };
        let data = source.read().expect("read");
        let held = Arc::downgrade(&data);
        let id = registry.add(data, source, 0.0);
        for weight in [1.0, 0.5] {
            let set = AdapterSet::sum([(id, weight)]);
            let key = registry.resolve(&set).expect("attached");
            let taken = registry.acquire(&key, None, &mut slots, &|_| false);
            taken.expect("a slot");
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
