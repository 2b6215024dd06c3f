//! One scale (and at most one minimum) per 32 elements: the oldest formats of ggml, and IQ4_NL.

use super::codec::{BitField, Codec, Levels, Part, Scale};

const D: &[BitField] = &[BitField::once(0, 16, 0)];
const M: &[BitField] = &[BitField::once(16, 16, 0)];

/// 32 4-bit codes around 8 with one f16 scale.
pub static Q4_0: Codec = Codec {
    name: "q4_0",
    ggml_type: Some(2),
    block_len: 32,
    block_bytes: 18,
    codes: &[Part::Bits(BitField::lanes(2, 4, 16, 0))],
    levels: Levels::Offset(8),
    group: 32,
    scale: Scale::f16(D),
    min: None,
};

/// 32 4-bit codes with one f16 scale and an f16 that is added.
pub static Q4_1: Codec = Codec {
    name: "q4_1",
    ggml_type: Some(3),
    block_len: 32,
    block_bytes: 20,
    codes: &[Part::Bits(BitField::lanes(4, 4, 16, 0))],
    levels: Levels::Offset(0),
    group: 32,
    scale: Scale::f16(D),
    min: Some(Scale::f16(M).factor(-1.0)),
};

/// 32 5-bit codes around 16 with one f16 scale.
pub static Q5_0: Codec = Codec {
    name: "q5_0",
    ggml_type: Some(6),
    block_len: 32,
    block_bytes: 22,
    codes: &[
        Part::Bits(BitField::lanes(6, 4, 16, 0)),
        Part::Bits(BitField::lanes(2, 1, 1, 4)),
    ],
    levels: Levels::Offset(16),
    group: 32,
    scale: Scale::f16(D),
    min: None,
};

/// 32 5-bit codes with one f16 scale and an f16 that is added.
pub static Q5_1: Codec = Codec {
    name: "q5_1",
    ggml_type: Some(7),
    block_len: 32,
    block_bytes: 24,
    codes: &[
        Part::Bits(BitField::lanes(8, 4, 16, 0)),
        Part::Bits(BitField::lanes(4, 1, 1, 4)),
    ],
    levels: Levels::Offset(0),
    group: 32,
    scale: Scale::f16(D),
    min: Some(Scale::f16(M).factor(-1.0)),
};

/// 32 signed bytes with one f16 scale.
pub static Q8_0: Codec = Codec {
    name: "q8_0",
    ggml_type: Some(8),
    block_len: 32,
    block_bytes: 34,
    codes: &[Part::Bits(BitField::lanes(2, 8, 32, 0))],
    levels: Levels::Signed,
    group: 32,
    scale: Scale::f16(D),
    min: None,
};

/// The sixteen levels of IQ4_NL and IQ4_XS.
pub(super) const NON_LINEAR: &[i8] = &[
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// 32 4-bit codes of uneven levels with one f16 scale.
pub static IQ4_NL: Codec = Codec {
    name: "iq4_nl",
    ggml_type: Some(20),
    block_len: 32,
    block_bytes: 18,
    codes: &[Part::Bits(BitField::lanes(2, 4, 16, 0))],
    levels: Levels::Table(NON_LINEAR),
    group: 32,
    scale: Scale::f16(D),
    min: None,
};
