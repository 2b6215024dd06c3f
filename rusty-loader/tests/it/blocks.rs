//! Codecs against ggml's numbers, and the chunked decoder against the formula.

use proptest::prelude::*;
use rusty_loader::Format;
use rusty_loader::formats::ALL;

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
fn encoding_equals_ggml_where_it_is_deterministic() {
    let manifest = goldens::json("blocks/manifest.json");
    for name in ["Q4_0", "Q8_0", "BF16"] {
        assert_eq!(manifest[name]["gguf_py_quantize_equals_ggml"], true);
        let format = Format::by_name(name).unwrap();
        let golden = goldens::tensors(&format!("blocks/{name}.safetensors"));
        let source = goldens::floats(&golden["gauss.f32"].1);
        let mut got = vec![0; format.row_bytes(source.len())];
        format.encoder().unwrap()(&source, &mut got);
        assert_eq!(got, golden["gauss.raw"].1, "{name}");
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
        assert_eq!(Format::by_ggml_type(f.ggml_type()), Some(f));
    }
    assert_eq!(Format::by_ggml_type(4), None);
}

proptest! {
    #[test]
    fn chunked_decoding_equals_the_formula(which in 0..ALL.len(), payload in prop::collection::vec(any::<u8>(), 256)) {
        let codec = ALL[which];
        let block = &payload[..codec.block_bytes];
        let mut chunked = vec![0.0; codec.block_len];
        codec.decode_block(block, &mut chunked);
        for (i, v) in chunked.iter().enumerate() {
            let formula = codec.value(block, i);
            prop_assert!(v.to_bits() == formula.to_bits() || v.is_nan() && formula.is_nan());
        }
    }
}
