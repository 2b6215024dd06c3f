//! AWQ and GPTQ with 4 bits: `w = scale (code - zero)`, scale and zero per output and group of inputs.
//!
//! Both store the transposed weight. AWQ's `qweight [in, out / 8]` has eight outputs in a word, in the order 0, 2, 4, 6, 1,
//! 3, 5, 7; GPTQ's `qweight [in / 8, out]` eight inputs in order. `qzeros [groups, out / 8]` are packed along outputs in
//! both, and GPTQ's first version stores them less one. `g_idx` states the group of each input; where groups are no runs
//! of neighbours (act-order) no block can hold them, and the weight is decoded to single precision, which is exact.

use serde_json::Value;

use super::{Parts, floats, longest, matrix, part};
use crate::formats::{INT4_G32, INT4_G64, INT4_G128};
use crate::{Codec, Format, SharedBytes, WeightView};

/// Whose layout, and its group of inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Layout {
    packing: Packing,
    /// `None`: all inputs of an output.
    group: Option<usize>,
    /// What is added to stored zeros.
    zero_plus: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Packing {
    Awq,
    Gptq,
}

/// Which nibble of a word holds an output.
const AWQ_NIBBLES: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The parts of one module.
struct Module<'a> {
    layout: Layout,
    n: usize,
    k: usize,
    words: &'a [u8],
    zero_words: &'a [u8],
    scales: Vec<f32>,
    /// Group of each input.
    groups: Vec<usize>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let at = at * 4;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Layout {
    /// What a `quantization_config` states, or what is not known of it.
    pub(in super::super) fn of(about: &Value) -> Result<Self, String> {
        let text = |key: &str| about.get(key).and_then(Value::as_str);
        let number = |key: &str| about.get(key).and_then(Value::as_i64);
        let method = text("quant_method").unwrap_or_default();
        // Older files say `w_bit` and `q_group_size`.
        match number("bits").or_else(|| number("w_bit")) {
            Some(4) => {}
            bits => return Err(format!("{method} of {bits:?} bits")),
        }
        let group = number("group_size").or_else(|| number("q_group_size"));
        let group = match group {
            Some(-1) => None,
            Some(group) if group > 0 && group % 32 == 0 => Some(group as usize),
            other => return Err(format!("{method} with groups of {other:?}")),
        };
        let packing = match (method, text("version").unwrap_or("gemm")) {
            ("gptq", _) => Packing::Gptq,
            (_, "gemm" | "GEMM") => Packing::Awq,
            (_, other) => return Err(format!("AWQ of the version '{other}'")),
        };
        let second = matches!(text("checkpoint_format"), Some("gptq_v2"));
        Ok(Self {
            packing,
            group,
            zero_plus: u32::from(packing == Packing::Gptq && !second),
        })
    }

    /// The weight `[out, in]` of a module.
    pub(super) fn weight(self, parts: &Parts) -> Result<WeightView, String> {
        let words = part(parts, "qweight")?;
        let [rows, columns] = matrix(words, "qweight", 4)?;
        let (k, n) = match self.packing {
            Packing::Awq => (rows, columns.saturating_mul(8)),
            Packing::Gptq => (rows.saturating_mul(8), columns),
        };
        let group = self.group.unwrap_or(k);
        if !k.is_multiple_of(32) || !n.is_multiple_of(8) || group == 0 {
            return Err(format!("is [{n}, {k}] in groups of {group}"));
        }
        let count = k.div_ceil(group);
        let zeros = part(parts, "qzeros")?;
        let scales = part(parts, "scales")?;
        let fits = matrix(zeros, "qzeros", 4)? == [count, n / 8]
            && matrix(scales, "scales", scales.bytes.len() / (count * n).max(1))? == [count, n];
        if !fits {
            let shapes = (&zeros.shape, &scales.shape);
            return Err(format!("is [{n}, {k}], zeros and scales {shapes:?}"));
        }
        let module = Module {
            layout: self,
            n,
            k,
            words: &words.bytes,
            zero_words: &zeros.bytes,
            scales: floats(scales, "scales")?,
            groups: groups(parts, k, group, count)?,
        };
        let halves = |s: &f32| half::f16::from_f32(*s).to_f32() == *s;
        let exact = module.scales.iter().all(halves);
        match module.codec(group).filter(|_| exact) {
            Some(codec) => Ok(module.blocks(codec)),
            None => Ok(module.decoded()),
        }
    }
}

/// The group of each input: as stated, or one after the other.
fn groups(parts: &Parts, k: usize, group: usize, count: usize) -> Result<Vec<usize>, String> {
    let Some(stated) = parts.get("g_idx").filter(|g| !g.bytes.is_empty()) else {
        return Ok((0..k).map(|i| i / group).collect());
    };
    let groups: Vec<usize> = (0..stated.bytes.len() / 4)
        .map(|i| word(&stated.bytes, i) as usize)
        .collect();
    match groups.len() == k && groups.iter().all(|g| *g < count) {
        true => Ok(groups),
        false => Err(format!(
            "has a 'g_idx' that is not of {k} inputs in {count} groups"
        )),
    }
}

