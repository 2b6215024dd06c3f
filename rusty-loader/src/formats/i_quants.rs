//! I-quants: blocks of 256 whose codes are points of a grid, and IQ4_XS.
//!
//! A grid gives magnitudes; signs lie beside it, or (IQ1) a bit that moves all of a point's coordinates by an eighth, one
//! way or the other. Either is the top bit of a code here, so that a code's level comes from one small table.

use super::codec::{BitField, Codec, Grid, Levels, Part, Scale, Steps};
use super::grids;
use super::simple::NON_LINEAR;

const D: &[BitField] = &[BitField::once(0, 16, 0)];

/// `2 s + 1` of a code `s`.
const fn odd(fields: &'static [BitField]) -> Steps {
    Steps {
        times: 2,
        plus: 1,
        ..Steps::of(fields)
    }
}

const IQ2_LEVELS: Levels = Levels::Table(&[8, 25, 43, 0, -8, -25, -43, 0]);

const IQ3_XXS_LEVELS: Levels = Levels::Table(&[
    4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62,
]);

const IQ3_S_LEVELS: Levels =
    Levels::Table(&[1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15]);

/// Eighths: -1, 0, 1 and an eighth more; the same and an eighth less.
const IQ1_LEVELS: Levels = Levels::Table(&[-7, 1, 9, 0, -9, -1, 7, 0]);

/// Points of eight from 256, a 4-bit scale per 32.
pub static IQ2_XXS: Codec = Codec {
    name: "iq2_xxs",
    ggml_type: Some(16),
    block_len: 256,
    block_bytes: 66,
    codes: &[
        Part::Grid(Grid {
            index: &[BitField::strided(16, 8, 4, 64, 0).shared(8)],
            points: &grids::IQ2_XXS,
            bits: 2,
        }),
        Part::EvenSigns {
            field: BitField::strided(48, 7, 4, 64, 0).shared(8),
            place: 2,
        },
    ],
    levels: IQ2_LEVELS,
    group: 32,
    scale: Scale::f16(D)
        .times(odd(&[BitField::strided(76, 4, 1, 64, 0)]))
        .factor(0.125),
    min: None,
};

/// Points of eight from 512, a 4-bit scale per 16.
pub static IQ2_XS: Codec = Codec {
    name: "iq2_xs",
    ggml_type: Some(17),
    block_len: 256,
    block_bytes: 74,
    codes: &[
        Part::Grid(Grid {
            index: &[BitField::strided(16, 9, 1, 16, 0).shared(8)],
            points: &grids::IQ2_XS,
            bits: 2,
        }),
        Part::EvenSigns {
            field: BitField::strided(25, 7, 1, 16, 0).shared(8),
            place: 2,
        },
    ],
    levels: IQ2_LEVELS,
    group: 16,
    scale: Scale::f16(D)
        .times(odd(&[BitField::packed(66 * 8, 4, 0)]))
        .factor(0.125),
    min: None,
};

/// Points of eight from 1024, all signs, a 4-bit scale per 16.
pub static IQ2_S: Codec = Codec {
    name: "iq2_s",
    ggml_type: Some(22),
    block_len: 256,
    block_bytes: 82,
    codes: &[
        Part::Grid(Grid {
            index: &[
                BitField::packed(16, 8, 0).shared(8),
                BitField::packed(66 * 8, 2, 8).shared(8),
            ],
            points: &grids::IQ2_S,
            bits: 2,
        }),
        Part::Bits(BitField::lanes(34, 1, 1, 2)),
    ],
    levels: IQ2_LEVELS,
    group: 16,
    scale: Scale::f16(D)
        .times(odd(&[BitField::packed(74 * 8, 4, 0)]))
        .factor(0.125),
    min: None,
};

