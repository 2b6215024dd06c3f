//! A model once more as a GGUF, for tests that want the same network from the other kind of file: stored as
//! llama.cpp's converter does, rotary pairs of the Llama family interleaved.

use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::meta::keys;
use rusty_loader::{Format, Meta, ModelFile, WeightView};

/// Settings that a GGUF states under its architecture's prefix.
const STATED: [&str; 43] = [
    keys::EMBEDDING_SCALE,
    keys::RESIDUAL_SCALE,
    keys::ATTENTION_SCALE,
    keys::LOGIT_SCALE,
    keys::EXPERT_SHARED_COUNT,
    keys::EXPERT_WEIGHTS_SCALE,
    keys::EXPERT_GATING,
    keys::EXPERT_GROUP_COUNT,
    keys::EXPERT_GROUP_USED_COUNT,
    keys::Q_LORA_RANK,
    keys::KV_LORA_RANK,
    keys::KEY_LENGTH_LATENT,
    keys::VALUE_LENGTH_LATENT,
    keys::ROPE_SCALING_MSCALE_ALL_DIM,
    keys::BLOCK_COUNT,
    keys::CONTEXT_LENGTH,
    keys::EMBEDDING_LENGTH,
    keys::FEED_FORWARD_LENGTH,
    keys::HEAD_COUNT,
    keys::HEAD_COUNT_KV,
    keys::KEY_LENGTH,
    keys::VALUE_LENGTH,
    keys::RMS_EPSILON,
    keys::EXPERT_COUNT,
    keys::EXPERT_USED_COUNT,
    keys::EXPERT_FEED_FORWARD_LENGTH,
    keys::EXPERT_WEIGHTS_NORM,
    keys::SLIDING_WINDOW,
    keys::SCORE_CAP,
    keys::LOGIT_CAP,
    keys::QUERY_SCALAR,
    keys::ROPE_FREQ_BASE,
    keys::ROPE_DIMENSION_COUNT,
    keys::ROPE_SCALING_TYPE,
    keys::ROPE_SCALING_FACTOR,
    keys::ROPE_SCALING_ORIGINAL_CONTEXT,
    keys::ROPE_SCALING_ATTN_FACTOR,
    keys::ROPE_SCALING_BETA_FAST,
    keys::ROPE_SCALING_BETA_SLOW,
    keys::ROPE_SCALING_TRUNCATE,
    keys::ROPE_SCALING_LOW_FREQ_FACTOR,
    keys::ROPE_SCALING_HIGH_FREQ_FACTOR,
    keys::VOCAB_SIZE,
];

fn count(file: &dyn ModelFile, key: &str) -> usize {
    file.meta(key).and_then(|m| m.as_u64()).expect(key) as usize
}

/// The rows of a head from halves to neighbouring pairs, as llama.cpp's converter lays them out for the Llama
/// family.
fn interleave(values: &mut Vec<f32>, heads: usize, row: usize) {
    let half = values.len() / row / heads / 2;
    let mut out = Vec::with_capacity(values.len());
    for head in 0..heads {
        for pair in 0..half {
            for side in 0..2 {
                let at = (head * 2 * half + side * half + pair) * row;
                out.extend_from_slice(&values[at..at + row]);
            }
        }
    }
    *values = out;
}

/// YaRN's factor on cos and sin as a GGUF states it: relative to the usual `0.1 ln(factor) + 1`.
fn relative(file: &dyn ModelFile, attn_factor: &Meta) -> Meta {
    let factor = file.meta(keys::ROPE_SCALING_FACTOR).and_then(Meta::as_f64);
    let usual = 0.1 * factor.expect("factor").ln() + 1.0;
    Meta::F64(attn_factor.as_f64().expect("a number") / usual)
}

/// What an architecture's files store as one, and the parts.
const FUSED: [(&str, &str, &[&str]); 3] = [
    (
        "deepseek2",
        ".attn_kv_a_mqa.",
        &[".attn_kv_a.", ".attn_k_pe."],
    ),
    ("phi3", ".attn_qkv.", &[".attn_q.", ".attn_k.", ".attn_v."]),
    ("phi3", ".ffn_up.", &[".ffn_gate.", ".ffn_up."]),
];

fn decoded(view: &WeightView) -> Vec<f32> {
    let mut values = vec![0.0; view.elements()];
    view.format.decode_row(&view.bytes, &mut values);
    values
}

/// A matrix of all experts or heads of a block.
struct Stack {
    stem: String,
    shape: Vec<usize>,
    experts: Vec<(usize, Vec<f32>)>,
}

