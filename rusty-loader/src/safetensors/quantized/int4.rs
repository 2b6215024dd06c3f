//! AWQ and GPTQ with 4 bits: `w = scale (code - zero)`, scale and zero per output and group of inputs.
//!
//! Both store the transposed weight. AWQ's `qweight [in, out / 8]` has eight outputs in a word, in the order 0, 2, 4, 6, 1,
//! 3, 5, 7; GPTQ's `qweight [in / 8, out]` eight inputs in order. `qzeros [groups, out / 8]` are packed along outputs in
//! both, and GPTQ's first version stores them less one. `g_idx` states the group of each input; where groups are no runs
//! of neighbours (act-order) no block can hold them, and the weight is decoded to single precision, which is exact.

use serde_json::Value;

use super::{Parts, floats, matrix, part};
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
        let half = scales.dtype == safetensors::Dtype::F16;
        let module = Module {
            layout: self,
            n,
            k,
            words: &words.bytes,
            zero_words: &zeros.bytes,
            scales: floats(scales, "scales")?,
            groups: groups(parts, k, group, count)?,
        };
        match module.codec(group).filter(|_| half) {
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
        let all: [&'static Codec; 3] = [&INT4_G128, &INT4_G64, &INT4_G32];
        let fits = |c: &&'static Codec| {
            self.k.is_multiple_of(c.block_len) && group.is_multiple_of(c.block_len)
        };
        all.into_iter().find(fits).filter(|_| in_order)
    }

    fn code(&self, n: usize, k: usize) -> u8 {
        let (at, nibble) = match self.layout.packing {
            Packing::Awq => (k * (self.n / 8) + n / 8, AWQ_NIBBLES[n % 8]),
            Packing::Gptq => (k / 8 * self.n + n, (k % 8) as u32),
        };
        (word(self.words, at) >> (4 * nibble) & 15) as u8
    }

    /// Scale and zero of an output's group. What overflows a zero's 4 bits wraps, as in the packers' own kernels.
    fn scale(&self, n: usize, group: usize) -> (f32, u8) {
        let nibble = match self.layout.packing {
            Packing::Awq => AWQ_NIBBLES[n % 8],
            Packing::Gptq => (n % 8) as u32,
        };
        let stored = word(self.zero_words, group * (self.n / 8) + n / 8) >> (4 * nibble);
        let zero = (stored + self.layout.zero_plus) & 15;
        (self.scales[group * self.n + n], zero as u8)
    }

    fn blocks(&self, codec: &'static Codec) -> WeightView {
        let format = Format::Blocks(codec);
        let row_bytes = format.row_bytes(self.k);
        let mut bytes = vec![0; self.n * row_bytes];
        for (n, row) in bytes.chunks_exact_mut(row_bytes).enumerate() {
            for (b, block) in row.chunks_exact_mut(codec.block_bytes).enumerate() {
                let first = b * codec.block_len;
                codec.store(block, |i| self.code(n, first + i));
                let (scale, zero) = self.scale(n, self.groups[first]);
                block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
                block[2] = zero;
            }
        }
        WeightView {
            bytes: SharedBytes::from_vec(bytes),
            format,
            shape: vec![self.n, self.k],
        }
    }

    fn decoded(&self) -> WeightView {
        let bytes = 4 * self.n * self.k;
        tracing::warn!(
            "groups of inputs lie in no order: [{}, {}] takes {bytes} bytes in single precision",
            self.n,
            self.k
        );
        let value = |n: usize, k: usize| {
            let (scale, zero) = self.scale(n, self.groups[k]);
            scale * (i32::from(self.code(n, k)) - i32::from(zero)) as f32
        };
        let rows = (0..self.n).flat_map(|n| (0..self.k).map(move |k| (n, k)));
        let bytes = rows.flat_map(|(n, k)| value(n, k).to_le_bytes()).collect();
        WeightView {
            bytes: SharedBytes::from_vec(bytes),
            format: Format::F32,
            shape: vec![self.n, self.k],
        }
    }
}
