//! Ternary weights: -1, 0, 1 times one scale per 256 elements.

use super::codec::{BitField, Codec, Levels, Part, Scale, TritRun};

/// Five digits to a byte.
pub static TQ1_0: Codec = Codec {
    name: "tq1_0",
    ggml_type: Some(34),
    block_len: 256,
    block_bytes: 54,
    codes: &[Part::Trits(&[
        TritRun {
            first: 0,
            offset: 0,
            lanes: 32,
        },
        TritRun {
            first: 160,
            offset: 32,
            lanes: 16,
        },
        TritRun {
            first: 240,
            offset: 48,
            lanes: 4,
        },
    ])],
    levels: Levels::Offset(1),
    group: 256,
    scale: Scale::f16(&[BitField::once(52 * 8, 16, 0)]),
    min: None,
};

/// Two bits each.
pub static TQ2_0: Codec = Codec {
    name: "tq2_0",
    ggml_type: Some(35),
    block_len: 256,
    block_bytes: 66,
    codes: &[Part::Bits(BitField::lanes(0, 2, 32, 0))],
    levels: Levels::Offset(1),
    group: 256,
    scale: Scale::f16(&[BitField::once(64 * 8, 16, 0)]),
    min: None,
};
