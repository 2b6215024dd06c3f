//! Kernels against plain references, for every instruction set of the machine.

mod attention;
mod bodies;
mod brain_rows;
mod kronecker;
mod late_panels;
mod low_rank;
mod products;
mod short_rows;

use super::kind::Start;
use super::panel::GROUP;
use super::quantize::{InputForms, InputRows, Inputs, fill_row};
use super::simd::Level;
use rusty_backend::CpuDevice;
use rusty_loader::random::Spread;

/// Reproducible noise.
struct Noise(u64);

impl Noise {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

fn levels() -> Vec<Level> {
    CpuDevice::runnable()
        .into_iter()
        .map(Level::for_isa)
        .collect()
}

/// Random blocks with modest scales.
fn blocks(codec: &rusty_loader::Codec, count: usize, noise: &mut Noise) -> Vec<u8> {
    let bytes = (0..count * codec.block_bytes).map(|_| noise.bits() as u8);
    scaled(codec, bytes.collect(), noise)
}

/// Blocks of these bytes, but for their scales, which are modest.
fn scaled(codec: &rusty_loader::Codec, mut bytes: Vec<u8>, noise: &mut Noise) -> Vec<u8> {
    let spread = Spread::of(codec, 0.02);
    for block in bytes.chunks_exact_mut(codec.block_bytes) {
        spread.set(codec, block, noise.bits());
    }
    bytes
}

/// Inputs in single precision and in these forms.
fn filled(
    level: Level,
    x: &[f32],
    rows: usize,
    k: usize,
    forms: InputForms,
) -> (Inputs, InputRows) {
    let inputs = Inputs::new(rows, k, forms.starts(), false);
    let forms = forms.with_floats(true);
    let view = inputs.rows(k, forms);
    for row in 0..rows {
        // SAFETY: the buffers hold `rows` rows of `k`.
        unsafe { fill_row(level, view, row, x[row * k..].as_ptr(), k, forms) };
    }
    (inputs, view)
}

/// Inputs as bytes with sums, where there are whole groups.
fn with_sums(k: usize) -> InputForms {
    let mut forms = InputForms::default();
    if k.is_multiple_of(GROUP) {
        forms.add((Start::Sums, true)).expect("few starts");
    }
    forms
}

/// What the bytes of a row stand for.
fn decoded_input(view: &InputRows, row: usize, k: usize) -> Vec<f64> {
    (0..k)
        .map(|i| {
            // SAFETY: the row was filled.
            unsafe {
                let code = *view.codes.add(row * view.code_stride + i);
                f64::from(code) * f64::from(*view.scales.add(row * view.groups + i / GROUP))
            }
        })
        .collect()
}
