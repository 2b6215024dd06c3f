//! Matrix-vector products of bytes on a GPU: equal to products of floats where rounding inputs to bytes loses nothing, and as far
//! from them as an honest integer path elsewhere.

use crate::expected::Expected;
use crate::golden_paths::golden;
use crate::goldens::quantized_once;
use crate::reference::{
    BYTES_KL, On, PLAIN, all_logits, assert_close, bound_graph, distance, gpu, gpu_by_bytes,
    gpu_with_larger_planes, mean_kl, plain,
};
use rusty_compiler::gpu::GpuExecutable;
use rusty_compiler::plan::byte_codes::ByteCodes;
use rusty_compiler::plan::{Implementation, Tuning};
use rusty_compiler::{Executable, compile};
use rusty_graph::{Graph, GraphBuilder};
use rusty_loader::formats::ALL;
use rusty_loader::{Format, LoadedModel, SharedBytes, WeightView};
use std::collections::HashMap;

/// Rows of the table of inputs.
pub(crate) const TOKENS: u32 = 8;
/// Outputs: no whole cube of them.
pub(crate) const OUTPUTS: u32 = 90;

/// Numbers that look random, from 0 to 254.
pub(crate) fn numbers(count: usize, seed: u32) -> impl Iterator<Item = u32> {
    (0..count as u32).map(move |i| (i ^ seed).wrapping_mul(0x9e37_79b1).rotate_left(13) % 255)
}

/// Inputs that are bytes times a power of two in each run of sixteen, one of which is the largest byte.
pub(crate) fn inputs(k: u32) -> Vec<f32> {
    let all = numbers((TOKENS * k) as usize, 7).enumerate();
    let bytes = all.map(|(i, n)| match i % 16 {
        3 => 127.0,
        _ => n as f32 - 127.0,
    });
    let scaled = bytes.enumerate().map(|(i, byte)| {
        let power = (i / 16 % 5) as i32;
        byte * 2f32.powi(power - 8)
    });
    scaled.collect()
}

pub(crate) fn floats(values: &[f32], shape: &[u32]) -> WeightView {
    WeightView {
        bytes: SharedBytes::from_vec(bytemuck::cast_slice(values).to_vec()),
        format: Format::F32,
        shape: shape.iter().map(|n| *n as usize).collect(),
    }
}

/// Values as a format has them.
pub(crate) fn encoded(values: &[f32], shape: &[u32; 2], format: Format) -> WeightView {
    let mut bytes = vec![0; shape[0] as usize * format.row_bytes(shape[1] as usize)];
    let encoder = format.encoder().expect("a format that can be written");
    encoder.rows(values, &mut bytes);
    WeightView {
        bytes: SharedBytes::from_vec(bytes),
        format,
        shape: shape.iter().map(|n| *n as usize).collect(),
    }
}

/// Logits of tokens' rows behind a norm whose gains are powers of two, by weights of a format.
fn one_product(format: Format, k: u32) -> (Graph, LoadedModel) {
    let mut builder = GraphBuilder::new("product", 64, OUTPUTS);
    let ids = builder.tokens().expect("tokens");
    let mut weight = |name: &str, shape: &[u32], format| builder.weight(name, shape, format);
    let table = weight("table", &[TOKENS, k], Format::F32).expect("table");
    let gain = weight("gain", &[k], Format::F32).expect("gain");
    let output = weight("output", &[OUTPUTS, k], format).expect("output");
    let x = builder.gather("x", table, ids).expect("x");
    let x = builder.select_rows("selected", x).expect("selected");
    let x = builder.rms_norm("normed", x, gain, 1e-6).expect("normed");
    let logits = builder.matmul("logits", x, output, None).expect("logits");
    let graph = builder.finish(logits, x).expect("graph");
    let gains: Vec<f32> = (0..k)
        .map(|i| if i / 16 % 3 == 1 { 4.0 } else { 1.0 })
        .collect();
    let values: Vec<f32> = numbers((OUTPUTS * k) as usize, 99)
        .map(|n| n as f32 / 100.0 - 1.3)
        .collect();
    let weights = encoded(&values, &[OUTPUTS, k], format);
    let tensors = vec![
        ("table".to_owned(), floats(&inputs(k), &[TOKENS, k])),
        ("gain".to_owned(), floats(&gains, &[k])),
        ("output".to_owned(), weights),
    ];
    let file = LoadedModel::new("product", "product", HashMap::new(), tensors);
    (graph, file)
}