impl Module<'_> {
    /// The longest block whose inputs are always of one group.
    fn codec(&self, group: usize) -> Option<&'static Codec> {
        let in_order = (self.groups.iter().enumerate()).all(|(i, g)| *g == i / group);
        longest([&INT4_G128, &INT4_G64, &INT4_G32], self.k, group).filter(|_| in_order)
    }

    /// Codes of eight outputs from `n` on, a row of inputs for each: what a pass over the words gives without reading
    /// any of them twice.
    fn codes(&self, n: usize, rows: &mut [Vec<u8>; 8]) {
        rows.iter_mut().for_each(|row| row.clear());
        match self.layout.packing {
            Packing::Awq => {
                for k in 0..self.k {
                    let codes = word(self.words, k * (self.n / 8) + n / 8);
                    for (row, nibble) in rows.iter_mut().zip(AWQ_NIBBLES) {
                        row.push((codes >> (4 * nibble) & 15) as u8);
                    }
                }
            }
            Packing::Gptq => {
                for eight in 0..self.k / 8 {
                    for (i, row) in rows.iter_mut().enumerate() {
                        let codes = word(self.words, eight * self.n + n + i);
                        row.extend((0..8).map(|j| (codes >> (4 * j) & 15) as u8));
                    }
                }
            }
        }
    }

    /// Calls `each` with every output and the codes of its inputs, in order.
    fn rows(&self, mut each: impl FnMut(usize, &[u8])) {
        let mut rows: [Vec<u8>; 8] = std::array::from_fn(|_| Vec::with_capacity(self.k));
        for first in (0..self.n).step_by(8) {
            self.codes(first, &mut rows);
            for (i, row) in rows.iter().enumerate() {
                each(first + i, row);
            }
        }
    }

    /// Scale and zero of an output's group. What overflows a zero's 4 bits wraps, as in the packers' own kernels.
    fn scale(&self, n: usize, group: usize) -> (f32, u8) {
        let nibble = match self.layout.packing {
            Packing::Awq => AWQ_NIBBLES[n % 8],
            Packing::Gptq => (n % 8) as u32,
        };
        let stored = word(self.zero_words, group * (self.n / 8) + n / 8) >> (4 * nibble) & 15;
        let zero = (stored + self.layout.zero_plus) & 15;
        (self.scales[group * self.n + n], zero as u8)
    }

    fn blocks(&self, codec: &'static Codec) -> WeightView {
        let format = Format::Blocks(codec);
        let mut bytes = Vec::with_capacity(self.n * format.row_bytes(self.k));
        self.rows(|n, row| {
            for (b, codes) in row.chunks_exact(codec.block_len).enumerate() {
                let (scale, zero) = self.scale(n, self.groups[b * codec.block_len]);
                bytes.extend(half::f16::from_f32(scale).to_le_bytes());
                bytes.extend([zero, 0]);
                for half in codes.chunks_exact(32) {
                    bytes.extend((0..16).map(|i| half[i] | half[16 + i] << 4));
                }
            }
        });
        WeightView {
            bytes: SharedBytes::from_vec(bytes),
            format,
            shape: vec![self.n, self.k],
        }
    }

    /// In single precision: where groups lie in no order, or scales are no half-precision numbers.
    fn decoded(&self) -> WeightView {
        let size = 4 * self.n * self.k;
        let mut bytes = Vec::with_capacity(size);
        self.rows(|n, row| {
            for (code, group) in row.iter().zip(&self.groups) {
                let (scale, zero) = self.scale(n, *group);
                let value = scale * (i32::from(*code) - i32::from(zero)) as f32;
                bytes.extend(value.to_le_bytes());
            }
        });
        WeightView {
            bytes: SharedBytes::from_vec(bytes),
            format: Format::F32,
            shape: vec![self.n, self.k],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Parts, Stored};
    use super::Layout;
    use crate::SharedBytes;
    use safetensors::Dtype;

    fn stored(dtype: Dtype, shape: [usize; 2], bytes: Vec<u8>) -> Stored {
        Stored {
            dtype,
            shape: shape.to_vec(),
            bytes: SharedBytes::from_vec(bytes),
        }
    }

    /// Packers store a zero of 0 less one, which fills the word: it wraps, as in their own kernels.
    #[test]
    fn zeros_less_one_wrap() {
        let about = serde_json::json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
        let words: Vec<u8> = (0..128).map(|i| (i * 37 % 251) as u8).collect();
        let half = half::f16::ONE.to_le_bytes();
        let parts: Parts = [
            ("qweight", stored(Dtype::I32, [4, 8], words.clone())),
            ("qzeros", stored(Dtype::I32, [1, 1], vec![0xff; 4])),
            ("scales", stored(Dtype::F16, [1, 8], half.repeat(8))),
        ]
        .map(|(name, part)| (name.to_owned(), part))
        .into();
        let view = Layout::of(&about)
            .and_then(|l| l.weight(&parts))
            .expect("a weight");
        let mut values = vec![0.0; 256];
        view.format.decode_row(&view.bytes, &mut values);
        // The first output's first inputs are the nibbles of the first word.
        let want: Vec<f32> = (0..8)
            .map(|i| f32::from(words[i / 2] >> (4 * (i % 2)) & 15))
            .collect();
        assert_eq!(values[..8], want);
    }
}
