//! Merged checkpoint folders: every file of the base's but for weights in other containers, its tensors under their names
//! and in their types, shard by shard.

use super::{HEAD, Merged};
use crate::{Error, Result, dtype};
use rusty_loader::fused::Part;
use rusty_loader::output_file::write_whole;
use rusty_loader::{SharedBytes, tensor_names};
use safetensors::{Dtype, SafeTensors, View};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Endings of files that hold the base's weights once more; beside merged ones they would be read instead.
const WEIGHTS: [&str; 10] = [
    ".safetensors",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".onnx_data",
];

/// Fills the folder `out`.
pub(super) fn write(
    merged: &Merged<'_>,
    source: &Path,
    out: &Path,
    progress: &dyn Fn(usize, usize),
) -> Result<()> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |reason| Error::Io { path, reason }
    };
    let mut shards = vec![];
    for entry in std::fs::read_dir(source).map_err(io(source))? {
        let path = entry.map_err(io(source))?.path();
        let (true, Some(name)) = (path.is_file(), path.file_name()) else {
            continue;
        };
        let name_text = name.to_string_lossy();
        if name_text.starts_with("model") && name_text.ends_with(".safetensors") {
            shards.push(path.clone());
        } else if WEIGHTS.iter().any(|ending| name_text.ends_with(ending)) {
            tracing::warn!("{}: is not merged and left out", path.display());
        } else {
            std::fs::copy(&path, out.join(name)).map_err(io(&path))?;
        }
    }
    shards.sort();
    let mut files = vec![];
    for path in &shards {
        files.push((path.clone(), SharedBytes::map_file(path)?));
    }
    let mut stored = vec![];
    for (path, bytes) in &files {
        for (name, view) in parse(path, bytes)?.tensors() {
            stored.extend(parts(merged, &name, view.shape()));
        }
    }
    merged.check_all_stored(stored.iter())?;
    let done = Progress::new(&files, merged.unties, progress)?;
    for (i, (path, bytes)) in files.iter().enumerate() {
        let last = i + 1 == files.len();
        shard(merged, path, bytes, out, last && merged.unties, &done)?;
    }
    if merged.unties {
        untie(out, files.last().map(|(path, _)| path.as_path()))?;
    }
    Ok(())
}

struct Progress<'a> {
    done: RefCell<usize>,
    all: usize,
    tell: &'a dyn Fn(usize, usize),
}

impl<'a> Progress<'a> {
    fn new(
        files: &[(PathBuf, SharedBytes)],
        unties: bool,
        tell: &'a dyn Fn(usize, usize),
    ) -> Result<Self> {
        let mut all = usize::from(unties);
        for (path, bytes) in files {
            all += parse(path, bytes)?.len();
        }
        Ok(Self {
            done: RefCell::new(0),
            all,
            tell,
        })
    }

    fn step(&self) {
        *self.done.borrow_mut() += 1;
        (self.tell)(*self.done.borrow(), self.all);
    }
}

fn parse<'a>(path: &Path, bytes: &'a SharedBytes) -> Result<SafeTensors<'a>> {
    SafeTensors::deserialize(bytes).map_err(|e| Error::malformed(path, e.to_string()))
}

/// The parts of a tensor with a checkpoint's name; none of a tensor that is not the model's.
fn parts(merged: &Merged<'_>, name: &str, shape: &[usize]) -> Vec<Part> {
    let canonical = tensor_names::from_hf(&merged.base.graph.arch, name);
    canonical.map_or(vec![], |name| merged.parts(&name, shape))
}

/// A tensor that is made when it is written, so that no more than one is in memory.
struct Tensor<'a> {
    merged: &'a Merged<'a>,
    /// None for a tensor that is not the model's.
    parts: Vec<Part>,
    dtype: Dtype,
    shape: Vec<usize>,
    stored: Option<&'a [u8]>,
    len: usize,
    done: &'a Progress<'a>,
    failure: &'a RefCell<Option<Error>>,
}

impl Tensor<'_> {
    fn changed(&self) -> Result<Option<Vec<u8>>> {
        let Some(values) = self.merged.stored_values(&self.parts)? else {
            return Ok(None);
        };
        let name = &self.parts[0].name;
        let format = dtype::format(self.dtype).ok_or_else(|| self.merged.unwritable(name))?;
        Ok(Some(self.merged.encode(name, &values, format)?))
    }
}

impl View for &Tensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.done.step();
        match self.changed() {
            Ok(Some(bytes)) => bytes.into(),
            Ok(None) => self.stored.unwrap_or_default().into(),
            Err(error) => {
                // The trait has no way to fail; the file is given up afterwards.
                self.failure.borrow_mut().get_or_insert(error);
                vec![0; self.len].into()
            }
        }
    }

    fn data_len(&self) -> usize {
        self.len
    }
}

fn shard(
    merged: &Merged<'_>,
    path: &Path,
    bytes: &SharedBytes,
    out: &Path,
    adds_head: bool,
    done: &Progress<'_>,
) -> Result<()> {
    let file = parse(path, bytes)?;
    let failure = RefCell::new(None);
    let mut tensors = BTreeMap::new();
    for (name, view) in file.tensors() {
        let tensor = Tensor {
            merged,
            parts: parts(merged, &name, view.shape()),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            stored: Some(view.data()),
            len: view.data().len(),
            done,
            failure: &failure,
        };
        tensors.insert(name, tensor);
    }
    if adds_head {
        let graph = merged.base.graph;
        let width = graph.hidden_width() as usize;
        let shape = vec![graph.vocab as usize, width];
        let dtype = tensors.values().next().map_or(Dtype::F32, |t| t.dtype);
        let head = Tensor {
            merged,
            parts: merged.parts(HEAD, &shape),
            dtype,
            len: shape.iter().product::<usize>() * dtype.bitsize() / 8,
            shape,
            stored: None,
            done,
            failure: &failure,
        };
        let name =
            tensor_names::to_hf(&graph.arch, HEAD).unwrap_or_else(|| "lm_head.weight".into());
        tensors.insert(name, head);
    }
    let (_, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|e| Error::malformed(path, e.to_string()))?;
    let to = out.join(path.file_name().unwrap_or_default());
    write_whole(&to, |part| {
        safetensors::serialize_to_file(&tensors, metadata.metadata().clone(), part)
            .map_err(|e| Error::malformed(&to, e.to_string()))?;
        failure.take().map_or(Ok(()), Err)
    })
}

/// States in the folder's files that the head has a tensor of its own, in the last shard.
fn untie(out: &Path, shard: Option<&Path>) -> Result<()> {
    edit(&out.join("config.json"), |json| {
        json["tie_word_embeddings"] = false.into();
        if let Some(text) = json.get_mut("text_config") {
            text["tie_word_embeddings"] = false.into();
        }
    })?;
    let index = out.join("model.safetensors.index.json");
    let shard = shard.and_then(|s| s.file_name()).and_then(|n| n.to_str());
    match (index.exists(), shard) {
        (true, Some(shard)) => edit(&index, |json| {
            json["weight_map"]["lm_head.weight"] = shard.into();
        }),
        _ => Ok(()),
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut serde_json::Value)) -> Result<()> {
    let io = |reason| Error::Io {
        path: path.into(),
        reason,
    };
    let text = std::fs::read(path).map_err(io)?;
    let mut json =
        serde_json::from_slice(&text).map_err(|e| Error::malformed(path, e.to_string()))?;
    change(&mut json);
    let text = serde_json::to_vec_pretty(&json).unwrap_or(text);
    std::fs::write(path, text).map_err(io)
}
