//! Scales and minima of block formats.

use super::bits::{e4m3_value, f16_value};
use super::gather::group_of;
use cubecl::prelude::*;
use rusty_loader::formats::{BitField, Codec, Scale, Unit};

/// The scale (or minimum) of a group: `unit * steps * factor`.
#[cube]
pub fn number_of(
    words: &[u32],
    block: u32,
    group: u32,
    #[comptime] codec: &'static Codec,
    #[comptime] scale: Scale,
) -> f32 {
    let mut number = unit_of(words, block, group, codec, comptime!(scale.unit));
    if let Some(steps) = comptime!(scale.steps) {
        let mut code = fields_of(
            words,
            block,
            group,
            comptime!(steps.fields),
            comptime!(codec.block_bytes),
        );
        if comptime!(steps.signed) {
            code = u32::reinterpret(i32::reinterpret(code << 24) >> 24);
        }
        let whole = i32::reinterpret(code) * comptime!(steps.times) + comptime!(steps.plus);
        number *= f32::cast_from(whole);
    }
    if comptime!(scale.factor != 1.0) {
        number *= comptime!(scale.factor);
    }
    number
}

#[cube]
fn unit_of(
    words: &[u32],
    block: u32,
    group: u32,
    #[comptime] codec: &'static Codec,
    #[comptime] unit: Unit,
) -> f32 {
    match unit {
        Unit::F16(fields) => f16_value(fields_of(
            words,
            block,
            group,
            fields,
            comptime!(codec.block_bytes),
        )),
        // Blocks of such formats are whole words.
        Unit::F32First => f32::reinterpret(words[(block >> 2) as usize]),
        Unit::HalfE8M0(field) => {
            let exponent = group_of(words, block, group, field, comptime!(codec.block_bytes));
            // Powers below 2^-126 are subnormal.
            let tiny = 0x0020_0000u32 << min(exponent, 1u32.runtime());
            let bits = select(
                exponent < 2,
                tiny,
                (max(exponent, 1u32.runtime()) - 1) << 23,
            );
            f32::reinterpret(bits)
        }
        Unit::E4M3(field) => {
            let code = group_of(words, block, group, field, comptime!(codec.block_bytes));
            select(code == 0x7f, 0.0f32, e4m3_value(code))
        }
    }
}

/// The number that some fields make together.
#[cube]
fn fields_of(
    words: &[u32],
    block: u32,
    group: u32,
    #[comptime] fields: &'static [BitField],
    #[comptime] block_bytes: usize,
) -> u32 {
    let mut number = 0u32.runtime();
    #[unroll]
    for f in 0..comptime!(fields.len()) {
        number |= group_of(words, block, group, comptime!(fields[f]), block_bytes);
    }
    number
}
