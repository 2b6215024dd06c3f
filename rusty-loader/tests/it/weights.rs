//! Weights made in memory: quantized at load, random, and checked for integrity.

use std::cell::Cell;

use rayon::prelude::*;
use rusty_loader::meta::keys;
use rusty_loader::quantize::{Target, quantize};
use rusty_loader::{Format, Meta, WeightView, integrity, open, random};

use crate::goldens;

fn values(view: &WeightView) -> Vec<f32> {
    let mut out = vec![0.0; view.elements()];
    view.format.decode_row(&view.bytes, &mut out);
    out
}

#[test]
fn quantizing_encodes_matrices_and_leaves_the_rest() {
    for file in [
        "gguf/qwen3-float/F32.gguf",
        "gguf/qwen3-float/BF16.gguf",
        "models/llama-mha-f16",
    ] {
        for target in [Target::Int4, Target::Int8] {
            let path = goldens::path(file);
            let (source, last) = (open(&path).unwrap(), Cell::new((0, 0)));
            let report = |done, total| {
                assert!(done > last.get().0 && done <= total);
                last.set((done, total));
            };
            let result = quantize(open(&path).unwrap(), target, &report).unwrap();
            assert_eq!(last.get().0, last.get().1, "progress ends at the total");
            assert_eq!(source.tensor_names(), result.tensor_names());
            for name in source.tensor_names() {
                let (before, after) =
                    (source.tensor(&name).unwrap(), result.tensor(&name).unwrap());
                assert_eq!(before.shape, after.shape);
                let format = if before.shape.len() == 2 {
                    target.format()
                } else {
                    before.format
                };
                assert_eq!(after.format, format, "{name}");
                let mut expected = vec![0; format.row_bytes(before.elements())];
                format
                    .encoder()
                    .unwrap()
                    .rows(&values(&before), &mut expected);
                assert_eq!(&*after.bytes, &*expected, "{name}");
            }
            assert_eq!(
                result.meta(keys::BLOCK_COUNT),
                source.meta(keys::BLOCK_COUNT)
            );
        }
    }
}

#[test]
fn stored_blocks_are_not_quantized_again() {
    let path = goldens::path("gguf/qwen3/Q8_0.gguf");
    let result = quantize(open(path).unwrap(), Target::Int4, &|_, _| {}).unwrap();
    assert_eq!(
        result.tensor("blk.0.attn_q.weight").unwrap().format.name(),
        "q8_0"
    );
}

fn sane_and_repeatable(shape: &str, format: &str) {
    let model = random::model(shape, format).unwrap();
    integrity::verify(&*model).unwrap();
    let again = random::promised(shape, format).unwrap();
    integrity::verify(&*again).unwrap();
    for name in model.tensor_names() {
        let view = model.tensor(&name).unwrap();
        let promised = again.tensor(&name).unwrap().bytes;
        assert_eq!(view.bytes.len(), promised.len());
        let by_rule = promised.pattern().is_some();
        assert_eq!(by_rule, view.shape.len() > 1, "{name}");
        let end = view.bytes.len() / 2 + 1..view.bytes.len();
        let part = promised.part(end.clone()).unwrap();
        assert_eq!(*part, view.bytes[end]);
        assert_eq!(*view.bytes, *promised);
        let values = values(&view);
        let n = values.len() as f32;
        let mean = values.iter().sum::<f32>() / n;
        let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n).sqrt();
        let what = format!("{shape} {format} {name}: {mean} {deviation}");
        match name.rsplit('.').next() {
            Some("bias") => assert_eq!(mean, 2.0, "{what}"),
            _ if view.shape.len() == 1 => assert!((0.9..1.1).contains(&mean), "{what}"),
            _ => {
                // Of few groups, whose means are their scales' and minima's, the mean is farther from none.
                let far = 0.1 / (n / 32.0).sqrt();
                assert!(mean.abs() < far.max(0.002), "{what}");
                assert!((0.015..0.035).contains(&deviation), "{what}");
            }
        }
    }
}

#[test]
fn random_models_are_sane_and_repeatable() {
    for format in [
        "f32", "f16", "bf16", "q4_0", "q8_0", "q4_k", "q6_k", "q4_k_m",
    ] {
        for shape in ["qwen3-tiny", "qwen3moe-tiny", "deepseek-tiny"] {
            sane_and_repeatable(shape, format);
        }
    }
    let q4_k_m = random::model("qwen3-tiny", "q4_k_m").unwrap();
    let format = |name: &str| q4_k_m.tensor(name).unwrap().format.name();
    assert_eq!(format("token_embd.weight"), "q6_k");
    assert_eq!(
        (format("blk.0.attn_v.weight"), format("blk.1.attn_v.weight")),
        ("q4_k", "q6_k")
    );
    assert_eq!(format("blk.1.attn_q.weight"), "q4_k");
    assert_eq!(q4_k_m.meta(keys::VOCAB_SIZE), Some(&Meta::U64(512)));
    let error = |shape, format| {
        random::model(shape, format)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    assert!(error("gpt-5", "q4_0").contains("llama-3-8b"));
    assert!(error("qwen3-tiny", "q9").contains("q4_k_m"));
}

/// Promised bytes may be wanted by all threads of a pool at once, in parts that one tensor has.
#[test]
fn promised_bytes_are_made_once_for_all_who_wait() {
    let model = random::promised("deepseek-tiny", "q8_0").unwrap();
    let want = random::model("deepseek-tiny", "q8_0").unwrap();
    let names = model.tensor_names();
    names.par_iter().for_each(|name| {
        let have = model.tensor(name).unwrap().bytes;
        assert_eq!(*have, *want.tensor(name).unwrap().bytes, "{name}");
    });
}

#[test]
fn values_that_are_not_finite_are_found() {
    let damaged = open(goldens::path("hostile/gguf/weights-nan.gguf")).unwrap();
    let error = integrity::verify(&*damaged).unwrap_err().to_string();
    assert!(
        error.contains("weights-nan.gguf: tensor 'token_embd.weight'"),
        "{error}"
    );
    for sound in ["gguf/llama/mix-Q4_K_M.gguf", "models/qwen3-tied"] {
        integrity::verify(&*open(goldens::path(sound)).unwrap()).unwrap();
    }
    let empty = WeightView {
        bytes: rusty_loader::SharedBytes::from_vec(Vec::new()),
        format: Format::F32,
        shape: vec![0, 4],
    };
    assert!(empty.sample_is_finite(integrity::SAMPLES));
}
