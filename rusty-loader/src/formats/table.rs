//! The block formats, one value each.

use super::codec::{BitField, Codec, ScaleRule};

/// 32 signed 4-bit codes around 8 with one f16 scale.
pub static Q4_0: Codec = Codec {
    name: "q4_0",
    ggml_type: 2,
    block_len: 32,
    block_bytes: 18,
    fields: &[BitField {
        offset: 2,
        bits: 4,
        lanes: 16,
        place: 0,
    }],
    signed: false,
    bias: 8,
    scales: ScaleRule::Block { d: 0 },
};

/// 32 signed bytes with one f16 scale.
pub static Q8_0: Codec = Codec {
    name: "q8_0",
    ggml_type: 8,
    block_len: 32,
    block_bytes: 34,
    fields: &[BitField {
        offset: 2,
        bits: 8,
        lanes: 32,
        place: 0,
    }],
    signed: true,
    bias: 0,
    scales: ScaleRule::Block { d: 0 },
};

/// 256 4-bit codes with a 6-bit scale and minimum per 32.
pub static Q4_K: Codec = Codec {
    name: "q4_k",
    ggml_type: 12,
    block_len: 256,
    block_bytes: 144,
    fields: &[BitField {
        offset: 16,
        bits: 4,
        lanes: 32,
        place: 0,
    }],
    signed: false,
    bias: 0,
    scales: ScaleRule::PackedK {
        d: 0,
        dmin: 2,
        packed: 4,
    },
};

/// 256 6-bit codes around 32 with a signed byte scale per 16.
pub static Q6_K: Codec = Codec {
    name: "q6_k",
    ggml_type: 14,
    block_len: 256,
    block_bytes: 210,
    fields: &[
        BitField {
            offset: 0,
            bits: 4,
            lanes: 64,
            place: 0,
        },
        BitField {
            offset: 128,
            bits: 2,
            lanes: 32,
            place: 4,
        },
    ],
    signed: false,
    bias: 32,
    scales: ScaleRule::I8Groups {
        d: 208,
        scales: 192,
        group: 16,
    },
};

/// Every block format, for look-ups by name or GGUF type.
pub static ALL: &[&Codec] = &[&Q4_0, &Q8_0, &Q4_K, &Q6_K];
