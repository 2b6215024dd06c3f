//! The one view of a model that the layers above see, whichever file it came from.

use crate::{Format, Meta, SharedBytes};

/// A stored tensor: its bytes as they lie in the file, their format and the logical shape.
#[derive(Clone, Debug)]
pub struct WeightView {
    /// The stored bytes, rows in order, each row a whole number of blocks.
    pub bytes: SharedBytes,
    /// How the bytes encode values.
    pub format: Format,
    /// Logical shape, outermost first: a linear layer's weight is `[out, in]`, a norm's `[width]`.
    pub shape: Vec<usize>,
}

impl WeightView {
    /// Number of logical elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Length of the innermost dimension (1 for a scalar).
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of rows: the product of all dimensions but the innermost.
    pub fn rows(&self) -> usize {
        self.shape
            .split_last()
            .map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Stored bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.row_len())
    }
}

/// An opened model: canonical metadata and tensors.
///
/// Canonical keys are listed in [`crate::meta`], canonical tensor names are GGUF's
/// (`token_embd.weight`, `blk.N.attn_q.weight`, `blk.N.attn_q.bias`, `blk.N.attn_norm.weight`,
/// `output_norm.weight`, `output.weight`, `rope_freqs.weight`, ...).
pub trait ModelFile: Send + Sync {
    /// Architecture id in canonical spelling: `llama`, `qwen2`, `qwen3`, `mistral`, ...
    fn arch(&self) -> &str;

    /// A metadata value under its canonical key.
    fn meta(&self, key: &str) -> Option<&Meta>;

    /// A tensor under its canonical name.
    fn tensor(&self, name: &str) -> Option<WeightView>;

    /// All canonical tensor names, in a stable order.
    fn tensor_names(&self) -> Vec<String>;

    /// What to call this model in messages: its path or hub id.
    fn label(&self) -> &str;
}