/// Points of four from 256, a 4-bit scale per 32.
pub static IQ3_XXS: Codec = Codec {
    name: "iq3_xxs",
    ggml_type: Some(18),
    block_len: 256,
    block_bytes: 98,
    codes: &[
        Part::Grid(Grid {
            index: &[BitField::packed(16, 8, 0).shared(4)],
            points: &grids::IQ3_XXS,
            bits: 3,
        }),
        Part::EvenSigns {
            field: BitField::strided(66 * 8, 7, 4, 32, 0).shared(8),
            place: 3,
        },
    ],
    levels: IQ3_XXS_LEVELS,
    group: 32,
    scale: Scale::f16(D)
        .times(odd(&[BitField::strided(66 * 8 + 28, 4, 1, 32, 0)]))
        .factor(0.25),
    min: None,
};

/// Points of four from 512, all signs, a 4-bit scale per 32.
pub static IQ3_S: Codec = Codec {
    name: "iq3_s",
    ggml_type: Some(21),
    block_len: 256,
    block_bytes: 110,
    codes: &[
        Part::Grid(Grid {
            index: &[
                BitField::packed(16, 8, 0).shared(4),
                BitField::packed(66 * 8, 1, 8).shared(4),
            ],
            points: &grids::IQ3_S,
            bits: 3,
        }),
        Part::Bits(BitField::lanes(74, 1, 1, 3)),
    ],
    levels: IQ3_S_LEVELS,
    group: 32,
    scale: Scale::f16(D).times(odd(&[BitField::packed(106 * 8, 4, 0)])),
    min: None,
};

/// Points of eight from 2048, a 3-bit scale and one direction of the eighth per 32.
pub static IQ1_S: Codec = Codec {
    name: "iq1_s",
    ggml_type: Some(19),
    block_len: 256,
    block_bytes: 50,
    codes: &[
        Part::Grid(Grid {
            index: &[
                BitField::packed(16, 8, 0).shared(8),
                BitField::strided(34 * 8, 3, 4, 16, 8).shared(8),
            ],
            points: &grids::IQ1,
            bits: 2,
        }),
        Part::Bits(BitField::strided(34 * 8 + 15, 1, 1, 16, 2).shared(32)),
    ],
    levels: IQ1_LEVELS,
    group: 32,
    scale: Scale::f16(D)
        .times(odd(&[BitField::strided(34 * 8 + 12, 3, 1, 16, 0)]))
        .factor(0.125),
    min: None,
};

/// Points of eight from 2048, a 3-bit scale per 16 and a direction of the eighth per point. The f16 of the block is
/// spread over the top bits of the four words of scales.
pub static IQ1_M: Codec = Codec {
    name: "iq1_m",
    ggml_type: Some(29),
    block_len: 256,
    block_bytes: 56,
    codes: &[
        Part::Grid(Grid {
            index: &[
                BitField::packed(0, 8, 0).shared(8),
                BitField::strided(32 * 8, 3, 1, 4, 8).shared(8),
            ],
            points: &grids::IQ1,
            bits: 2,
        }),
        Part::Bits(BitField::strided(32 * 8 + 3, 1, 1, 4, 2).shared(8)),
    ],
    levels: IQ1_LEVELS,
    group: 16,
    scale: Scale::f16(&[
        BitField::once(48 * 8 + 12, 4, 0),
        BitField::once(50 * 8 + 12, 4, 4),
        BitField::once(52 * 8 + 12, 4, 8),
        BitField::once(54 * 8 + 12, 4, 12),
    ])
    .times(odd(&[BitField::strided(48 * 8, 3, 4, 16, 0)]))
    .factor(0.125),
    min: None,
};

/// 256 4-bit codes of uneven levels with a 6-bit scale around 32 per 32.
pub static IQ4_XS: Codec = Codec {
    name: "iq4_xs",
    ggml_type: Some(23),
    block_len: 256,
    block_bytes: 136,
    codes: &[Part::Bits(BitField::lanes(8, 4, 16, 0))],
    levels: Levels::Table(NON_LINEAR),
    group: 32,
    scale: Scale::f16(D).times(Steps {
        plus: -32,
        ..Steps::of(&[BitField::packed(32, 4, 0), BitField::packed(16, 2, 4)])
    }),
    min: None,
};
