//! What other implementations made of golden data; part of the tests of several crates.

use crate::golden_paths::golden;
use safetensors::SafeTensors;

/// The bytes of an `expected.safetensors`.
pub struct Expected(Vec<u8>);

impl Expected {
    /// That of a folder of the goldens.
    pub fn read(folder: &str) -> Self {
        Self(std::fs::read(golden(folder).join("expected.safetensors")).expect(folder))
    }

    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let tensors = SafeTensors::deserialize(&self.0).expect("safetensors");
        tensors.tensor(name).ok().map(|t| t.data().to_vec())
    }

    /// A tensor of token ids; none where there is none of that name.
    pub fn ids(&self, name: &str) -> Option<Vec<u32>> {
        let bytes = self.bytes(name)?;
        let ids = bytes.as_chunks::<8>().0;
        Some(ids.iter().map(|b| i64::from_le_bytes(*b) as u32).collect())
    }

    /// A tensor of floats.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes(name).expect(name);
        let values = bytes.as_chunks::<4>().0;
        values.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}
