//! Number types of safetensors files that are formats of ours.

use rusty_loader::Format;
use safetensors::Dtype;

/// Types with their formats.
const PAIRS: [(Dtype, Format); 3] = [
    (Dtype::F32, Format::F32),
    (Dtype::F16, Format::F16),
    (Dtype::BF16, Format::Bf16),
];

/// The format of a type; none of a type that adapters and merged weights do not have.
pub(crate) fn format(dtype: Dtype) -> Option<Format> {
    let pair = PAIRS.iter().find(|(d, _)| *d == dtype);
    pair.map(|(_, format)| *format)
}

/// The type of a format; blocks have none.
pub(crate) fn of(format: Format) -> Option<Dtype> {
    let pair = PAIRS.iter().find(|(_, f)| *f == format);
    pair.map(|(dtype, _)| *dtype)
}
