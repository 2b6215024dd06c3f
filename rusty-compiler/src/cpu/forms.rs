//! Which combinations of codes, decoding and scaling have a kernel: one line each, for the formats named above it.

use super::kind::{Decoding, Kind, Scaling, Width};
use super::prefetch::Ahead;
use super::quads::{Codes, Eight, Five, Four, Six, Three, Two};
use super::quantize::InputRows;
use super::row_panels::{self, RowPanels};
use super::simd::{LANES, Level};
use super::tile::{self, Panel};

/// What a kernel is compiled for.
pub(super) trait Form {
    type Codes: Codes;
    const DECODING: Decoding;
    const SCALING: Scaling;
    /// Bytes of a group of a panel: codes, then scales.
    const BYTES: usize = Self::Codes::BYTES + Self::SCALING.group_bytes();
    /// Largest of the bytes that [`ByteProducts::dot`](super::simd::byte_products::ByteProducts::dot) multiplies.
    const LARGEST: i32 = match Self::DECODING {
        Decoding::Plain => (1 << (Self::Codes::BYTES / (4 * LANES))) - 1,
        _ => 127,
    };
}

macro_rules! kernels {
    ($($name:ident: $codes:ident $width:ident, $decoding:ident, $scaling:ident;)*) => {
        $(
            pub(super) struct $name;
            impl Form for $name {
                type Codes = $codes;
                const DECODING: Decoding = Decoding::$decoding;
                const SCALING: Scaling = Scaling::$scaling;
            }
        )*

        impl Kind {
            /// Whether there is a kernel for this combination.
            pub(super) fn has_kernel(&self) -> bool {
                matches!(
                    (self.width, self.decoding, self.scaling),
                    $((Width::$width, Decoding::$decoding, Scaling::$scaling))|*
                )
            }
        }

        /// `out[r * stride ..][..16] = x[first + r] W^T` for `rows` rows over the panel's sixteen columns; `place`
        /// is `(first, rows)`.
        ///
        /// # Safety
        /// The panel, which has a kernel, and the input rows are whole; `out` holds 16 values per row.
        pub(super) unsafe fn multiply(
            level: Level,
            p: Panel,
            x: InputRows,
            place: (usize, usize),
            out: *mut f32,
            stride: usize,
            ahead: &mut Ahead,
        ) {
            // SAFETY: the caller's duty.
            unsafe {
                match (p.kind.width, p.kind.decoding, p.kind.scaling) {
                    $((Width::$width, Decoding::$decoding, Scaling::$scaling) => {
                        tile::multiply::<$name>(level, p, x, place, out, stride, ahead)
                    })*
                    _ => unreachable!("panels are made for kinds that have a kernel"),
                }
            }
        }

        /// [`row_panels::multiply_row`] of the panels' kind.
        ///
        /// # Safety
        /// As there; the kind has a kernel.
        pub(super) unsafe fn multiply_row(
            level: Level,
            panels: RowPanels,
            x: (InputRows, usize),
            out: *mut f32,
            ahead: &mut Ahead,
        ) {
            let kind = &panels.first.kind;
            // SAFETY: the caller's duty.
            unsafe {
                match (kind.width, kind.decoding, kind.scaling) {
                    $((Width::$width, Decoding::$decoding, Scaling::$scaling) => {
                        row_panels::multiply_row::<$name>(level, panels, x, out, ahead)
                    })*
                    _ => unreachable!("panels are made for kinds that have a kernel"),
                }
            }
        }
    };
}

kernels! {
    // Q4_0; Q4_1; Q4_K
    Block4: Four W4, Plain, Half;
    Affine4: Four W4, Plain, HalfMin;
    Stepped4: Four W4, Plain, ByteMin;
    // Q5_0; Q5_1; Q5_K
    Block5: Five W5, Plain, Half;
    Affine5: Five W5, Plain, HalfMin;
    Stepped5: Five W5, Plain, ByteMin;
    // Q8_0
    Block8: Eight W8, Wide, Half;
    // Q2_K; Q3_K; Q6_K
    Stepped2: Two W2, Plain, ByteMin16;
    Halves3: Three W3, Plain, Byte16;
    Halves6: Six W6, Plain, Byte16;
    // TQ1_0, TQ2_0
    Ternary: Two W2, Plain, Byte;
    // IQ1_S, IQ2_XXS; IQ1_M, IQ2_XS, IQ2_S
    Points3: Three W3, Lookup, Byte;
    HalfPoints3: Three W3, Lookup, Byte16;
    // IQ3_XXS, IQ3_S
    Points4: Four W4, Lookup, Byte;
    // IQ4_NL; IQ4_XS
    Uneven4: Four W4, LookupWide, Half;
    SteppedUneven4: Four W4, LookupWide, Byte;
    // MXFP4; NVFP4
    Micro4: Four W4, Lookup, Brain;
    HalfMicro4: Four W4, Lookup, Half16;
}
