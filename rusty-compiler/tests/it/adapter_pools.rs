//! On a GPU adapters come and go in buffers: nothing is compiled, what stays attached does not change, and no memory is lost.

use crate::adapted_rows::adapter;
use crate::golden_paths::golden;
use crate::reference::{SELECTED, adapted_logits};
use crate::test_gpu;
use rusty_backend::memory::Usage;
use rusty_backend::{
    Device, DeviceBuffer, GpuDevice, KernelText, Launch, Owner, Pipeline, Recording, Result, Target,
};
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::{BindOptions, Executable, KvFormat, SlotData, SlotId, compile};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const MODEL: &str = "models/qwen3-tied";

/// A GPU that counts the kernels that it is given.
#[derive(Debug)]
struct Counting {
    gpu: Arc<dyn GpuDevice>,
    compiled: AtomicUsize,
}

impl Counting {
    fn open() -> Arc<Self> {
        let device = Device::open(&test_gpu::choice(), None).expect("a GPU");
        Arc::new(Self {
            gpu: device.gpu().expect("a GPU").clone(),
            compiled: AtomicUsize::new(0),
        })
    }

    fn compiled(&self) -> usize {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Bytes booked for adapters.
    fn booked(&self) -> u64 {
        let usage = self.usage();
        let mut of = usage.by_owner.iter();
        of.find(|(owner, _)| *owner == Owner::Adapters)
            .map_or(0, |(_, bytes)| *bytes)
    }
}

impl GpuDevice for Counting {
    fn target(&self) -> &Target {
        self.gpu.target()
    }

    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer> {
        self.gpu.alloc(bytes, owner, label)
    }

    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()> {
        self.gpu.write(buffer, offset, data)
    }

    fn pipeline(&self, text: &KernelText) -> Result<Pipeline> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        self.gpu.pipeline(text)
    }

    fn record(&self, launches: &[Launch]) -> Result<Recording> {
        self.gpu.record(launches)
    }

    fn submit(&self, recording: &Recording) -> Result<()> {
        self.gpu.submit(recording)
    }

    fn run(&self, launches: &[Launch]) -> Result<()> {
        self.gpu.run(launches)
    }

    fn read_into(&self, buffer: &DeviceBuffer, offset: u64, out: &mut [u8]) -> Result<()> {
        self.gpu.read_into(buffer, offset, out)
    }

    fn copy(
        &self,
        from: &DeviceBuffer,
        from_offset: u64,
        to: &DeviceBuffer,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        self.gpu.copy(from, from_offset, to, to_offset, len)
    }

    fn synchronize(&self) -> Result<()> {
        self.gpu.synchronize()
    }

    fn usage(&self) -> Usage {
        self.gpu.usage()
    }
}

/// An executable with three slots.
fn bound(device: &Arc<Counting>) -> GpuExecutable {
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
fn alone(device: &Arc<Counting>, all: &[Arc<SlotData>]) -> Vec<Vec<f32>> {
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
    let device = Counting::open();
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
    let device = Counting::open();
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
