//! A GPU whose memory ends beside a model that runs: what finds no room is refused, all else gives what it gave, bit for bit,
//! and what was refused comes in once there is room again.

use crate::adapted_rows::adapter;
use crate::golden_paths::golden;
use crate::reference::{SELECTED, adapted_logits};
use crate::watched_gpu::WatchedGpu;
use rusty_backend::{Error as DeviceError, GpuDevice, Owner};
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::{
    BindOptions, Error, Executable, KvFormat, PAGE_TOKENS, Result, RowResult, Sequence, SlotData,
    SlotId, Step, Want, compile,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const MODEL: &str = "models/qwen3-tied";
/// Tokens of each sequence of a long step, and how many there are: all rows that a step may have.
const LENGTH: u32 = 128;
const SEQUENCES: u32 = 4;
/// Pages of one of them.
const PAGES: u32 = LENGTH / PAGE_TOKENS as u32;
/// A rank for which there is no room at first, neither in pools nor in the arena.
const LARGE: usize = 100;

fn bound(device: &Arc<WatchedGpu>) -> GpuExecutable {
    let file = rusty_loader::open(golden(MODEL)).expect(MODEL);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let plan = compile(&graph, device.target()).expect("plan");
    let options = BindOptions {
        pages: SEQUENCES * PAGES,
        kv: KvFormat::F32,
        slots: 2,
    };
    GpuExecutable::bind(plan, &*file, device.clone(), options).expect("bind")
}

fn of_rank(rank: usize) -> Arc<SlotData> {
    let file = rusty_loader::open(golden(MODEL)).expect(MODEL);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    Arc::new(adapter(&graph, rank, 1000 * rank as u32))
}

/// Logits with the base and with each slot, of a prompt at once and token by token.
fn logits(exe: &mut GpuExecutable) -> [Vec<f32>; 3] {
    let ids: Vec<u32> = (0..6).map(|i| (i * 37 + 11) % 250).collect();
    [0, 1, 2].map(|slot| {
        let each = [SELECTED, 1];
        each.map(|chunk| adapted_logits(exe, SlotId(slot), &ids, chunk, &[0]).concat())
            .concat()
    })
}

/// Logits behind all rows that a step may have: its operands take more than they have room for at first.
fn long_step(exe: &mut GpuExecutable) -> Result<Vec<f32>> {
    let rows = 0..SEQUENCES * LENGTH;
    let tokens = rows.clone().map(|i| (i * 37 + 11) % 250);
    let pages: Vec<u32> = (0..SEQUENCES * PAGES).collect();
    let sequences = pages.chunks(PAGES as usize).map(|pages| Sequence {
        pages,
        rope_length: LENGTH,
    });
    let mut wants = vec![Want::Nothing; rows.len()];
    wants[rows.len() - 1] = Want::Logits;
    let step = Step {
        tokens: &tokens.collect::<Vec<_>>(),
        positions: &rows.clone().map(|i| i % LENGTH).collect::<Vec<_>>(),
        sequence_of: &rows.clone().map(|i| i / LENGTH).collect::<Vec<_>>(),
        sequences: &sequences.collect::<Vec<_>>(),
        slots: &vec![SlotId::BASE; rows.len()],
        wants: &wants,
    };
    match exe.run(&step)?.results.pop() {
        Some((_, RowResult::Logits(logits))) => Ok(logits),
        other => panic!("asked for logits, got {other:?}"),
    }
}

/// Who asked for memory that there was not.
fn refused<T>(result: Result<T>) -> String {
    let error = result.err().expect("there is no memory");
    assert!(error.to_string().contains("out of memory"), "{error}");
    match error {
        Error::Device(DeviceError::OutOfMemory { owner, .. }) => owner,
        other => panic!("{other}"),
    }
}

/// For each buffer that is made for a large adapter beside a small one, room that it does not fit, and logits with both. Pools
/// leave a quarter free where there is room, so less than four fifths of one are too little.
fn with_room(
    device: &Arc<WatchedGpu>,
    small: &Arc<SlotData>,
    large: &Arc<SlotData>,
) -> (BTreeSet<u64>, [Vec<f32>; 3]) {
    let mut exe = bound(device);
    exe.attach(SlotId(1), small.clone()).expect("attached");
    let before = device.made().len();
    exe.attach(SlotId(2), large.clone()).expect("attached");
    let made = device.made().split_off(before);
    let too_little = made.iter().map(|made| match made.owner {
        Owner::Adapters => made.bytes / 5 * 4 - 256,
        _ => made.bytes - 1,
    });
    (too_little.collect(), logits(&mut exe))
}

/// Wherever attaching it fails, at the first pool or the last, or behind them all at the arena.
#[test]
fn adapters_that_find_no_memory_leave_no_trace() {
    let device = WatchedGpu::new(|_| {});
    let (small, large) = (of_rank(2), of_rank(LARGE));
    let (rooms, with_both) = with_room(&device, &small, &large);
    let mut exe = bound(&device);
    let plain = logits(&mut exe);
    exe.attach(SlotId(1), small.clone()).expect("attached");
    let (with_small, memory) = (logits(&mut exe), exe.memory());
    assert!(with_small[1] != plain[1] && with_both[2] != plain[2]);
    let mut refusals = BTreeSet::new();
    for room in rooms {
        device.leave_room(room);
        refusals.insert(refused(exe.attach(SlotId(2), large.clone())));
        assert!(logits(&mut exe) == with_small, "room for {room} bytes");
        assert_eq!(exe.memory(), memory, "room for {room} bytes");
        assert_eq!(device.booked(), memory.adapters);
    }
    let refusals: Vec<String> = refusals.into_iter().collect();
    assert_eq!(refusals, ["adapters", "arena"]);
    // What was in a slot that is to be filled anew is gone; half of the new one is not there.
    refused(exe.attach(SlotId(1), large.clone()));
    assert!(logits(&mut exe) == plain);
    device.leave_room(u64::MAX);
    for (slot, adapter) in [(1, small), (2, large)] {
        exe.attach(SlotId(slot), adapter).expect("room again");
    }
    assert!(logits(&mut exe) == with_both);
}

/// It would be bound by every kernel, so that no step could run any more.
#[test]
fn an_arena_that_no_binding_takes_is_refused() {
    let device = WatchedGpu::new(|_| {});
    bound(&device);
    let mut made = device.made().into_iter();
    let arena = made.find(|made| made.owner == Owner::Arena);
    let arena = arena.expect("an arena").bytes;
    let mut exe = bound(&WatchedGpu::new(|target| target.max_binding_bytes = arena));
    let plain = logits(&mut exe);
    let error = exe.attach(SlotId(1), of_rank(LARGE));
    let error = error.expect_err("too large").to_string();
    assert!(
        error.contains("results of rank 100 take an arena"),
        "{error}"
    );
    assert!(logits(&mut exe) == plain);
    exe.attach(SlotId(1), of_rank(2)).expect("fits");
}

#[test]
fn a_step_whose_operands_find_no_memory_changes_nothing() {
    let device = WatchedGpu::new(|_| {});
    let want = long_step(&mut bound(&device)).expect("room");
    let mut exe = bound(&device);
    let plain = logits(&mut exe);
    device.leave_room(0);
    for _ in 0..2 {
        assert_eq!(refused(long_step(&mut exe)), "other");
        assert!(logits(&mut exe) == plain);
    }
    device.leave_room(u64::MAX);
    assert!(long_step(&mut exe).expect("room again") == want);
    assert!(logits(&mut exe) == plain);
}

/// Graphs under CUDA take memory of the driver's own.
#[test]
fn steps_that_find_no_memory_to_be_recorded_run_all_the_same() {
    let device = WatchedGpu::new(|_| {});
    let want = logits(&mut bound(&device));
    let mut exe = bound(&device);
    device.refuse_recordings(true);
    assert!(logits(&mut exe) == want);
    // The first steps brought the weights, and would not have been recorded in any case.
    let ran = device.ran();
    assert!(logits(&mut exe) == want);
    assert!(device.ran() > ran, "launches one by one");
    device.refuse_recordings(false);
    let ran = device.ran();
    assert!(logits(&mut exe) == want);
    assert_eq!(device.ran(), ran, "recorded once there is room");
}