/// Whether a graph's plan has some implementations.
pub(crate) fn takes(graph: &Graph, on: &On, wanted: &[Implementation]) -> bool {
    let On::GpuAs(_, target) = on else {
        return false;
    };
    let plan = compile(graph, target).expect("plan");
    let variants = || plan.kernels.iter().flat_map(|k| &k.variants);
    let has = |wanted| variants().any(|v| v.implementation == wanted);
    wanted.iter().copied().all(has)
}

/// A graph bound to a GPU that multiplies matrices by vectors for up to eight rows.
fn bound_to_few(graph: &Graph, file: &LoadedModel, on: &On) -> GpuExecutable {
    let On::GpuAs(device, target) = on else {
        panic!("no GPU");
    };
    let plan = compile(graph, target).expect("plan");
    let device = device.gpu().expect("a GPU").clone();
    let mut exe = GpuExecutable::bind(plan, file, device, PLAIN).expect("bind");
    let tuning = Tuning {
        gemv_rows: 8,
        ..Tuning::default()
    };
    exe.retune(tuning).expect("tuned");
    exe
}

/// Rows of one cube's memory and of several, of whole blocks of a team and not, with sums by planes, by planes that may be larger, and
/// without, which formats have in turn.
#[test]
fn inputs_that_are_bytes_lose_nothing() {
    let formats = ALL.iter().map(|codec| Format::Blocks(codec));
    let served = formats.filter(|f| ByteCodes::serve(*f) && f.encoder().is_some());
    let larger = gpu_with_larger_planes(true).unwrap_or_else(|| gpu_by_bytes(true));
    let gpus = [gpu_by_bytes(true), gpu_by_bytes(false), larger];
    let ways = gpus.iter().cycle().zip([768, 4608].into_iter().cycle());
    let ways: Vec<(&On, u32)> = ways.take(6).collect();
    let mut tried = 0;
    for (format, (on, k)) in served.zip(ways.into_iter().cycle()) {
        let (graph, file) = one_product(format, k);
        let logits =
            |exe: &mut dyn Executable, chunk| all_logits(exe, &[3, 1, 7, 0, 5, 2], chunk, &[0]);
        let want = logits(&mut *bound_graph(&graph, &file, &gpu()), 1).concat();
        // Sums in another order; rounded inputs would be hundreds of times as far apart.
        let near = 1e-5 * want.iter().fold(0.0, |most: f32, v| most.max(v.abs()));
        let bytes = [Implementation::GemvBytes, Implementation::GemvRowsBytes];
        assert!(takes(&graph, on, &bytes), "{}", format.name());
        // One row, three of a cube's four, and four with two of the next.
        let mut exe = bound_to_few(&graph, &file, on);
        for chunk in [1, 3, 6] {
            let name = format!("{} of {k} {on:?}, by {chunk}", format.name());
            assert_close(&name, &logits(&mut exe, chunk), &want, near);
        }
        tried += 1;
    }
    assert!(tried >= 10, "{tried}");
}

/// The criterion of CPUs' kernels, which round inputs by twice as many.
#[test]
fn quantized_gguf_by_bytes_is_as_close_as_an_honest_integer_path() {
    let on = gpu_by_bytes(true);
    for (folder, stem) in quantized_once() {
        let expected = Expected::read(&folder);
        let ids = expected.ids("ids").expect("ids");
        let file = rusty_loader::open(golden(&format!("{folder}/{stem}.gguf"))).expect(&stem);
        let exact = expected.floats(&format!("{stem}.logits_dequant"));
        let other = expected.floats(&format!("{stem}.logits_llamacpp"));
        let rms = |v: &[f32]| distance(v, &exact).0;
        let pages: Vec<u32> = (0..24).collect();
        let logits = all_logits(&mut *plain(&*file, &on), &ids, 1, &pages).concat();
        let (have, peer) = (rms(&logits), rms(&other));
        let kl = mean_kl(&logits, &exact, ids.len());
        let said = format!("{stem}: {have}, another's {peer}; mean KL {kl}");
        println!("{said}");
        assert!(have < 1.5 * peer + 0.01 && kl < BYTES_KL, "{said}");
    }
}
