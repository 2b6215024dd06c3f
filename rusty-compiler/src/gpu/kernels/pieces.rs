//! Keys and values of a layer that no binding takes: its heads lie in several buffers, as many in each, and each has a launch.
//!
//! Cut by heads, because a cube of attention reads one key/value head: no kernel chooses among buffers, and none binds more of them
//! than others do. What a launch has to know is which head its buffer starts with. Kernels of layers in one buffer do without.

use super::env::Buffers;
use cubecl::prelude::*;

/// The scalar of such launches that says with which head their buffer starts.
pub const FIRST_HEAD: usize = 0;

/// What each buffer of such a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Key/value heads.
    pub heads: u32,
    /// Lanes of a head.
    pub head_dim: u32,
}

impl Piece {
    /// Lanes of a token's keys, or values.
    pub fn lanes(&self) -> u32 {
        self.heads * self.head_dim
    }
}

/// The first of the layer's lanes that the launch's buffer has.
#[cube]
pub fn first_lane(buffers: &Buffers<'_>, #[comptime] piece: Piece) -> u32 {
    buffers.args[FIRST_HEAD] * comptime!(piece.head_dim)
}
