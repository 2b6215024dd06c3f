//! Random weights that a device makes are those that the host makes.

use crate::reference::{PLAIN, all_logits, gpu_device};
use crate::watched_gpu::WatchedGpu;
use rusty_backend::{Device, Owner};
use rusty_compiler::BindOptions;
use rusty_compiler::gpu::random_weights::Maker;
use rusty_loader::random::{self, Pattern};
use rusty_loader::{Format, ModelFile, PageBuffer, SharedBytes, formats};
use std::sync::Arc;

/// Blocks of a tensor: with those of the smallest formats more words than a cube has units.
const BLOCKS: usize = 1000;

/// Promised bytes, and the same made by the host.
fn both(format: Format) -> (SharedBytes, Vec<u8>) {
    let pattern = Pattern::new("blk.0.ffn_up.weight", format);
    let len = format.block_bytes() * BLOCKS;
    let mut made = vec![0; len];
    pattern.fill(&mut made);
    let pages = PageBuffer::new(len, "test").expect("memory");
    (SharedBytes::promised(Arc::new(pattern), pages), made)
}

/// Whole tensors and parts, which begin and end anywhere in words; what lies beside them stays.
#[test]
fn a_device_makes_the_bytes_of_the_host() {
    let device = gpu_device();
    let gpu = &**device.gpu().expect("a GPU");
    let mut maker = Maker::new(gpu).expect("compiled");
    let blocks = formats::ALL.iter().copied().map(Format::Blocks);
    for format in blocks.chain([Format::F32, Format::F16, Format::Bf16]) {
        let (promised, made) = both(format);
        for (first, count) in [(0, BLOCKS), (1, 7), (2, BLOCKS - 3), (333, 1)] {
            let block = format.block_bytes();
            let range = first * block..(first + count) * block;
            let part = promised.slice(range.clone()).expect("inside");
            let len = part.len().next_multiple_of(4);
            let buffer = gpu.alloc(len as u64 + 32, Owner::Weights, "part");
            let buffer = buffer.expect("memory");
            gpu.write(&buffer, 0, &vec![0xa5; len + 32])
                .expect("written");
            let done = maker.make(&part, (&buffer, 16), gpu).expect("made");
            assert!(done);
            let have = gpu.read(&buffer, 0, len as u64 + 32).expect("read");
            let mut want = vec![0xa5; len + 32];
            want[16..16 + len].fill(0);
            want[16..][..part.len()].copy_from_slice(&made[range]);
            assert!(have == want, "{} from {first}, {count}", format.name());
        }
    }
    let own = SharedBytes::from_vec(vec![1; 64]);
    let buffer = gpu.alloc(64, Owner::Weights, "own").expect("memory");
    assert!(!maker.make(&own, (&buffer, 0), gpu).expect("left"));
}

/// Makes a model of a shape and a format.
type Make = fn(&str, &str) -> rusty_loader::Result<Box<dyn ModelFile>>;

/// Models whose matrices are cut, stacked and shared are those of the host, of which nothing is uploaded but vectors.
#[test]
fn promised_models_are_those_of_the_host() {
    for (shape, format, binding) in [
        ("qwen3-tiny", "q4_k_m", u64::MAX),
        ("qwen3-tiny", "bf16", 128 << 10),
        ("deepseek-tiny", "q8_0", u64::MAX),
    ] {
        let logits = |make: Make| {
            let file = make(shape, format).expect("random");
            let gpu = WatchedGpu::new(|target| {
                target.max_binding_bytes = target.max_binding_bytes.min(binding);
            });
            let graph = rusty_graph::arch::build(&*file).expect("graph");
            let device = Device::Gpu(gpu.clone());
            let plan = rusty_compiler::compile(&graph, device.target()).expect("plan");
            let options = BindOptions { pages: 8, ..PLAIN };
            let exe = rusty_compiler::bind(plan, &*file, &device, &options);
            let mut exe = exe.expect("bound");
            let ids: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 500).collect();
            let pages: Vec<u32> = (0..8).collect();
            let logits = all_logits(&mut *exe, &ids, 20, &pages);
            (logits, gpu.uploaded())
        };
        let (want, uploaded) = logits(random::model);
        let (have, beside) = logits(random::promised);
        assert!(have == want, "{shape} {format}");
        assert!(beside < uploaded / 20, "{shape} {format}: {beside} bytes");
    }
}
