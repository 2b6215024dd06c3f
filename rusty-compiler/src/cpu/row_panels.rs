//! One input row times many panels: one behind the other, or in several streams side by side.
//!
//! Which of the two is faster hangs on the machine, see [`super::stream`]; an output's additions are in the same order.

use super::forms::Form;
use super::prefetch::Ahead;
use super::quantize::InputRows;
use super::simd::word_products::WordProducts;
use super::simd::{LANES, per_isa};
use super::stream::Stream;
use super::tile::{Panel, tile};

/// Panels of one layout that one row is multiplied with: a stream of neighbours, or some side by side.
#[derive(Clone, Copy)]
pub(super) struct RowPanels {
    /// The first panel of the first stream.
    pub(super) first: Panel,
    /// At most as many as the level [has room for](super::simd::Level::row_panels): one, two or four.
    streams: usize,
    /// Panels of a stream.
    each: usize,
    /// Bytes from a stream to the next one, and from what it asks for to what that asks for.
    apart: (usize, usize),
    /// Results from a stream's to the next one's.
    step: usize,
}

impl RowPanels {
    /// So many panels, of which `first` is the first, in so many streams that follow each other.
    pub(super) fn new(first: Panel, panels: usize, streams: usize) -> Self {
        debug_assert!(panels.is_multiple_of(streams));
        let each = panels / streams;
        let apart = each * first.bytes;
        Self {
            first,
            streams,
            each,
            apart: (apart, apart),
            step: each * LANES,
        }
    }

    /// Two streams of so many panels that ask for nothing: `first` is the first one's first, and the other is as many bytes,
    /// and its results are as many values, apart from it as `apart` says.
    pub(super) fn pair(first: Panel, panels: usize, (bytes, step): (usize, usize)) -> Self {
        Self {
            first,
            streams: 2,
            each: panels,
            apart: (bytes, 0),
            step,
        }
    }

    /// Steps at which they ask for memory ahead, see [`Ahead`].
    pub(super) fn steps(self) -> usize {
        self.each * self.first.steps()
    }

    /// All panels of each stream but the last, which ask for those behind them, and the last ones.
    pub(super) fn split(self) -> (Self, Self) {
        let (others, before) = (self.each - 1, (self.each - 1) * self.first.bytes);
        let others = Self {
            first: self
                .first
                .asking(self.first.at.wrapping_add(self.first.bytes)),
            each: others,
            ..self
        };
        let last = Self {
            first: self.first.moved(before, 0),
            each: 1,
            ..self
        };
        (others, last)
    }

    /// The same, which ask for a stream's beginnings.
    pub(super) fn asking(self, stream: Stream) -> Self {
        let (next, step) = stream.beginnings();
        Self {
            first: self.first.asking(next),
            apart: (self.apart.0, step),
            ..self
        }
    }

    /// Columns of each stream.
    pub(super) fn columns(self) -> usize {
        self.each * LANES
    }

    /// Panel `i` of stream `n`.
    #[inline(always)]
    fn panel(&self, n: usize, i: usize) -> Panel {
        let behind = i * self.first.bytes;
        let (apart, asked) = self.apart;
        let by = |apart: usize| n.wrapping_mul(apart).wrapping_add(behind);
        self.first.moved(by(apart), by(asked))
    }
}

per_isa! {
    /// `out[c] = x[row] W^T` over the columns of all panels in their order; `x` comes with the row.
    ///
    /// # Safety
    /// The panels and the input row are whole; `out` holds 16 values for each panel.
    pub(super) fn multiply_row<F: Form>(panels: RowPanels, x: (InputRows, usize), out: *mut f32, ahead: &mut Ahead) = products multiply_row_with
}

#[inline(always)]
unsafe fn multiply_row_with<V: WordProducts, F: Form>(
    p: RowPanels,
    (x, row): (InputRows, usize),
    out: *mut f32,
    ahead: &mut Ahead,
) {
    // SAFETY: the caller's duty.
    unsafe {
        for i in 0..p.each {
            let out = (out.add(i * LANES), 0, p.step);
            match p.streams {
                4 if V::ROW_PANELS >= 4 => {
                    let panels = std::array::from_fn(|n| p.panel(n, i));
                    tile::<V, F, 1, 4>(panels, x, row, out, ahead);
                }
                2 if V::ROW_PANELS >= 2 => {
                    tile::<V, F, 1, 2>([p.panel(0, i), p.panel(1, i)], x, row, out, ahead);
                }
                streams => {
                    debug_assert_eq!(streams, 1, "more than the level has room for");
                    tile::<V, F, 1, 1>([p.panel(0, i)], x, row, out, ahead);
                }
            }
        }
    }
}
