//! A context of 131,072 tokens: a model of one layer at full length on the CPU, sampled rows against attention by a
//! streaming softmax in double precision.

use rusty_backend::CpuDevice;
use rusty_compiler::cpu::CpuExecutable;
use rusty_compiler::{
    BindOptions, Executable, KvFormat, RowResult, Sequence, SlotId, Step, Want, compile,
};
use rusty_graph::RopeSpec;
use rusty_loader::meta::keys;
use rusty_loader::rope_override::RopeOverride;
use rusty_loader::{Format, LoadedModel, Meta, ModelFile, SharedBytes, WeightView};
use std::collections::HashMap;

const WIDTH: usize = 32;
const VOCAB: usize = 64;
const TOKENS: usize = 131_072;
const EPSILON: f64 = 1e-6;
/// Rows whose hidden state is compared: the first ones, both sides of the trained context, the last ones.
const SAMPLED: [usize; 7] = [0, 17, 4095, 32_767, 32_768, 100_000, 131_071];

const MATRICES: [&str; 7] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
];

fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| 0.3 * next()).collect()
}

struct Model {
    table: Vec<f32>,
    matrices: HashMap<&'static str, Vec<f32>>,
}

impl Model {
    fn new() -> Self {
        let matrix =
            |(i, name): (usize, &&'static str)| (*name, noise(i as u64 + 2, WIDTH * WIDTH));
        Self {
            table: noise(1, VOCAB * WIDTH),
            matrices: MATRICES.iter().enumerate().map(matrix).collect(),
        }
    }

    fn file(&self) -> Box<dyn ModelFile> {
        let view = |values: &[f32], shape: &[usize]| WeightView {
            bytes: SharedBytes::from_vec(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            format: Format::F32,
            shape: shape.to_vec(),
        };
        let ones = vec![1.0; WIDTH];
        let mut tensors = vec![
            (
                "token_embd.weight".into(),
                view(&self.table, &[VOCAB, WIDTH]),
            ),
            ("output_norm.weight".into(), view(&ones, &[WIDTH])),
            ("blk.0.attn_norm.weight".into(), view(&ones, &[WIDTH])),
            ("blk.0.ffn_norm.weight".into(), view(&ones, &[WIDTH])),
        ];
        for (name, values) in &self.matrices {
            let name = format!("blk.0.{name}.weight");
            tensors.push((name, view(values, &[WIDTH, WIDTH])));
        }
        let size = |n: usize| Meta::U64(n as u64);
        let meta = [
            (keys::BLOCK_COUNT, size(1)),
            (keys::CONTEXT_LENGTH, size(32_768)),
            (keys::EMBEDDING_LENGTH, size(WIDTH)),
            (keys::FEED_FORWARD_LENGTH, size(WIDTH)),
            (keys::HEAD_COUNT, size(1)),
            (keys::VOCAB_SIZE, size(VOCAB)),
            (keys::RMS_EPSILON, Meta::F64(EPSILON)),
            (keys::ROPE_FREQ_BASE, Meta::F64(1e6)),
            (keys::ROPE_LAYOUT, "half".into()),
            (keys::TIE_WORD_EMBEDDINGS, Meta::Bool(true)),
        ];
        let meta = meta.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        let file = LoadedModel::new("one layer", "llama", meta, tensors);
        RopeOverride::YARN_128K
            .apply(Box::new(file))
            .expect("scaled")
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.matrices[name].chunks_exact(WIDTH);
        rows.map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    }

    fn embedded(&self, token: u32) -> Vec<f64> {
        let row = &self.table[token as usize * WIDTH..][..WIDTH];
        row.iter().map(|v| f64::from(*v)).collect()
    }
}

fn normed(x: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().map(|v| v / (mean + EPSILON).sqrt()).collect()
}

fn rotated(x: &[f64], rope: &RopeSpec, position: usize) -> Vec<f64> {
    let turns = rope.turns(TOKENS as u32);
    let mut out = x.to_vec();
    for (i, (cos, sin)) in turns.at(position as u32).enumerate() {
        let (a, b) = (x[i], x[i + WIDTH / 2]);
        let (cos, sin) = (f64::from(cos), f64::from(sin));
        out[i] = a * cos - b * sin;
        out[i + WIDTH / 2] = b * cos + a * sin;
    }
    out
}

/// The hidden state of one row; keys are rotated on the way, softmax runs with its maximum so far.
fn oracle(model: &Model, rope: &RopeSpec, tokens: &[u32], row: usize) -> Vec<f64> {
    let x = model.embedded(tokens[row]);
    let q = rotated(&model.product("attn_q", &normed(&x)), rope, row);
    // Keys before their rotation and values depend on the token alone.
    let by_token = |name: &str| -> Vec<Vec<f64>> {
        let of = |t: u32| model.product(name, &normed(&model.embedded(t)));
        (0..VOCAB as u32).map(of).collect()
    };
    let (keys, values) = (by_token("attn_k"), by_token("attn_v"));
    let (mut most, mut total, mut sum) = (f64::NEG_INFINITY, 0.0, vec![0.0; WIDTH]);
    for (position, token) in tokens[..=row].iter().enumerate() {
        let key = rotated(&keys[*token as usize], rope, position);
        let dot: f64 = q.iter().zip(&key).map(|(a, b)| a * b).sum();
        let score = dot / (WIDTH as f64).sqrt();
        if score > most {
            let shrink = (most - score).exp();
            total *= shrink;
            sum.iter_mut().for_each(|s| *s *= shrink);
            most = score;
        }
        let weight = (score - most).exp();
        total += weight;
        let value = &values[*token as usize];
        sum.iter_mut()
            .zip(value)
            .for_each(|(s, v)| *s += weight * v);
    }
    sum.iter_mut().for_each(|s| *s /= total);
    let attended = model.product("attn_output", &sum);
    let x: Vec<f64> = x.iter().zip(attended).map(|(x, a)| x + a).collect();
    let h = normed(&x);
    let (gate, up) = (model.product("ffn_gate", &h), model.product("ffn_up", &h));
    let gated = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u);
    let down = model.product("ffn_down", &gated.collect::<Vec<_>>());
    normed(&x.iter().zip(down).map(|(x, d)| x + d).collect::<Vec<_>>())
}

#[test]
fn rows_of_a_context_of_131072_tokens_are_right() {
    let model = Model::new();
    let file = model.file();
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    assert_eq!(graph.context as usize, TOKENS);
    let rope = graph.ropes[0].clone();
    let device = CpuDevice::new(Some(2));
    let plan = compile(&graph, device.target()).expect("plan");
    let options = BindOptions {
        pages: BindOptions::pages_for(TOKENS),
        kv: KvFormat::F32,
        slots: 0,
    };
    let isa = CpuDevice::runnable().remove(0);
    let mut exe = CpuExecutable::bind_isa(plan, &*file, isa, &device, &options).expect("bind");
    let tokens: Vec<u32> = noise(99, TOKENS)
        .iter()
        .map(|v| (v * 1e6) as i32 as u32 % VOCAB as u32)
        .collect();
    let pages: Vec<u32> = (0..options.pages).rev().collect();
    let mut hidden = HashMap::new();
    for (step, chunk) in tokens.chunks(512).enumerate() {
        let first = step * 512;
        let positions: Vec<u32> = (first..first + chunk.len()).map(|p| p as u32).collect();
        let want = |p: &u32| match SAMPLED.contains(&(*p as usize)) {
            true => Want::Hidden,
            false => Want::Nothing,
        };
        let wants: Vec<Want> = positions.iter().map(want).collect();
        let step = Step {
            tokens: chunk,
            positions: &positions,
            sequence_of: &vec![0; chunk.len()],
            sequences: &[Sequence {
                pages: &pages,
                rope_length: TOKENS as u32,
            }],
            slots: &vec![SlotId::BASE; chunk.len()],
            wants: &wants,
        };
        for (row, result) in exe.run(&step).expect("step").results {
            match result {
                RowResult::Hidden(h) => hidden.insert(first + row as usize, h),
                other => panic!("asked for hidden states, got {other:?}"),
            };
        }
    }
    for row in SAMPLED {
        let want = oracle(&model, &rope, &tokens, row);
        let apart = hidden[&row]
            .iter()
            .zip(&want)
            .map(|(a, b)| (f64::from(*a) - b).abs());
        let worst = apart.fold(0.0, f64::max);
        assert!(worst < 1e-4, "row {row}: {worst}");
    }
}
