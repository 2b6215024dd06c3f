//! The header: counts, key/value pairs, tensor descriptions.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::cursor::{Cursor, Reason};
use super::types::TensorType;
use super::{Gguf, TensorInfo};
use crate::{Meta, SharedBytes};

const MAX_NAME: u64 = 1 << 16;
const MAX_STRING: u64 = 1 << 26;
/// Elements of all arrays together; the largest vocabularies use about a million.
const MAX_ELEMENTS: u64 = 1 << 24;
const MAX_NESTING: u32 = 4;
const MAX_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;

pub(super) fn parse(bytes: SharedBytes) -> Reason<Gguf> {
    let mut cursor = Cursor::new(&bytes);
    let version = preamble(&mut cursor)?;
    let tensor_count = cursor.u64("the tensor count")?;
    let pair_count = cursor.u64("the key count")?;
    // A pair is at least a length, a type and one byte; a description a length, dims, type and offset.
    cursor.bounded(pair_count, 13, "keys")?;
    cursor.bounded(tensor_count, 24, "tensors")?;
    let (meta, keys) = pairs(&mut cursor, pair_count)?;
    let alignment = alignment(&meta)?;
    let mut tensors = Vec::new();
    for _ in 0..tensor_count {
        tensors.push(description(&mut cursor)?);
    }
    let data_start = (cursor.position() as u64)
        .checked_next_multiple_of(alignment)
        .ok_or("the alignment overflows")?;
    check_layout(&tensors, data_start, alignment, bytes.len() as u64)?;
    Ok(Gguf {
        version,
        alignment,
        data_start,
        meta,
        tensors,
        keys,
        bytes,
        others: vec![],
    })
}

fn preamble(cursor: &mut Cursor<'_>) -> Reason<u32> {
    let magic: [u8; 4] = cursor.array("the magic number")?;
    if &magic != b"GGUF" {
        return Err(format!(
            "not a GGUF file: it begins with {:?} instead of \"GGUF\"",
            String::from_utf8_lossy(&magic)
        ));
    }
    match cursor.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        1 => Err(
            "GGUF version 1 is obsolete; convert the file again with a current llama.cpp".into(),
        ),
        swapped if matches!(swapped.swap_bytes(), 1..=3) => {
            Err("a big-endian GGUF file; convert it to little-endian".into())
        }
        other => Err(format!("GGUF version {other} is not known; 2 and 3 are")),
    }
}

/// Keys by name, and where the type and value of each lie.
type Pairs = (HashMap<String, Meta>, Vec<(String, Range<usize>)>);

fn pairs(cursor: &mut Cursor<'_>, count: u64) -> Reason<Pairs> {
    let mut meta = HashMap::new();
    let mut keys = Vec::new();
    let mut elements = MAX_ELEMENTS;
    for _ in 0..count {
        let key = cursor.name(MAX_NAME, "a key")?;
        let start = cursor.position();
        let kind = cursor.u32("a value type")?;
        let value =
            value(cursor, kind, &mut elements, 0).map_err(|e| format!("key '{key}': {e}"))?;
        if meta.insert(key.to_owned(), value).is_some() {
            return Err(format!("key '{key}' appears twice"));
        }
        keys.push((key.to_owned(), start..cursor.position()));
    }
    Ok((meta, keys))
}

/// Bytes of a value of type `kind` (the least, for strings and arrays).
fn least_bytes(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => 12,
        _ => return None,
    })
}

fn value(cursor: &mut Cursor<'_>, kind: u32, elements: &mut u64, depth: u32) -> Reason<Meta> {
    let what = "a value";
    let signed = |v: i64| u64::try_from(v).map_or(Meta::I64(v), Meta::U64);
    Ok(match kind {
        0 => Meta::U64(cursor.array::<1>(what)?[0].into()),
        1 => signed(i8::from_le_bytes(cursor.array(what)?).into()),
        2 => Meta::U64(u16::from_le_bytes(cursor.array(what)?).into()),
        3 => signed(i16::from_le_bytes(cursor.array(what)?).into()),
        4 => Meta::U64(cursor.u32(what)?.into()),
        5 => signed(i32::from_le_bytes(cursor.array(what)?).into()),
        6 => Meta::F64(f32::from_le_bytes(cursor.array(what)?).into()),
        7 => Meta::Bool(cursor.array::<1>(what)?[0] != 0),
        // Some vocabularies hold pieces of characters; the text layer knows what to do with them.
        8 => Meta::from(&*String::from_utf8_lossy(
            cursor.string(MAX_STRING, "a string")?,
        )),
        9 => array(cursor, elements, depth + 1)?,
        10 => Meta::U64(cursor.u64(what)?),
        11 => signed(i64::from_le_bytes(cursor.array(what)?)),
        12 => Meta::F64(f64::from_le_bytes(cursor.array(what)?)),
        other => return Err(format!("value type {other} is not known")),
    })
}

