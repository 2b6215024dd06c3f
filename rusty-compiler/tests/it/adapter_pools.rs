//! On a GPU adapters come and go in buffers: nothing is compiled, what stays attached does not change, and no memory is lost.

use crate::adapted_rows::adapter;
use crate::golden_paths::golden;
use crate::reference::{SELECTED, adapted_logits};
use crate::watched_gpu::WatchedGpu;
use rusty_backend::{GpuDevice, Owner};
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::{BindOptions, Executable, KvFormat, SlotData, SlotId, compile};
use std::sync::Arc;

const MODEL: &str = "models/qwen3-tied";

/// An executable with three slots.
fn bound(device: &Arc<WatchedGpu>) -> GpuExecutable {
    let file = rusty_loader::open(golden(MODEL)).expect(MODEL);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let plan = compile(&graph, device.target()).expect("plan");
    let options = BindOptions {
        pages: 1,
        kv: KvFormat::F32,
        slots: 3,
    };
    GpuExecutable::bind(plan, &*file, device.clone(), options).expect("bind")
}

/// Adapters of several ranks, and the last with another weight.
fn adapters() -> Vec<Arc<SlotData>> {
    let file = rusty_loader::open(golden(MODEL)).expect(MODEL);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let ranks = [2, 5, 3, 16].into_iter();
    let mut all: Vec<SlotData> = ranks
        .map(|rank| adapter(&graph, rank, 1000 * rank as u32))
        .collect();
    let mut weighted = all[3].clone();
    for (_, delta) in &mut weighted.sites {
        delta.scale = delta.scale.iter().map(|s| s * 0.5).collect();
    }
    all.push(weighted);
    all.into_iter().map(Arc::new).collect()
}

/// Logits of a prompt with a slot's adapter, at once and token by token.
fn logits(exe: &mut GpuExecutable, slot: u32) -> Vec<f32> {
    let ids: Vec<u32> = (0..12).map(|i| (i * 37 + 11) % 250).collect();
    let each = [SELECTED, 1];
    each.map(|chunk| adapted_logits(exe, SlotId(slot), &ids, chunk, &[0]).concat())
        .concat()
}

fn attach(exe: &mut GpuExecutable, slot: u32, adapter: &Arc<SlotData>) {
    exe.attach(SlotId(slot), adapter.clone()).expect("attached");
}

/// What each adapter gives where no other is attached.
fn alone(device: &Arc<WatchedGpu>, all: &[Arc<SlotData>]) -> Vec<Vec<f32>> {
    let mut exe = bound(device);
    let each = all.iter().map(|adapter| {
        attach(&mut exe, 1, adapter);
        let logits = logits(&mut exe, 1);
        exe.detach(SlotId(1)).expect("detached");
        logits
    });
    let each: Vec<Vec<f32>> = each.collect();
    for (i, logits) in each.iter().enumerate() {
        assert!(!each[..i].contains(logits), "adapter {i} is another");
    }
    each
}

/// A pool that grows takes what is attached along, without the gaps.
#[test]
fn growing_pools_keep_what_is_attached() {
    let device = WatchedGpu::new(|_| {});
    let all = adapters();
    let want = alone(&device, &all);
    let mut exe = bound(&device);
    let mut bytes = exe.memory().adapters;
    for (slot, adapter) in (1..).zip(&all[..3]) {
        attach(&mut exe, slot, adapter);
        let grown = exe.memory().adapters;
        assert!(grown > bytes, "{grown}, before {bytes}");
        bytes = grown;
    }
    for slot in 1..=3 {
        assert!(logits(&mut exe, slot) == want[slot as usize - 1], "{slot}");
    }
    // The largest takes the place of the one in the middle, which it does not fit.
    attach(&mut exe, 2, &all[3]);
    assert!(exe.memory().adapters > bytes);
    for (slot, of) in [(1, 0), (2, 3), (3, 2)] {
        assert!(logits(&mut exe, slot) == want[of], "{slot}");
    }
}

/// Whatever comes, goes and takes another's slot: pools are as large as the most at once needs and a quarter, and say so.
#[test]
fn coming_and_going_compiles_nothing_and_loses_no_memory() {
    let device = WatchedGpu::new(|_| {});
    let all = adapters();
    let want = alone(&device, &all);
    let mut exe = bound(&device);
    let (given, kernels) = (device.compiled(), exe.compiled_kernels());
    assert!(given >= kernels && kernels > 0);
    let held = |exe: &GpuExecutable| exe.memory().adapters - exe.memory().adapter_room;
    let empty = held(&exe);
    let mut most = empty;
    for round in 0..3 {
        for i in 0..12 {
            let (slot, of) = (1 + (i * 2 + round) % 3, (i + round) % all.len());
            attach(&mut exe, slot as u32, &all[of]);
            most = most.max(held(&exe));
            assert!(logits(&mut exe, slot as u32) == want[of], "{round} {i}");
            // Pools begin at whole blocks of 256 bytes; there are fewer than 64.
            let memory = exe.memory();
            assert!(memory.adapters <= most / 4 * 5 + 64 * 256, "{memory:?}");
            assert_eq!(device.booked(), memory.adapters);
        }
        for slot in [2, 3, 1] {
            exe.detach(SlotId(slot)).expect("detached");
        }
        assert_eq!(held(&exe), empty);
    }
    let compiled = (device.compiled(), exe.compiled_kernels());
    assert_eq!(compiled, (given, kernels));
}

/// Bytes of the largest pool that was made behind the first `before` buffers.
fn largest_pool(device: &WatchedGpu, before: usize) -> u64 {
    let made = device.made().split_off(before).into_iter();
    let pools = made.filter(|made| made.owner == Owner::Adapters);
    pools.map(|made| made.bytes).max().expect("a pool")
}

/// An adapter is attached where there is room for it, though not for what would be left free beside it.
#[test]
fn pools_leave_less_free_where_no_more_is_to_be_had() {
    let device = WatchedGpu::new(|_| {});
    let large = &adapters()[3];
    let mut exe = bound(&device);
    let before = device.made().len();
    attach(&mut exe, 1, large);
    let (want, wished) = (logits(&mut exe, 1), largest_pool(&device, before));
    // By what a binding allows, all of which is taken.
    let most = wished - 256;
    let narrow = WatchedGpu::new(|target| target.max_binding_bytes = most);
    let mut exe = bound(&narrow);
    attach(&mut exe, 1, large);
    assert!(logits(&mut exe, 1) == want);
    assert_eq!(largest_pool(&narrow, 0), most);
    // By memory.
    let mut exe = bound(&device);
    device.leave_room(most);
    attach(&mut exe, 1, large);
    device.leave_room(u64::MAX);
    assert!(logits(&mut exe, 1) == want);
    // Tables that a binding does not take are refused.
    let too_little = wished / 4 * 3;
    let mut exe = bound(&WatchedGpu::new(|t| t.max_binding_bytes = too_little));
    let refused = exe.attach(SlotId(1), large.clone());
    let said = refused.expect_err("too large").to_string();
    assert!(said.contains("one binding for the adapters"), "{said}");
}
