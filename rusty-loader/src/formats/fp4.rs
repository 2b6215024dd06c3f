//! Four-bit floats (E2M1) with tiny floats as scales. Levels are doubled so that they are whole numbers, scales halved.

use super::codec::{BitField, Codec, Levels, Part, Scale, Unit};

const E2M1: Levels = Levels::Table(&[0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);

/// 32 codes with a power of two (OCP Microscaling Formats 1.0).
pub static MXFP4: Codec = Codec {
    name: "mxfp4",
    ggml_type: Some(39),
    block_len: 32,
    block_bytes: 17,
    codes: &[Part::Bits(BitField::lanes(1, 4, 16, 0))],
    levels: E2M1,
    group: 32,
    scale: Scale {
        unit: Unit::HalfE8M0(BitField::once(0, 8, 0)),
        steps: None,
        factor: 1.0,
    },
    min: None,
};

/// 64 codes with an 8-bit float per 16.
pub static NVFP4: Codec = Codec {
    name: "nvfp4",
    ggml_type: Some(40),
    block_len: 64,
    block_bytes: 36,
    codes: &[Part::Bits(BitField::lanes(4, 4, 8, 0))],
    levels: E2M1,
    group: 16,
    scale: Scale {
        // The sign bit counts for nothing.
        unit: Unit::E4M3(BitField::strided(0, 7, 1, 8, 0)),
        steps: None,
        factor: 0.5,
    },
    min: None,
};