fn array(cursor: &mut Cursor<'_>, elements: &mut u64, depth: u32) -> Reason<Meta> {
    if depth > MAX_NESTING {
        return Err(format!("arrays are nested deeper than {MAX_NESTING}"));
    }
    let kind = cursor.u32("an array's type")?;
    let count = cursor.u64("an array's length")?;
    let least = least_bytes(kind)
        .ok_or_else(|| format!("array of value type {kind}, which is not known"))?;
    cursor.bounded(count, least, "array elements")?;
    *elements = elements
        .checked_sub(count)
        .ok_or_else(|| format!("more than {MAX_ELEMENTS} array elements"))?;
    let mut items = Vec::with_capacity(count as usize);
    for _ in 0..count {
        items.push(value(cursor, kind, elements, depth)?);
    }
    Ok(Meta::Array(items.into()))
}

fn alignment(meta: &HashMap<String, Meta>) -> Reason<u64> {
    match meta.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Meta::U64(n)) if n.is_power_of_two() && *n <= u64::from(u32::MAX) => Ok(*n),
        Some(other) => Err(format!(
            "general.alignment is {other}; it must be a power of two"
        )),
    }
}

fn description(cursor: &mut Cursor<'_>) -> Reason<TensorInfo> {
    let name = cursor.name(MAX_NAME, "a tensor name")?.to_owned();
    let named = |reason: String| format!("tensor '{name}': {reason}");
    let dims = cursor.u32("a dimension count").map_err(named)?;
    if dims > MAX_DIMS {
        return Err(named(format!(
            "{dims} dimensions; at most {MAX_DIMS} exist"
        )));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        shape.push(cursor.u64("a dimension").map_err(named)?);
    }
    let kind = cursor.u32("a tensor type").map_err(named)?;
    let offset = cursor.u64("a tensor offset").map_err(named)?;
    let kind = TensorType::by_id(kind).ok_or_else(|| {
        named(format!(
            "type {kind} is not known (removed, or newer than this program)"
        ))
    })?;
    // The file states the innermost dimension first.
    shape.reverse();
    let len = byte_len(&shape, kind).map_err(named)?;
    Ok(TensorInfo {
        name,
        kind,
        shape,
        offset,
        len,
        part: 0,
    })
}

fn byte_len(shape: &[u64], kind: &TensorType) -> Reason<u64> {
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(kind.block_len) {
        return Err(format!(
            "rows of {row} elements are no whole number of {} blocks of {}",
            kind.name, kind.block_len
        ));
    }
    shape
        .iter()
        .try_fold(1u64, |n, &d| n.checked_mul(d))
        .and_then(|n| (n / kind.block_len).checked_mul(kind.block_bytes))
        .filter(|&n| n <= i64::MAX as u64)
        .ok_or_else(|| format!("dimensions {shape:?} overflow"))
}

fn check_layout(
    tensors: &[TensorInfo],
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Reason<()> {
    let mut names = HashSet::with_capacity(tensors.len());
    for t in tensors {
        if !names.insert(t.name.as_str()) {
            return Err(format!("tensor '{}' appears twice", t.name));
        }
        if !t.offset.is_multiple_of(alignment) {
            return Err(format!(
                "tensor '{}': offset {} is no multiple of the alignment {alignment}",
                t.name, t.offset
            ));
        }
        let end = data_start
            .checked_add(t.offset)
            .and_then(|start| start.checked_add(t.len));
        if end.is_none_or(|end| end > file_len) {
            return Err(format!(
                "tensor '{}': {} bytes at offset {} of the data lie beyond the end of the file ({file_len} bytes): \
                 it is cut short or corrupt",
                t.name, t.len, t.offset
            ));
        }
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().filter(|t| t.len > 0).collect();
    by_offset.sort_by_key(|t| t.offset);
    match by_offset
        .windows(2)
        .find(|w| w[0].offset + w[0].len > w[1].offset)
    {
        Some(w) => Err(format!(
            "tensors '{}' and '{}' overlap",
            w[0].name, w[1].name
        )),
        None => Ok(()),
    }
}
