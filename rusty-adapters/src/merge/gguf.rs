//! Merged GGUF files: the base's keys and tensors, in order.

use super::{HEAD, Merged, writable};
use crate::{Error, Result};
use rusty_loader::Format;
use rusty_loader::fused::Part;
use rusty_loader::gguf::Gguf;
use rusty_loader::gguf::write::GgufWriter;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

pub(super) fn write(
    merged: &Merged<'_>,
    source: &Path,
    out: &Path,
    progress: &dyn Fn(usize, usize),
) -> Result<()> {
    let file = Gguf::open(source)?;
    let arch = file.meta.get("general.architecture");
    let arch = arch.and_then(|m| m.as_str()).unwrap_or_default();
    let mut writer = GgufWriter::new(arch);
    writer.copy_keys(&file, &[]);
    let parts: BTreeMap<&str, Vec<Part>> = (file.tensors.iter())
        .map(|info| {
            let shape: Vec<usize> = info.shape.iter().map(|d| *d as usize).collect();
            (info.name.as_str(), merged.parts(&info.name, &shape))
        })
        .collect();
    merged.check_all_stored(parts.values().flatten())?;
    let head = declare(&mut writer, merged, &file, &parts, source)?;
    let all = file.tensors.len() + usize::from(head.is_some());
    let mut done = 0;
    let mut failure = None;
    let mut data = |name: &str, to: &mut dyn Write| -> Result<(), std::io::Error> {
        done += 1;
        progress(done, all);
        let stored = file.tensors.iter().find(|t| t.name == name);
        let bytes = stored.and_then(|info| file.tensor_bytes(info));
        let kind = stored.and_then(|info| Format::by_ggml_type(info.kind.id));
        let format = kind.or(head);
        let values = match parts.get(name) {
            Some(parts) => merged.stored_values(parts),
            None => merged.values(name),
        };
        let made = values.and_then(|values| match (values, format) {
            (Some(values), Some(format)) => Ok(Some(merged.encode(name, &values, format)?)),
            _ => Ok(None),
        });
        match made {
            Ok(Some(made)) => to.write_all(&made),
            Ok(None) => to.write_all(&bytes.ok_or(std::io::ErrorKind::UnexpectedEof)?),
            Err(error) => {
                failure = Some(error);
                Err(std::io::ErrorKind::InvalidData.into())
            }
        }
    };
    let saved = writer.save(out, &mut data);
    match failure {
        Some(error) => Err(error),
        None => Ok(saved?),
    }
}

/// States the tensors that will be written, and gives the format of the head where it gets a tensor of its own.
fn declare(
    writer: &mut GgufWriter,
    merged: &Merged<'_>,
    file: &Gguf,
    parts: &BTreeMap<&str, Vec<Part>>,
    source: &Path,
) -> Result<Option<Format>> {
    let mut head = None;
    for info in &file.tensors {
        let stored = Format::by_ggml_type(info.kind.id).ok_or_else(|| {
            let what = format!("tensor '{}' of type {}", info.name, info.kind.name);
            Error::unsupported(source, what)
        })?;
        let shape: Vec<usize> = info.shape.iter().map(|d| *d as usize).collect();
        let format = match merged.touches(&parts[info.name.as_str()]) {
            true => writable(stored),
            false => stored,
        };
        writer.tensor(&info.name, format, &shape);
        if info.name == crate::base_model::EMBEDDING && merged.unties {
            head = Some((writable(stored), shape));
        }
    }
    // Behind all others, as the base has none.
    if let Some((format, shape)) = &head {
        writer.tensor(HEAD, *format, shape);
    }
    Ok(head.map(|(format, _)| format))
}
