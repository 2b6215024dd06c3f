//! Launches of kernels that touch a layer whose pages lie in several buffers: one for each of them.

use super::kernels::pieces::{FIRST_HEAD, Piece};
use super::lower::Lowering;
use super::stage::{Scalars, Template};
use crate::Result;
use crate::plan::Kernel;

impl Lowering<'_> {
    /// What each buffer of a layer's pages has, where there are several.
    pub(super) fn piece(&self, layer: u32) -> Option<Piece> {
        let count = self.pieces[layer as usize];
        let kv = &self.plan.kv[layer as usize];
        (count > 1).then(|| Piece {
            heads: kv.kv_heads / count,
            head_dim: kv.head_dim,
        })
    }

    /// What each buffer of pages has that a kernel touches, where it touches some that lie in several.
    pub(super) fn touched_piece(&self, kernel: &Kernel) -> Result<Option<Piece>> {
        Ok(self.layer(kernel)?.and_then(|layer| self.piece(layer)))
    }

    /// Scalars of a kernel's launches; the first says with which head the buffer of pages starts, where there are several.
    pub(super) fn scalars(&self, kernel: &Kernel) -> Result<Scalars> {
        let mut scalars = Scalars::default();
        if self.touched_piece(kernel)?.is_some() {
            let first = scalars.push(0);
            debug_assert_eq!(first, FIRST_HEAD);
        }
        Ok(scalars)
    }

    /// Launches with [such scalars](Self::scalars), all of them for each buffer of the pages that a kernel touches.
    pub(super) fn for_pieces(
        &self,
        kernel: &Kernel,
        launches: Vec<Template>,
    ) -> Result<Vec<Template>> {
        let Some(layer) = self.layer(kernel)? else {
            return Ok(launches);
        };
        let Some(piece) = self.piece(layer) else {
            return Ok(launches);
        };
        let of_piece = |number: u32| {
            launches.iter().map(move |launch| {
                let mut launch = launch.clone();
                launch.piece = number;
                launch.scalars[FIRST_HEAD] = number * piece.heads;
                launch
            })
        };
        let pieces = 0..self.pieces[layer as usize];
        Ok(pieces.flat_map(of_piece).collect())
    }
}
