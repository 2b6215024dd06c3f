//! Where models run in tests, and how far their logits are from the expected.

use crate::test_gpu;
use rusty_backend::{CpuDevice, Device, Isa, Language, Target};
use rusty_compiler::cpu::CpuExecutable;
use rusty_compiler::{
    BindOptions, Executable, KvFormat, RowResult, Sequence, SlotId, Step, Want, bind, compile,
};
use rusty_graph::Graph;
use rusty_loader::ModelFile;

/// Rows that may want logits in one step.
pub(crate) const SELECTED: usize = 64;

/// Where a model runs.
#[derive(Clone, Debug)]
pub(crate) enum On {
    Cpu(Isa),
    Gpu(Device),
    /// A GPU, with the kernels of one of these facts.
    GpuAs(Device, Box<Target>),
}

/// All of this machine, without what rounds inputs of floats: references are single precision. `brain_floats.rs` is about that.
pub(crate) fn instruction_sets() -> Vec<On> {
    let in_floats = |isa| match isa {
        Isa::Avx512 { vnni, amx, .. } => Isa::Avx512 {
            vnni,
            amx,
            bf16: false,
        },
        other => other,
    };
    let sets = CpuDevice::runnable().into_iter();
    sets.map(|isa| On::Cpu(in_floats(isa))).collect()
}

pub(crate) fn gpu_device() -> Device {
    let device = Device::open(&test_gpu::choice(), None);
    device.expect("`cargo xtask setup` installs a Vulkan device")
}

pub(crate) fn gpu() -> On {
    On::Gpu(gpu_device())
}

/// The same GPU with the kernels of other facts, in floats but for what these say.
fn gpu_as(change: impl FnOnce(&mut Target)) -> On {
    let device = gpu_device();
    let mut target = in_floats(&device);
    change(&mut target);
    On::GpuAs(device, Box::new(target))
}

/// The same GPU as one without planes.
pub(crate) fn gpu_without_planes() -> On {
    gpu_as(|t| t.plane_ops = false)
}

/// The same GPU as one that may have planes of half the size; it multiplies bytes where it can, or floats. None under CUDA, where planes
/// have one size.
pub(crate) fn gpu_with_larger_planes(bytes: bool) -> Option<On> {
    let device = gpu_device();
    let own = device.target();
    let may = own.plane_ops && own.language == Language::Wgsl;
    may.then(|| {
        gpu_as(|t| {
            t.plane_size /= 2;
            t.packed_dot = bytes && own.packed_dot;
        })
    })
}

/// The same GPU multiplying bytes where it can, with sums by planes or without.
pub(crate) fn gpu_by_bytes(planes: bool) -> On {
    gpu_as(|t| {
        t.packed_dot = true;
        t.plane_ops &= planes;
    })
}

/// The same GPU as one whose cubes do not see what others of their launch leave.
#[cfg(feature = "gpu")]
pub(crate) fn gpu_without_order() -> On {
    gpu_as(|t| t.orders_groups = false)
}

/// The same GPU as one whose cubes may wait for the first of a launch, multiplying bytes or floats.
pub(crate) fn gpu_in_order(bytes: bool) -> On {
    gpu_as(|t| {
        t.starts_in_order = true;
        t.packed_dot = bytes;
    })
}

/// What a GPU has but for what rounds inputs or weights: references are single precision. `matrix_units.rs` is about bf16,
/// `byte_products.rs` about bytes, `tiles.rs` about half precision.
pub(crate) fn in_floats(device: &Device) -> Target {
    device.target().in_single_precision()
}

pub(crate) fn everywhere() -> Vec<On> {
    instruction_sets().into_iter().chain([gpu()]).collect()
}

pub(crate) fn bound(
    file: &dyn ModelFile,
    on: &On,
    kv: KvFormat,
    threads: usize,
) -> Box<dyn Executable> {
    let options = BindOptions {
        pages: 24,
        kv,
        slots: 2,
    };
    bound_with(file, on, threads, options)
}

/// Without the kernels for adapters, which doubles the speed of compiling.
pub(crate) const PLAIN: BindOptions = BindOptions {
    pages: 24,
    kv: KvFormat::F32,
    slots: 0,
};

/// On one thread, as [`PLAIN`] says.
pub(crate) fn plain(file: &dyn ModelFile, on: &On) -> Box<dyn Executable> {
    bound_with(file, on, 1, PLAIN)
}

pub(crate) fn bound_with(
    file: &dyn ModelFile,
    on: &On,
    threads: usize,
    options: BindOptions,
) -> Box<dyn Executable> {
    try_bound(file, on, threads, options).expect("bind")
}

pub(crate) fn try_bound(
    file: &dyn ModelFile,
    on: &On,
    threads: usize,
    options: BindOptions,
) -> rusty_compiler::Result<Box<dyn Executable>> {
    let graph = rusty_graph::arch::build(file).expect("graph");
    try_bound_graph(&graph, file, on, threads, options)
}

/// A graph that no file states, on one thread, as [`PLAIN`] says.
#[cfg(feature = "gpu")]
pub(crate) fn bound_graph(graph: &Graph, file: &dyn ModelFile, on: &On) -> Box<dyn Executable> {
    try_bound_graph(graph, file, on, 1, PLAIN).expect("bind")
}

