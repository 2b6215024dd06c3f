//! Codecs against ggml's numbers, and the chunked decoder against the formula.

use proptest::prelude::*;
use rusty_loader::Format;
use rusty_loader::formats::{ALL, OF_CHECKPOINTS};

use crate::goldens;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn decoding_is_bit_equal_to_ggml() {
    let blocks = ALL.iter().map(|c| Format::Blocks(c));
    for format in blocks.chain([Format::Bf16]) {
        let name = format.name().to_uppercase();
        let golden = goldens::tensors(&format!("blocks/{name}.safetensors"));
        for (raw, decoded) in [
            ("random.raw", "random.f32"),
            ("special.raw", "special.f32"),
            ("gauss.raw", "gauss.deq"),
        ] {
            let expected = goldens::floats(&golden[decoded].1);
            let mut got = vec![0.0; expected.len()];
            format.decode_row(&golden[raw].1, &mut got);
            assert_eq!(bits(&got), bits(&expected), "{name} {raw}");
        }
    }
}

#[test]
fn encoding_equals_ggml_or_comes_as_near() {
    let manifest = goldens::json("blocks/manifest.json");
    let mut equal = 0;
    let blocks = ALL.iter().map(|c| Format::Blocks(c));
    for format in blocks.chain([Format::Bf16]) {
        let Some(encoder) = format.encoder() else {
            continue;
        };
        let name = format.name().to_uppercase();
        let golden = goldens::tensors(&format!("blocks/{name}.safetensors"));
        let source = goldens::floats(&golden["gauss.f32"].1);
        let mut got = vec![0; format.row_bytes(source.len())];
        encoder.rows(&source, &mut got);
        if manifest[&name]["gguf_py_quantize_equals_ggml"] == true {
            assert_eq!(got, golden["gauss.raw"].1, "{name}");
            equal += 1;
            continue;
        }
        let mut decoded = vec![0.0; source.len()];
        format.decode_row(&got, &mut decoded);
        let squares = decoded
            .iter()
            .zip(&source)
            .map(|(a, b)| f64::from(a - b).powi(2));
        let error = (squares.sum::<f64>() / source.len() as f64).sqrt();
        let theirs = manifest[&name]["gauss_rms_error"].as_f64().unwrap();
        assert!(error <= 1.03 * theirs, "{name}: {error}, ggml's {theirs}");
    }
    assert_eq!(equal, 9);
}

/// Where errors in some columns cost more, they become smaller there.
#[test]
fn importance_moves_the_error() {
    let golden = goldens::tensors("blocks/Q4_K.safetensors");
    let source = goldens::floats(&golden["gauss.f32"].1);
    for name in ["q4_k", "q3_k", "iq4_xs", "q2_k"] {
        let format = Format::by_name(name).unwrap();
        let weights: Vec<f32> = (0..256)
            .map(|i| if i % 4 == 0 { 100.0 } else { 0.01 })
            .collect();
        let error = |importance: Option<&[f32]>| -> f64 {
            let mut sum = 0.0;
            for row in source.chunks_exact(256) {
                let mut bytes = vec![0; format.row_bytes(256)];
                format.encoder().unwrap().row(row, importance, &mut bytes);
                let mut decoded = vec![0.0; 256];
                format.decode_row(&bytes, &mut decoded);
                let errors = decoded.iter().zip(row).step_by(4);
                sum += errors.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            }
            sum
        };
        let (plain, weighted) = (error(None), error(Some(&weights)));
        assert!(
            weighted < 0.9 * plain,
            "{name}: {weighted}, without {plain}"
        );
    }
}

#[test]
fn names_and_type_numbers_lead_back_to_the_format() {
    let plain = [Format::F32, Format::F16, Format::Bf16];
    for f in plain
        .into_iter()
        .chain(ALL.iter().map(|&c| Format::Blocks(c)))
    {
        assert_eq!(Format::by_name(f.name()), Some(f));
        let number = f.ggml_type().expect("a number");
        assert_eq!(Format::by_ggml_type(number), Some(f));
    }
    assert_eq!(Format::by_ggml_type(4), None);
    for codec in OF_CHECKPOINTS {
        let format = Format::Blocks(codec);
        assert_eq!(Format::by_name(codec.name), Some(format));
        assert!(format.ggml_type().is_none() && format.encoder().is_none());
    }
}

proptest! {
    #[test]
    fn chunked_decoding_equals_the_formula(which in 0..ALL.len() + OF_CHECKPOINTS.len(), payload in prop::collection::vec(any::<u8>(), 256)) {
        let codec = ALL.iter().chain(OF_CHECKPOINTS).nth(which).expect("a format");
        let block = &payload[..codec.block_bytes];
        let mut chunked = vec![0.0; codec.block_len];
        codec.decode_block(block, &mut chunked);
        for (i, v) in chunked.iter().enumerate() {
            let formula = codec.value(block, i);
            prop_assert!(v.to_bits() == formula.to_bits() || v.is_nan() && formula.is_nan());
        }
    }
}
