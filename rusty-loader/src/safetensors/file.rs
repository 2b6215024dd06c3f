//! One safetensors file: header through the `safetensors` crate, tensors as ranges of the mapping.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::safetensors::{Dtype, SafeTensors};

use crate::{Error, Format, Result, SharedBytes, WeightView};

/// An opened safetensors file (a checkpoint's shard, an adapter).
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    bytes: SharedBytes,
    entries: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

/// A tensor as it lies in the file.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: SharedBytes,
}

impl Stored {
    /// As a weight, where it is one of floats; `path` and `name` are for errors.
    pub(super) fn view(self, path: &Path, name: &str) -> Result<WeightView> {
        let format = match self.dtype {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::Bf16,
            other => {
                let what = format!("dtype {other:?} of tensor '{name}'");
                let hint = "store it as F32, F16 or BF16";
                return Err(Error::unsupported(path, what, hint));
            }
        };
        Ok(WeightView {
            bytes: self.bytes,
            format,
            shape: self.shape,
        })
    }
}

#[derive(Debug)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

impl SafetensorsFile {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Malformed`] where the header is not sound: tensors must cover the data
    /// exactly, without holes or overlaps.
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_bytes(path, SharedBytes::map_file(path)?)
    }

    /// Reads the header of bytes that are already at hand; `path` names them in errors.
    ///
    /// # Errors
    /// As [`SafetensorsFile::open`].
    pub fn from_bytes(path: &Path, bytes: SharedBytes) -> Result<Self> {
        let (header_len, header) = SafeTensors::read_metadata(&bytes)
            .map_err(|e| Error::malformed(path, format!("not a sound safetensors file: {e}")))?;
        let data = header_len + 8;
        let entry = |info: &::safetensors::tensor::TensorInfo| Entry {
            dtype: info.dtype,
            shape: info.shape.clone(),
            start: data + info.data_offsets.0,
            end: data + info.data_offsets.1,
        };
        let entries = header.tensors();
        let entries = entries.iter().map(|(n, &i)| (n.clone(), entry(i)));
        Ok(Self {
            path: path.into(),
            entries: entries.collect(),
            metadata: header
                .metadata()
                .iter()
                .flatten()
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
            bytes,
        })
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The header's `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Whether the file has a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// A tensor under its name in the file.
    ///
    /// # Errors
    /// [`Error::Malformed`] where there is none, [`Error::Unsupported`] where its dtype is neither F32, F16
    /// nor BF16.
    pub fn tensor(&self, name: &str) -> Result<WeightView> {
        self.stored(name)?.view(&self.path, name)
    }

    /// A tensor of any dtype.
    ///
    /// # Errors
    /// [`Error::Malformed`] where there is none.
    pub(super) fn stored(&self, name: &str) -> Result<Stored> {
        let missing = || Error::malformed(&self.path, format!("tensor '{name}' is missing"));
        let entry = self.entries.get(name).ok_or_else(missing)?;
        Ok(Stored {
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            bytes: self
                .bytes
                .slice(entry.start..entry.end)
                .ok_or_else(missing)?,
        })
    }
}
