//! The tensors of an adapter file, by name: views into its bytes.

use crate::{Error, Result, dtype};
use rusty_loader::{Format, SharedBytes};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::Path;

/// One stored tensor.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub format: Format,
    pub bytes: SharedBytes,
}

impl Tensor {
    /// All values, row by row; refused where one is not finite.
    pub fn values(&self, path: &Path) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.shape.iter().product()];
        self.format.decode_row(&self.bytes, &mut values);
        if values.iter().any(|v| !v.is_finite()) {
            let reason = format!("tensor '{}' holds values that are not finite", self.name);
            return Err(Error::malformed(path, reason));
        }
        Ok(values)
    }

    /// The same, where the tensor has the shape that the model needs.
    pub fn shaped(&self, path: &Path, shape: &[usize], place: &str) -> Result<Vec<f32>> {
        if self.shape != shape {
            let reason = format!("the model's {place} needs {shape:?}");
            return Err(self.misfit(path, reason));
        }
        self.values(path)
    }

    /// The refusal of its shape.
    pub fn misfit(&self, path: &Path, reason: String) -> Error {
        Error::Misfit {
            path: path.into(),
            tensor: self.name.clone(),
            shape: self.shape.clone(),
            reason,
        }
    }

    /// Values of a vector, however it is shaped (`[n]`, `[n, 1]`, `[1, n]`).
    pub fn vector(&self, path: &Path, length: usize, place: &str) -> Result<Vec<f32>> {
        let lanes: usize = self.shape.iter().product();
        let flat = self.shape.iter().filter(|d| **d != 1).count() <= 1;
        if lanes != length || !flat {
            return self.shaped(path, &[length], place);
        }
        self.values(path)
    }

    /// Rows and columns of a matrix; `needed` is the shape that the model needs, with words for what is free.
    pub fn matrix(&self, path: &Path, place: &str, needed: &str) -> Result<(usize, usize)> {
        match self.shape[..] {
            [rows, columns] if rows > 0 && columns > 0 => Ok((rows, columns)),
            _ => Err(self.misfit(path, format!("the model's {place} needs {needed}"))),
        }
    }
}

/// Views of all tensors of a safetensors file; `path` names it in errors.
pub(crate) fn from_safetensors(
    path: &Path,
    bytes: &SharedBytes,
) -> Result<BTreeMap<String, Tensor>> {
    let file =
        SafeTensors::deserialize(bytes).map_err(|e| Error::malformed(path, e.to_string()))?;
    let start = bytes.as_ptr() as usize;
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        let Some(format) = dtype::format(view.dtype()) else {
            let what = format!("tensor '{name}' of type {:?}", view.dtype());
            return Err(Error::unsupported(path, what));
        };
        let from = view.data().as_ptr() as usize - start;
        let data = bytes.slice(from..from + view.data().len());
        let tensor = Tensor {
            name: name.clone(),
            shape: view.shape().to_vec(),
            format,
            bytes: data.ok_or_else(|| Error::malformed(path, format!("'{name}' is cut off")))?,
        };
        Ok((name, tensor))
    });
    tensors.collect()
}