/// The bytes of a GGUF with the network of another file, all tensors in single precision.
pub fn twin(file: &dyn ModelFile) -> Vec<u8> {
    // Files of the Mistral family carry Llama's name.
    let arch = match file.arch() {
        "mistral" | "mixtral" => "llama",
        "deepseek3" => "deepseek2",
        other => other,
    };
    let mut writer = GgufWriter::new(arch);
    for key in STATED {
        if let Some(value) = file.meta(key) {
            let tenth = |m: &Meta| Meta::F64(0.1 * m.as_f64().expect("a number"));
            let (key, value) = match key {
                keys::ROPE_SCALING_ATTN_FACTOR if arch != "deepseek2" => {
                    (key, relative(file, value))
                }
                keys::ROPE_SCALING_MSCALE_ALL_DIM => (keys::ROPE_SCALING_YARN_LOG, tenth(value)),
                _ => (key, value.clone()),
            };
            writer.meta(&format!("{arch}.{key}"), value);
        }
    }
    let mut data = vec![];
    let mut stacks: Vec<Stack> = vec![];
    for name in file.tensor_names() {
        let mut view = file.tensor(&name).expect("tensor");
        let mut values = decoded(&view);
        let mut parts = FUSED.iter().filter(|(of, _, _)| *of == arch);
        let fused = parts.find(|(_, _, parts)| parts.iter().any(|p| name.contains(p)));
        if let Some((_, fused, [first, others @ ..])) = fused {
            if !name.contains(*first) {
                continue;
            }
            for other in others {
                let other = file.tensor(&name.replace(*first, other)).expect("a part");
                values.extend(decoded(&other));
                view.shape[0] += other.shape[0];
            }
            writer.tensor(&name.replace(*first, fused), Format::F32, &view.shape);
            data.push(values);
            continue;
        }
        let heads = match name.split('.').nth(2) {
            Some("attn_q") => count(file, keys::HEAD_COUNT),
            Some("attn_k") => count(file, keys::HEAD_COUNT_KV),
            _ => 0,
        };
        if ["llama", "granite"].contains(&arch) && heads > 0 {
            let row = if view.shape.len() == 1 {
                1
            } else {
                view.row_len()
            };
            interleave(&mut values, heads, row);
        }
        let stacked = ["_exps.", ".attn_k_b.", ".attn_v_b."];
        let split = stacked.iter().find_map(|s| {
            let (stem, rest) = name.split_once(s)?;
            Some((format!("{stem}{}", s.trim_end_matches('.')), rest))
        });
        match split {
            None => {
                writer.tensor(&name, Format::F32, &view.shape);
                data.push(values);
            }
            // All experts, or heads, of a block in one tensor.
            Some((stem, expert)) => {
                let known = stacks.iter().position(|s| s.stem == stem);
                let at = known.unwrap_or_else(|| {
                    stacks.push(Stack {
                        stem,
                        shape: view.shape.clone(),
                        experts: vec![],
                    });
                    stacks.len() - 1
                });
                let expert = expert.split('.').next().and_then(|e| e.parse().ok());
                stacks[at].experts.push((expert.expect("a number"), values));
            }
        }
    }
    for mut stack in stacks {
        stack.experts.sort_by_key(|(expert, _)| *expert);
        let shape = [&[stack.experts.len()][..], &stack.shape].concat();
        writer.tensor(&format!("{}.weight", stack.stem), Format::F32, &shape);
        data.push(
            stack
                .experts
                .into_iter()
                .flat_map(|(_, values)| values)
                .collect(),
        );
    }
    for (key, name) in [
        (keys::ROPE_SCALING_SHORT_FACTOR, "rope_factors_short.weight"),
        (keys::ROPE_SCALING_LONG_FACTOR, "rope_factors_long.weight"),
    ] {
        if let Some(list) = file.meta(key).and_then(Meta::as_array) {
            let number = |v: &Meta| v.as_f64().expect(key) as f32;
            let values: Vec<f32> = list.iter().map(number).collect();
            writer.tensor(name, Format::F32, &[values.len()]);
            data.push(values);
        }
    }
    let mut bytes = vec![];
    let mut tensors = data.into_iter();
    writer
        .write(&mut bytes, |_, out| {
            let values = tensors.next().expect("a tensor");
            values
                .iter()
                .try_for_each(|v| std::io::Write::write_all(out, &v.to_le_bytes()))
        })
        .expect("written");
    bytes
}
