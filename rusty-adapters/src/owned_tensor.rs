//! A tensor on its way into a safetensors file.

use safetensors::{Dtype, View};
use std::borrow::Cow;

/// Bytes with a type and a shape.
pub(crate) struct OwnedTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl OwnedTensor {
    /// A vector in single precision.
    pub fn floats(values: &[f32]) -> Self {
        Self {
            dtype: Dtype::F32,
            shape: vec![values.len()],
            bytes: bytemuck::cast_slice(values).to_vec(),
        }
    }
}

impl View for &OwnedTensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes.as_slice().into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
