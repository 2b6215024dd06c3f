//! K-quants: blocks of 256 with small whole numbers as scales of 16 or 32 elements.

use super::codec::{BitField, Codec, Levels, Part, Scale, Steps};

/// 256 2-bit codes with a 4-bit scale and minimum per 16.
pub static Q2_K: Codec = Codec {
    name: "q2_k",
    ggml_type: Some(10),
    block_len: 256,
    block_bytes: 84,
    codes: &[Part::Bits(BitField::lanes(16, 2, 32, 0))],
    levels: Levels::Offset(0),
    group: 16,
    scale: Scale::f16(&[BitField::once(640, 16, 0)])
        .times(Steps::of(&[BitField::strided(0, 4, 1, 8, 0)])),
    min: Some(
        Scale::f16(&[BitField::once(656, 16, 0)])
            .times(Steps::of(&[BitField::strided(4, 4, 1, 8, 0)])),
    ),
};

/// 256 3-bit codes around 4 with a 6-bit scale around 32 per 16.
pub static Q3_K: Codec = Codec {
    name: "q3_k",
    ggml_type: Some(11),
    block_len: 256,
    block_bytes: 110,
    codes: &[
        Part::Bits(BitField::lanes(32, 2, 32, 0)),
        Part::Bits(BitField::lanes(0, 1, 32, 2)),
    ],
    levels: Levels::Offset(4),
    group: 16,
    scale: Scale::f16(&[BitField::once(864, 16, 0)]).times(Steps {
        plus: -32,
        ..Steps::of(&[BitField::lanes(96, 4, 8, 0), BitField::lanes(104, 2, 4, 4)])
    }),
    min: None,
};

/// Eight 6-bit scales in twelve bytes from byte 4 on (`get_scale_min_k4` in ggml): the first four have all their bits in
/// the first four bytes, the others the low four in the last and the high two above the first ones'.
const PACKED_SCALES: Steps = Steps::of(&[
    BitField {
        per: 4,
        chunk: 64,
        ..BitField::lanes(4, 4, 4, 0)
    },
    BitField {
        first: 36,
        ..BitField::lanes(4, 2, 4, 4)
    },
]);

/// The minima beside [`PACKED_SCALES`]: a word later, and the low bits of the last four in the upper half of their bytes.
const PACKED_MINIMA: Steps = Steps::of(&[
    BitField {
        per: 4,
        chunk: 36,
        ..BitField::lanes(8, 4, 4, 0)
    },
    BitField {
        first: 68,
        ..BitField::lanes(8, 2, 4, 4)
    },
]);

/// 256 4-bit codes with a 6-bit scale and minimum per 32.
pub static Q4_K: Codec = Codec {
    name: "q4_k",
    ggml_type: Some(12),
    block_len: 256,
    block_bytes: 144,
    codes: &[Part::Bits(BitField::lanes(16, 4, 32, 0))],
    levels: Levels::Offset(0),
    group: 32,
    scale: Scale::f16(&[BitField::once(0, 16, 0)]).times(PACKED_SCALES),
    min: Some(Scale::f16(&[BitField::once(16, 16, 0)]).times(PACKED_MINIMA)),
};

/// 256 5-bit codes with a 6-bit scale and minimum per 32.
pub static Q5_K: Codec = Codec {
    name: "q5_k",
    ggml_type: Some(13),
    block_len: 256,
    block_bytes: 176,
    codes: &[
        Part::Bits(BitField::lanes(48, 4, 32, 0)),
        Part::Bits(BitField::lanes(16, 1, 32, 4)),
    ],
    levels: Levels::Offset(0),
    group: 32,
    scale: Scale::f16(&[BitField::once(0, 16, 0)]).times(PACKED_SCALES),
    min: Some(Scale::f16(&[BitField::once(16, 16, 0)]).times(PACKED_MINIMA)),
};

/// 256 6-bit codes around 32 with a signed byte scale per 16.
pub static Q6_K: Codec = Codec {
    name: "q6_k",
    ggml_type: Some(14),
    block_len: 256,
    block_bytes: 210,
    codes: &[
        Part::Bits(BitField::lanes(0, 4, 64, 0)),
        Part::Bits(BitField::lanes(128, 2, 32, 4)),
    ],
    levels: Levels::Offset(32),
    group: 16,
    scale: Scale::f16(&[BitField::once(1664, 16, 0)]).times(Steps {
        signed: true,
        ..Steps::of(&[BitField::packed(1536, 8, 0)])
    }),
    min: None,
};