fn try_bound_graph(
    graph: &Graph,
    file: &dyn ModelFile,
    on: &On,
    threads: usize,
    options: BindOptions,
) -> rusty_compiler::Result<Box<dyn Executable>> {
    match on {
        On::Cpu(isa) => {
            let device = CpuDevice::new(Some(threads));
            let plan = compile(graph, device.target()).expect("plan");
            let exe = CpuExecutable::bind_isa(plan, file, *isa, &device, &options)?;
            Ok(Box::new(exe))
        }
        On::Gpu(device) => {
            let plan = compile(graph, &in_floats(device)).expect("plan");
            bind(plan, file, device, &options)
        }
        On::GpuAs(device, target) => {
            let plan = compile(graph, target).expect("plan");
            bind(plan, file, device, &options)
        }
    }
}

/// Logits of every position, in chunks of uneven length.
pub(crate) fn all_logits(
    exe: &mut dyn Executable,
    ids: &[u32],
    chunk: usize,
    pages: &[u32],
) -> Vec<Vec<f32>> {
    adapted_logits(exe, SlotId::BASE, ids, chunk, pages)
}

/// The same of rows that name an adapter.
pub(crate) fn adapted_logits(
    exe: &mut dyn Executable,
    slot: SlotId,
    ids: &[u32],
    chunk: usize,
    pages: &[u32],
) -> Vec<Vec<f32>> {
    let mut logits = vec![];
    for (at, tokens) in ids.chunks(chunk).enumerate() {
        let positions: Vec<u32> = (0..tokens.len()).map(|i| (at * chunk + i) as u32).collect();
        let sequences = [Sequence {
            pages,
            rope_length: ids.len() as u32,
        }];
        let step = Step {
            tokens,
            positions: &positions,
            sequence_of: &vec![0; tokens.len()],
            sequences: &sequences,
            slots: &vec![slot; tokens.len()],
            wants: &vec![Want::Logits; tokens.len()],
        };
        for (_, result) in exe.run(&step).expect("step").results {
            match result {
                RowResult::Logits(l) => logits.push(l),
                other => panic!("asked for logits, got {other:?}"),
            }
        }
    }
    logits
}

/// What is this near the expected has a KL divergence of at most `tolerance` squared, halved (Hoeffding's lemma): 5e-7 nats where
/// that is 1e-3.
pub(crate) fn assert_close(name: &str, have: &[Vec<f32>], want: &[f32], tolerance: f32) {
    let have: Vec<f32> = have.concat();
    assert_eq!(have.len(), want.len(), "{name}");
    let worst = have
        .iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(worst <= tolerance, "{name}: {worst}");
}

/// Root mean square of the differences, and one less the cosine.
pub(crate) fn distance(have: &[f32], want: &[f32]) -> (f64, f64) {
    assert_eq!(have.len(), want.len());
    let (mut apart, mut dot, mut a2, mut b2) = (0f64, 0f64, 0f64, 0f64);
    for (a, b) in have.iter().zip(want) {
        let (a, b) = (f64::from(*a), f64::from(*b));
        apart += (a - b) * (a - b);
        dot += a * b;
        a2 += a * a;
        b2 += b * b;
    }
    let rms = (apart / want.len() as f64).sqrt();
    (rms, 1.0 - dot / (a2 * b2).sqrt())
}

/// Mean KL divergence in nats that models keep to whose products round their inputs to bytes: the suggestion of the goldens'
/// README. Another implementation's are up to 0.0047.
pub(crate) const BYTES_KL: f64 = 0.01;

/// Mean over rows of logits of KL(want || have), the Kullback-Leibler divergence of the next tokens that they expect, in nats.
pub(crate) fn mean_kl(have: &[f32], want: &[f32], rows: usize) -> f64 {
    assert_eq!(have.len(), want.len());
    let vocab = want.len() / rows;
    assert_eq!(vocab * rows, want.len());
    let each = have.chunks_exact(vocab).zip(want.chunks_exact(vocab));
    let each = each.map(|(have, want)| {
        let (q, p) = (log_softmax(have), log_softmax(want));
        let terms = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q));
        terms.sum::<f64>()
    });
    each.sum::<f64>() / rows as f64
}

/// Logarithms of the probabilities that logits stand for.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = logits.iter().map(|l| f64::from(*l) - f64::from(most));
    let sum: f64 = shifted.clone().map(f64::exp).sum();
    shifted.map(|l| l - sum.ln()).collect()
}

/// Probabilities of a half and a half against a quarter and three quarters, and a row that does not differ.
#[test]
fn divergences_are_means_over_rows() {
    let want = [0.5f32.ln(), 0.5f32.ln(), 3.0, -1.0];
    let have = [0.25f32.ln() + 7.0, 0.75f32.ln() + 7.0, 3.0, -1.0];
    let of_first = 0.5 * 2f64.ln() + 0.5 * (2f64 / 3.0).ln();
    let kl = mean_kl(&have, &want, 2);
    assert!((kl - of_first / 2.0).abs() < 1e-6, "{kl}");
    assert_eq!(mean_kl(&want, &want, 2), 0.0);
}
