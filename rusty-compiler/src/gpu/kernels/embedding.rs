//! Embeddings of tokens that adapters change.

use super::decode::decode_one;
use super::env::{Buffers, header};
use cubecl::prelude::*;
use rusty_loader::Format;

/// Element `lane` of a token's embedding, as the row's adapter changes it.
#[cube]
pub(super) fn changed(
    buffers: &Buffers<'_>,
    base: u32,
    row: u32,
    lane: u32,
    #[comptime] format: Format,
) -> f32 {
    let entry = buffers.step[header::CHANGES] + row * 2;
    let at = buffers.step[entry as usize];
    let mut value = 0.0f32;
    if at == 0 || buffers.step[(entry + 1) as usize] > 0 {
        value = decode_one(buffers, base, lane, format);
    }
    if at > 0 {
        value += f32::reinterpret(buffers.step[(at + lane) as usize]);
    }
    value
}
