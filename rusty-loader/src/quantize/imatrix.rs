//! Importance matrices of `llama-imatrix`: for each matrix the mean square of the inputs of each column, from a GGUF (sums
//! and counts) or the older binary file.

use std::collections::HashMap;
use std::path::Path;

use crate::gguf::Gguf;
use crate::{Error, Format, Result, SharedBytes};

/// Mean squares by tensor name.
#[derive(Debug, Default)]
pub struct Importance {
    columns: HashMap<String, Vec<f32>>,
}

impl Importance {
    /// Reads a file of either kind.
    ///
    /// # Errors
    /// Where it cannot be read or is neither.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = SharedBytes::map_file(path)?;
        let columns = match bytes.starts_with(b"GGUF") {
            true => from_gguf(path, bytes)?,
            false => from_binary(&bytes)
                .ok_or_else(|| Error::malformed(path, "no importance matrix of either kind"))?,
        };
        if columns.is_empty() {
            return Err(Error::malformed(path, "holds no importances"));
        }
        Ok(Self { columns })
    }

    /// The importance of each column of a matrix, where it is known for this many.
    pub fn of(&self, tensor: &str, columns: usize) -> Option<&[f32]> {
        let found = self.columns.get(tensor)?;
        (found.len() == columns).then_some(found)
    }

    /// Number of matrices.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }
}

fn from_gguf(path: &Path, bytes: SharedBytes) -> Result<HashMap<String, Vec<f32>>> {
    const SUMS: &str = ".in_sum2";
    let file = Gguf::from_bytes(path, bytes)?;
    let values = |name: &str| -> Option<Vec<f32>> {
        let info = file.tensors.iter().find(|t| t.name == name)?;
        let format = Format::by_ggml_type(info.kind.id).filter(|f| *f == Format::F32)?;
        let bytes = file.tensor_bytes(info)?;
        let mut values = vec![0.0; bytes.len() / 4];
        format.decode_row(&bytes, &mut values);
        Some(values)
    };
    let mut columns = HashMap::new();
    for info in &file.tensors {
        let Some(stem) = info.name.strip_suffix(SUMS) else {
            continue;
        };
        let (sums, counts) = (values(&info.name), values(&format!("{stem}.counts")));
        let (Some(mut sums), Some(counts)) = (sums, counts) else {
            let reason = format!("'{stem}' lacks its sums or counts");
            return Err(Error::malformed(path, reason));
        };
        // Experts of one matrix lie behind each other, with a count each.
        let part = sums.len().div_ceil(counts.len().max(1)).max(1);
        for (sums, count) in sums.chunks_mut(part).zip(&counts) {
            sums.iter_mut().for_each(|s| *s /= count.max(1.0));
        }
        columns.insert(stem.to_owned(), sums);
    }
    Ok(columns)
}

/// Number of entries; of each its name, calls, number of columns and sums over the calls.
fn from_binary(bytes: &[u8]) -> Option<HashMap<String, Vec<f32>>> {
    let mut rest = Rest(bytes);
    let mut columns = HashMap::new();
    for _ in 0..rest.int()? {
        let length = rest.int()?;
        let name = String::from_utf8(rest.take(length)?.to_vec()).ok()?;
        let calls = rest.int()?.max(1);
        let count = rest.int()?;
        let sums = rest.take(count.checked_mul(4)?)?.as_chunks::<4>().0;
        let mean = |b: &[u8; 4]| f32::from_le_bytes(*b) / calls as f32;
        columns.insert(name, sums.iter().map(mean).collect());
    }
    Some(columns)
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn int(&mut self) -> Option<usize> {
        let four = self.take(4)?.try_into().ok()?;
        usize::try_from(i32::from_le_bytes(four)).ok()
    }
}
