//! What architectures ask of a model file: required metadata and weights of known shapes.

use rusty_loader::{Meta, ModelFile};

use crate::{Error, GraphBuilder, Result, ValueId};

/// A model file seen by an architecture: every miss becomes an error that names the file and the key.
#[derive(Clone, Copy)]
pub struct Checkpoint<'a> {
    file: &'a dyn ModelFile,
}

impl<'a> Checkpoint<'a> {
    /// Looks at a model file.
    pub fn new(file: &'a dyn ModelFile) -> Self {
        Self { file }
    }

    /// The model's name in messages.
    pub fn label(&self) -> &'a str {
        self.file.label()
    }

    /// A metadata value.
    pub fn meta(&self, key: &str) -> Option<&'a Meta> {
        self.file.meta(key)
    }

    /// Whether the file has the tensor.
    pub fn has(&self, tensor: &str) -> bool {
        self.file.tensor(tensor).is_some()
    }

    /// Rows of a tensor that must be there.
    ///
    /// # Errors
    /// [`Error::Tensor`] where the file lacks it.
    pub fn rows(&self, tensor: &str) -> Result<usize> {
        let view = self.file.tensor(tensor);
        view.map(|v| v.rows())
            .ok_or_else(|| self.tensor_error(tensor, "is missing".into()))
    }

    /// A required integer.
    ///
    /// # Errors
    /// [`Error::Meta`] where it is missing, not an integer or above 32 bits.
    pub fn int(&self, key: &str) -> Result<u32> {
        match self.file.meta(key) {
            None => Err(self.meta_error(key, "is missing".into())),
            Some(value) => value
                .as_u64()
                .and_then(|v| u32::try_from(v).ok())
                .ok_or_else(|| self.meta_error(key, "is not an unsigned 32-bit integer".into())),
        }
    }

    /// A required integer above zero.
    ///
    /// # Errors
    /// As [`Checkpoint::int`], or where it is 0.
    pub fn count(&self, key: &str) -> Result<u32> {
        match self.int(key)? {
            0 => Err(self.meta_error(key, "is 0".into())),
            n => Ok(n),
        }
    }

    /// An integer with a default.
    ///
    /// # Errors
    /// As [`Checkpoint::int`] where the key is there.
    pub fn int_or(&self, key: &str, default: u32) -> Result<u32> {
        match self.file.meta(key) {
            None => Ok(default),
            Some(_) => self.int(key),
        }
    }

    /// A number.
    ///
    /// # Errors
    /// [`Error::Meta`] where it is there and is not a number.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.file.meta(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(v) => Ok(Some(v)),
                None => Err(self.meta_error(key, "is not a number".into())),
            },
        }
    }

    /// A number with a default.
    ///
    /// # Errors
    /// As [`Checkpoint::float`].
    pub fn float_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.float(key)?.unwrap_or(default))
    }

    /// Text.
    ///
    /// # Errors
    /// [`Error::Meta`] where it is there and is not text.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.file.meta(key) {
            None => Ok(None),
            Some(value) => match value.as_str() {
                Some(v) => Ok(Some(v)),
                None => Err(self.meta_error(key, "is not text".into())),
            },
        }
    }

    /// A small vector, decoded; `None` where the file has no such tensor.
    ///
    /// # Errors
    /// [`Error::Tensor`] where it is no vector or is longer than any head.
    pub fn vector(&self, name: &str) -> Result<Option<Vec<f32>>> {
        const LONGEST: usize = 1 << 16;
        let Some(view) = self.file.tensor(name) else {
            return Ok(None);
        };
        let len = view.elements();
        if view.shape.len() != 1 || len > LONGEST || !len.is_multiple_of(view.format.block_len()) {
            let reason = format!("has shape {:?}; needed: a vector", view.shape);
            return Err(self.tensor_error(name, reason));
        }
        if view.bytes.len() != view.row_bytes() {
            return Err(self.tensor_error(name, "has too few bytes for its shape".into()));
        }
        let mut values = vec![0.0; len];
        view.format.decode_row(&view.bytes, &mut values);
        Ok(Some(values))
    }

    /// Declares a weight the architecture needs.
    ///
    /// # Errors
    /// [`Error::Tensor`] where the file lacks it or stores another shape.
    pub fn weight(&self, builder: &mut GraphBuilder, name: &str, shape: &[u32]) -> Result<ValueId> {
        let Some(view) = self.file.tensor(name) else {
            let reason = format!("is missing; needed with shape {shape:?}");
            return Err(self.tensor_error(name, reason));
        };
        // A scale of the whole tensor, as converters write beside NVFP4: to ignore it would give noise.
        let scale = format!("{}.scale", name.trim_end_matches(".weight"));
        if self.has(&scale) {
            let reason = format!("has a scale of its own ('{scale}'), which is not supported");
            return Err(self.tensor_error(name, reason));
        }
        if !view
            .shape
            .iter()
            .copied()
            .eq(shape.iter().map(|&d| d as usize))
        {
            let reason = format!("has shape {:?}; needed: {shape:?}", view.shape);
            return Err(self.tensor_error(name, reason));
        }
        builder.weight(name, shape, view.format)
    }

    /// Declares a weight where the file has it.
    ///
    /// # Errors
    /// [`Error::Tensor`] where the file stores another shape.
    pub fn weight_if_present(
        &self,
        builder: &mut GraphBuilder,
        name: &str,
        shape: &[u32],
    ) -> Result<Option<ValueId>> {
        self.has(name)
            .then(|| self.weight(builder, name, shape))
            .transpose()
    }

    /// An error about a metadata key.
    pub fn meta_error(&self, key: &str, reason: String) -> Error {
        Error::Meta {
            model: self.label().into(),
            key: key.into(),
            reason,
        }
    }

    /// An error about a tensor.
    pub fn tensor_error(&self, tensor: &str, reason: String) -> Error {
        Error::Tensor {
            model: self.label().into(),
            tensor: tensor.into(),
            reason,
        }
    }
}
