//! Writing GGUF files, version 3.
//!
//! [`GgufWriter`] lays the tensors out; [`GgufWriter::write`] streams header and data, [`GgufWriter::save`] into a file that is
//! seen whole or not at all. Integers are written as 32-bit where they fit and floats as 32-bit, as llama.cpp expects of its keys.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::Gguf;
use crate::output_file::write_whole;
use crate::{Error, Format, Meta};

const ALIGNMENT: u64 = 32;

/// A GGUF file in the making: keys, then tensors in order.
#[derive(Debug, Default)]
pub struct GgufWriter {
    /// Keys with the bytes of their type and value.
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Format, Vec<usize>)>,
}

impl GgufWriter {
    /// A file of the given `general.architecture`.
    pub fn new(architecture: &str) -> Self {
        let mut writer = Self::default();
        writer.meta("general.architecture", Meta::from(architecture));
        writer
    }

    /// Adds a key under its full name in the file; keys must differ.
    pub fn meta(&mut self, key: &str, value: impl Into<Meta>) -> &mut Self {
        let value = value.into();
        let kind = value_type(&value);
        let mut bytes = kind.to_le_bytes().to_vec();
        put_value(&mut bytes, &value, kind);
        self.keys.push((key.to_owned(), bytes));
        self
    }

    /// Adds the keys of another file as they are stored, but for those that a writer states itself.
    pub fn copy_keys(&mut self, from: &Gguf, but: &[&str]) -> &mut Self {
        const OWN: [&str; 2] = ["general.architecture", "general.alignment"];
        let copied = from
            .stored_keys()
            .filter(|(key, _)| !OWN.contains(key) && !but.contains(key));
        self.keys
            .extend(copied.map(|(key, bytes)| (key.to_owned(), bytes.to_vec())));
        self
    }

    /// Adds a tensor; `shape` is outermost first and its rows whole blocks.
    pub fn tensor(&mut self, name: &str, format: Format, shape: &[usize]) -> &mut Self {
        self.tensors.push((name.to_owned(), format, shape.to_vec()));
        self
    }

    /// The bytes before the tensor data, padded to its start.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            put_string(&mut out, key);
            out.extend(value);
        }
        let mut offset = 0;
        for (name, format, shape) in &self.tensors {
            put_string(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            for &d in shape.iter().rev() {
                out.extend((d as u64).to_le_bytes());
            }
            out.extend(format.ggml_type().unwrap_or(u32::MAX).to_le_bytes());
            out.extend(u64::to_le_bytes(offset));
            offset += byte_len(*format, shape).next_multiple_of(ALIGNMENT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
        out
    }

    /// Bytes of the tensor data, padding included.
    pub fn data_len(&self) -> u64 {
        let padded =
            |(_, f, s): &(String, Format, Vec<usize>)| byte_len(*f, s).next_multiple_of(ALIGNMENT);
        self.tensors.iter().map(padded).sum()
    }

    /// Writes the file; `data` writes the stored bytes of the tensor it is given, in order.
    ///
    /// # Errors
    /// Those of `out` and `data`, and [`io::ErrorKind::InvalidData`] where `data` writes another number of
    /// bytes than the tensor's shape and format ask for; [`io::ErrorKind::InvalidInput`] where GGUF has no such format.
    pub fn write<W: Write>(
        &self,
        out: &mut W,
        mut data: impl FnMut(&str, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let foreign = |(_, format, _): &&(String, Format, Vec<usize>)| format.ggml_type().is_none();
        if let Some((name, format, _)) = self.tensors.iter().find(foreign) {
            let reason = format!("GGUF has no {} ('{name}')", format.name());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        out.write_all(&self.header())?;
        for (name, format, shape) in &self.tensors {
            let mut counted = Counted { out, written: 0 };
            data(name, &mut counted)?;
            let (written, expected) = (counted.written, byte_len(*format, shape));
            if written != expected {
                let reason = format!("tensor '{name}' got {written} bytes instead of {expected}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
            let padding = written.next_multiple_of(ALIGNMENT) - written;
            out.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
        }
        Ok(())
    }

    /// Writes the file at `path`, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] with what [`GgufWriter::write`] and the file system report.
    pub fn save(
        &self,
        path: &Path,
        data: impl FnMut(&str, &mut dyn Write) -> io::Result<()>,
    ) -> crate::Result<()> {
        write_whole(path, |part| {
            let written = || -> io::Result<()> {
                let mut to = BufWriter::with_capacity(1 << 20, File::create(part)?);
                self.write(&mut to, data)?;
                to.flush()
            };
            written().map_err(|reason| Error::io(path, reason))
        })
    }
}

struct Counted<'a, W> {
    out: &'a mut W,
    written: u64,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn byte_len(format: Format, shape: &[usize]) -> u64 {
    format.row_bytes(shape.iter().product()) as u64
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// GGUF's value type for a value: 4 u32, 5 i32, 6 f32, 7 bool, 8 string, 9 array, 10 u64, 11 i64.
fn value_type(value: &Meta) -> u32 {
    match value {
        Meta::Bool(_) => 7,
        Meta::U64(v) if *v <= u64::from(u32::MAX) => 4,
        Meta::U64(_) => 10,
        Meta::I64(v) if i32::try_from(*v).is_ok() => 5,
        Meta::I64(_) => 11,
        Meta::F64(_) => 6,
        Meta::Str(_) => 8,
        Meta::Array(_) => 9,
    }
}

/// One type for all elements; integers share the narrowest signed type that holds them, as llama.cpp
/// expects of token types.
fn element_type(items: &[Meta]) -> u32 {
    let integer = |m: &Meta| matches!(m, Meta::U64(_) | Meta::I64(_));
    let narrow = |m: &Meta| match m {
        Meta::U64(v) => i32::try_from(*v).is_ok(),
        Meta::I64(v) => i32::try_from(*v).is_ok(),
        _ => false,
    };
    match items.first() {
        Some(_) if items.iter().all(narrow) => 5,
        Some(_) if items.iter().all(integer) => 11,
        Some(_) if items.iter().all(|m| m.as_f64().is_some()) => 6,
        Some(first) => value_type(first),
        None => 4,
    }
}

fn put_value(out: &mut Vec<u8>, value: &Meta, kind: u32) {
    let integer = || match value {
        Meta::I64(v) => *v,
        other => other.as_u64().unwrap_or_default() as i64,
    };
    match (kind, value) {
        (4 | 5, _) => out.extend((integer() as i32).to_le_bytes()),
        (10 | 11, _) => out.extend(integer().to_le_bytes()),
        (6, _) => out.extend((value.as_f64().unwrap_or_default() as f32).to_le_bytes()),
        (7, _) => out.push(value.as_bool().unwrap_or_default().into()),
        (_, Meta::Array(items)) => {
            let kind = element_type(items);
            out.extend(kind.to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| put_value(out, item, kind));
        }
        _ => put_string(out, value.as_str().unwrap_or_default()),
    }
}
