//! Where the golden data lies, and how to read its tensors.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::golden_paths::golden;

/// A path below the golden data.
pub fn path(below: &str) -> PathBuf {
    golden(below)
}

/// A JSON file of the golden data.
pub fn json(below: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path(below)).unwrap()).unwrap()
}

/// All tensors of a golden safetensors file: shape and bytes.
pub fn tensors(below: &str) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(path(below)).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let of = |(name, t): (String, safetensors::tensor::TensorView<'_>)| {
        (name, (t.shape().to_vec(), t.data().to_vec()))
    };
    file.tensors().into_iter().map(of).collect()
}

/// Little-endian bytes as floats.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    let word = |b: &[u8; 4]| f32::from_le_bytes(*b);
    bytes.as_chunks::<4>().0.iter().map(word).collect()
}
