//! Kernels against plain references, for every instruction set of the machine.

use super::attention::{self, Block, Partial, SCORE_WORDS};
use super::body::{self, Lanes, Registers};
use super::float::{self, Extent, FloatKind, FloatRows};
use super::kv::{self, KvPool};
use super::memory::Buffer;
use super::panel::{GROUP, Kind, PanelLayout};
use super::quantize::{Forms, InputRows, Inputs, fill_row};
use super::simd::{LANES, Level, Vector, math, per_isa};
use super::tile::{self, Panel};
use crate::PAGE_TOKENS;
use crate::step::KvFormat;
use half::{bf16, f16};
use rusty_backend::CpuDevice;
use rusty_graph::{AttentionSpec, KvLayer, UnaryOp};
use rusty_loader::Format;
use rusty_loader::formats::{ALL, ScaleRule};

/// Reproducible noise.
struct Noise(u64);

impl Noise {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

fn levels() -> Vec<Level> {
    CpuDevice::runnable()
        .into_iter()
        .map(Level::for_isa)
        .collect()
}

/// Random blocks with modest scales.
fn blocks(codec: &rusty_loader::Codec, count: usize, noise: &mut Noise) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..count * codec.block_bytes)
        .map(|_| noise.bits() as u8)
        .collect();
    let halves: &[usize] = match codec.scales {
        ScaleRule::Block { d } => &[d],
        ScaleRule::PackedK { d, dmin, .. } => &[d, dmin],
        ScaleRule::I8Groups { d, .. } => &[d],
    };
    for block in bytes.chunks_exact_mut(codec.block_bytes) {
        for &at in halves {
            let scale = f16::from_f32(noise.unit() * 0.02);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

fn filled(level: Level, x: &[f32], rows: usize, k: usize) -> (Inputs, InputRows) {
    let inputs = Inputs::new(rows, k);
    let view = inputs.rows(k);
    let forms = Forms {
        kinds: [k.is_multiple_of(GROUP); 4],
        floats: true,
    };
    for row in 0..rows {
        // SAFETY: the buffers hold `rows` rows of `k`.
        unsafe { fill_row(level, view, row, x[row * k..].as_ptr(), k, forms) };
    }
    (inputs, view)
}

/// What the bytes of a row stand for.
fn decoded_input(view: &InputRows, row: usize, k: usize) -> Vec<f64> {
    (0..k)
        .map(|i| {
            // SAFETY: the row was filled.
            unsafe {
                let code = *view.codes.add(row * view.code_stride + i);
                f64::from(code) * f64::from(*view.scales.add(row * view.groups + i / GROUP))
            }
        })
        .collect()
}

#[test]
fn inputs_are_rounded_within_half_a_step() {
    let (rows, k) = (5, 96);
    let mut noise = Noise(7);
    let mut x = noise.floats(rows * k);
    x[k..2 * k].fill(0.0);
    x[2 * k + 3] = 900.0;
    for level in levels() {
        let (_inputs, view) = filled(level, &x, rows, k);
        for row in 0..rows {
            let decoded = decoded_input(&view, row, k);
            for (i, d) in decoded.iter().enumerate() {
                // SAFETY: the row was filled.
                let scale = f64::from(unsafe { *view.scales.add(row * view.groups + i / GROUP) });
                let error = (d - f64::from(x[row * k + i])).abs();
                assert!(
                    error <= scale * 0.5001,
                    "{level:?} row {row} lane {i}: {error}"
                );
            }
        }
    }
}

#[test]
fn integer_tiles_match_decoded_weights() {
    for codec in ALL {
        let Some(kind) = Kind::of(codec) else {
            continue;
        };
        for (n, k) in [(1, 256), (16, 512), (37, 768)] {
            let mut noise = Noise(11 + n as u64);
            let stored = blocks(codec, n * k / codec.block_len, &mut noise);
            let mut weights = vec![0.0; n * k];
            Format::Blocks(codec).decode_row(&stored, &mut weights);
            let layout = PanelLayout { codec, kind, k, n };
            let mut panels = vec![0u8; layout.bytes()];
            for (i, panel) in panels.chunks_exact_mut(layout.panel_bytes()).enumerate() {
                layout.pack(&stored, i, panel);
            }
            let mut row = vec![0.0; k];
            for (i, want) in weights.chunks_exact(k).enumerate() {
                layout.unpack_row(&panels, i, &mut row);
                assert_eq!(row, want, "{} row {i}", codec.name);
            }
            let rows = 40;
            let x = noise.floats(rows * k);
            for level in levels() {
                check_tiles(level, &layout, &panels, &weights, &x, rows);
            }
        }
    }
}

fn check_tiles(
    level: Level,
    layout: &PanelLayout,
    panels: &[u8],
    weights: &[f32],
    x: &[f32],
    rows: usize,
) {
    let (k, n, name) = (layout.k, layout.n, layout.codec.name);
    let (_inputs, view) = filled(level, x, rows, k);
    let run = |panel: usize, first: usize, count: usize| {
        let mut out = vec![f32::NAN; count * LANES];
        let at = panels[panel * layout.panel_bytes()..].as_ptr();
        // SAFETY: panel, rows and results are whole.
        unsafe {
            let panel = Panel::new(layout, at);
            tile::multiply(level, panel, view, first, count, out.as_mut_ptr(), LANES);
        }
        out
    };
    for panel in 0..layout.panels() {
        let out = run(panel, 0, rows);
        for row in 0..rows {
            let input = decoded_input(&view, row, k);
            for lane in 0..(n - panel * LANES).min(LANES) {
                let w = &weights[(panel * LANES + lane) * k..][..k];
                let products = w.iter().zip(&input).map(|(w, x)| f64::from(*w) * x);
                let size: f64 = products.clone().map(f64::abs).sum();
                let (want, have) = (products.sum::<f64>(), f64::from(out[row * LANES + lane]));
                assert!(
                    (want - have).abs() <= 2e-6 * size + 1e-6,
                    "{name} {level:?} [{n}, {k}] row {row} lane {lane}: {have}, not {want}"
                );
            }
            let alone = run(panel, row, 1);
            assert_eq!(
                alone[..],
                out[row * LANES..][..LANES],
                "{name} {level:?} row {row} alone"
            );
        }
    }
}

#[test]
fn float_tiles_match_double_precision() {
    for (n, k) in [(1, 16), (9, 40), (33, 129)] {
        let mut noise = Noise(3 + k as u64);
        let weights = noise.floats(n * k);
        let rows = 15;
        let x = noise.floats(rows * k);
        for kind in [FloatKind::F32, FloatKind::F16, FloatKind::Bf16] {
            let (bytes, exact): (Vec<u8>, Vec<f32>) = match kind {
                FloatKind::F32 => (
                    weights.iter().flat_map(|w| w.to_le_bytes()).collect(),
                    weights.clone(),
                ),
                FloatKind::F16 => {
                    let h: Vec<f16> = weights.iter().map(|w| f16::from_f32(*w)).collect();
                    let bytes = h.iter().flat_map(|h| h.to_le_bytes()).collect();
                    (bytes, h.iter().map(|h| h.to_f32()).collect())
                }
                FloatKind::Bf16 => {
                    let h: Vec<bf16> = weights.iter().map(|w| bf16::from_f32(*w)).collect();
                    let bytes = h.iter().flat_map(|h| h.to_le_bytes()).collect();
                    (bytes, h.iter().map(|h| h.to_f32()).collect())
                }
            };
            for level in levels() {
                check_floats(level, kind, &bytes, &exact, &x, (rows, n, k));
            }
        }
    }
}

fn check_floats(
    level: Level,
    kind: FloatKind,
    bytes: &[u8],
    exact: &[f32],
    x: &[f32],
    (rows, n, k): (usize, usize, usize),
) {
    let (_inputs, view) = filled(level, x, rows, k);
    let run = |first: usize, count: usize| {
        let mut out = vec![f32::NAN; count * n];
        let w = FloatRows {
            kind,
            at: bytes.as_ptr(),
            k,
        };
        let extent = Extent {
            first,
            rows: count,
            columns: n,
            out: out.as_mut_ptr(),
            stride: n,
        };
        // SAFETY: weights, rows and results are whole.
        unsafe { float::multiply(level, w, view, extent) };
        out
    };
    let out = run(0, rows);
    for row in 0..rows {
        for c in 0..n {
            let products = (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(exact[c * k + i]));
            let want: f64 = products.sum();
            let have = f64::from(out[row * n + c]);
            assert!(
                (want - have).abs() < 1e-5,
                "{kind:?} {level:?} {row} {c}: {have}, not {want}"
            );
        }
        assert_eq!(
            run(row, 1),
            out[row * n..][..n],
            "{kind:?} {level:?} row {row} alone"
        );
    }
}

struct Case {
    spec: AttentionSpec,
    length: usize,
    first: usize,
    format: KvFormat,
}

#[test]
fn attention_matches_a_plain_softmax() {
    let spec = |heads, kv_heads, head_dim, window, softcap| AttentionSpec {
        layer: 0,
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window,
        softcap,
    };
    let case = |spec, length, first, format| Case {
        spec,
        length,
        first,
        format,
    };
    let cases = [
        case(spec(4, 2, 32, None, None), 1, 0, KvFormat::F32),
        case(spec(6, 2, 20, None, Some(5.0)), 70, 61, KvFormat::F32),
        case(spec(8, 1, 64, Some(33), None), 200, 197, KvFormat::F16),
        case(spec(4, 4, 80, Some(5), None), 90, 70, KvFormat::F32),
        case(spec(4, 2, 16, None, None), 2100, 2097, KvFormat::F16),
    ];
    for case in &cases {
        for level in levels() {
            check_attention(level, case);
        }
    }
}

fn check_attention(level: Level, case: &Case) {
    let s = case.spec;
    let (heads, kv_heads, d) = (s.heads as usize, s.kv_heads as usize, s.head_dim as usize);
    let mut noise = Noise(5);
    let width = kv_heads * d;
    let rounded = |v: Vec<f32>| match case.format {
        KvFormat::F32 => v,
        KvFormat::F16 => v.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
    };
    let keys = rounded(noise.floats(case.length * width));
    let values = rounded(noise.floats(case.length * width));
    let rows = case.length - case.first;
    let q = noise.floats(rows * heads * d);
    let used = case.length.div_ceil(PAGE_TOKENS);
    let layers = [KvLayer {
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
    }];
    let pool = KvPool::new(&layers, used as u32 + 3, case.format);
    // Pages in an odd order.
    let pages: Vec<u32> = (0..used).map(|p| (used - 1 - p) as u32 + 2).collect();
    for t in 0..case.length {
        for (key, from) in [(true, &keys), (false, &values)] {
            let place = pool.place(0, key, pages[t / PAGE_TOKENS], t % PAGE_TOKENS);
            // Two ranges that cut a head.
            let cut = width / 2 - 1;
            for (first, count) in [(0, cut), (cut, width - cut)] {
                let from = from[t * width + first..].as_ptr();
                // SAFETY: the lanes are inside the layer.
                unsafe { kv::store(level, place, first, count, from) };
            }
        }
    }
    let group = heads / kv_heads;
    for kv_head in 0..kv_heads {
        let block = Block {
            spec: s,
            layer: pool.layer(0),
            kv_head,
            q: q.as_ptr(),
            rows,
            position: case.first,
            pages: &pages,
        };
        let padded = block.layer.shape.padded;
        let memory = Buffer::words(SCORE_WORDS + 2 * Partial::words(padded));
        let partial = |i: usize| Partial {
            at: memory
                .floats()
                .wrapping_add(SCORE_WORDS + i * Partial::words(padded)),
            padded,
        };
        let mut out = vec![0f32; rows * group * d];
        // SAFETY: all memory is whole and this thread's.
        unsafe {
            partial(0).clear(block.queries());
            for span in block.spans() {
                attention::attend(level, block, span, memory.floats(), partial(1));
                attention::merge(partial(0), partial(1), block.queries());
            }
            attention::finish(&block, partial(0), out.as_mut_ptr());
        }
        for row in 0..rows {
            for h in 0..group {
                let q = &q[(row * heads + kv_head * group + h) * d..][..d];
                let want = plain(&s, q, &keys, &values, case.first + row, kv_head);
                let have = &out[(row * group + h) * d..][..d];
                for (i, (w, v)) in want.iter().zip(have).enumerate() {
                    let error = (w - f64::from(*v)).abs();
                    assert!(
                        error < 2e-5,
                        "{level:?} {s:?} row {row} head {h} lane {i}: {error}"
                    );
                }
            }
        }
    }
}

/// Attention of one query in double precision.
fn plain(
    s: &AttentionSpec,
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    position: usize,
    kv_head: usize,
) -> Vec<f64> {
    let d = s.head_dim as usize;
    let width = s.kv_heads as usize * d;
    let from = s
        .window
        .map_or(0, |w| (position + 1).saturating_sub(w as usize));
    let score = |t: usize| {
        let k = &keys[t * width + kv_head * d..][..d];
        let dot: f64 = q
            .iter()
            .zip(k)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum();
        let scaled = dot * f64::from(s.scale);
        s.softcap
            .map_or(scaled, |c| f64::from(c) * (scaled / f64::from(c)).tanh())
    };
    let scores: Vec<f64> = (from..=position).map(score).collect();
    let top = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; d];
    for (i, w) in weights.iter().enumerate() {
        let v = &values[(from + i) * width + kv_head * d..][..d];
        out.iter_mut()
            .zip(v)
            .for_each(|(o, v)| *o += w / sum * f64::from(*v));
    }
    out
}

per_isa! {
    fn apply(op: UnaryOp, x: *const f32, out: *mut f32) = apply_with
}

#[inline(always)]
unsafe fn apply_with<V: Vector>(op: UnaryOp, x: *const f32, out: *mut f32) {
    // SAFETY: both hold a vector.
    unsafe { V::store(out, math::unary::<V>(op, V::load(x))) }
}

#[test]
fn elementary_functions_are_close() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let cases: [(UnaryOp, &dyn Fn(f64) -> f64); 6] = [
        (UnaryOp::Silu, &|x| x * sigmoid(x)),
        (UnaryOp::Sigmoid, &sigmoid),
        (UnaryOp::Tanh, &f64::tanh),
        (UnaryOp::Relu, &|x| x.max(0.0)),
        (UnaryOp::Neg, &|x| -x),
        (UnaryOp::GeluTanh, &|x| {
            0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044_715 * x * x * x)).tanh())
        }),
    ];
    for level in levels() {
        for (op, exact) in &cases {
            for i in -1600..1600 {
                let x = i as f32 * 0.0625;
                let (xs, mut out) = ([x; LANES], [0f32; LANES]);
                // SAFETY: both hold a vector.
                unsafe { apply(level, *op, xs.as_ptr(), out.as_mut_ptr()) };
                let want = exact(f64::from(x));
                let error = (f64::from(out[3]) - want).abs();
                assert!(
                    error <= 1e-6 * want.abs() + 1e-6,
                    "{level:?} {op:?}({x}): {error}"
                );
            }
        }
        for (x, want) in [
            (-3.0, -0.004_049_694),
            (-0.5, -0.154_268_77),
            (0.0, 0.0),
            (2.0, 1.954_499_7),
        ] {
            let (xs, mut out) = ([x; LANES], [0f32; LANES]);
            // SAFETY: both hold a vector.
            unsafe { apply(level, UnaryOp::Gelu, xs.as_ptr(), out.as_mut_ptr()) };
            assert!(
                (out[0] - want).abs() < 2e-6,
                "{level:?} gelu({x}): {}",
                out[0]
            );
        }
    }
}

#[test]
fn registers_hold_odd_widths() {
    use crate::plan::{Body, Inst};
    use rusty_graph::BinaryOp;
    let body = Body {
        insts: vec![
            Inst::Result(0),
            Inst::Unary(UnaryOp::Relu, 0),
            Inst::Result(1),
            Inst::Binary(BinaryOp::Sub, 1, 2),
        ],
    };
    let program = body::Program::sources_only(&body).expect("no operands");
    let (a, b): (Vec<f32>, Vec<f32>) = (0..37).map(|i| (i as f32 - 9.0, i as f32 * 0.5)).unzip();
    for level in levels() {
        let mut regs = Registers::new(program.len(), 37);
        let results = [a.as_ptr(), b.as_ptr()];
        let lanes = Lanes {
            row: 0,
            first: 0,
            count: 37,
            results: &results,
            arena: std::ptr::null(),
            ropes: &[],
        };
        // SAFETY: both results hold 37 lanes.
        let out =
            unsafe { std::slice::from_raw_parts(body::run(level, &program, lanes, &mut regs), 37) };
        for i in 0..37 {
            assert_eq!(out[i], a[i].max(0.0) - b[i], "{level:?} lane {i}");
        }
    }
}
