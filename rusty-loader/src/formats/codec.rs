//! The description of a block format.

/// A block format as data; see the [module](crate::formats) for how it decodes.
#[derive(Debug)]
pub struct Codec {
    /// Lower-case name, unique: `q4_0`.
    pub name: &'static str,
    /// GGUF's tensor type number, where GGUF has the format.
    pub ggml_type: Option<u32>,
    /// Elements per block.
    pub block_len: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// What an element's code is put together from; no two parts give the same bits of it.
    pub codes: &'static [Part],
    /// What the codes stand for.
    pub levels: Levels,
    /// Elements that share a scale (and minimum).
    pub group: usize,
    /// What levels are multiplied with.
    pub scale: Scale,
    /// What is subtracted then.
    pub min: Option<Scale>,
}

impl PartialEq for Codec {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Codec {}

impl std::hash::Hash for Codec {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// Where some bits of the elements' codes come from.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// Bits that lie in the block.
    Bits(BitField),
    /// Coordinates of points of a grid: the block holds the point's index, its coordinates are the codes of
    /// consecutive elements.
    Grid(Grid),
    /// Seven sign bits for eight elements; the eighth makes their parity even.
    EvenSigns {
        /// The seven bits, one group per eight elements ([`BitField::span`]).
        field: BitField,
        /// Left shift of the sign inside the code.
        place: u32,
    },
    /// Digits to the base of three, five in a byte: `256 / 243` times the number they make, so that the leading
    /// digit is the carry out of a multiplication by three.
    Trits(&'static [TritRun]),
}

/// Points of a grid, by index.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// The parts of the index; their [`BitField::span`] is the number of a point's coordinates.
    pub index: &'static [BitField],
    /// Codes of a point's coordinates, the first in the lowest bits.
    pub points: &'static [u16],
    /// Bits of a coordinate's code.
    pub bits: u32,
}

/// Elements from `first` on whose digits lie in `lanes` bytes from `offset` on: the leading digits of all bytes first.
#[derive(Clone, Copy, Debug)]
pub struct TritRun {
    /// First element.
    pub first: usize,
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub lanes: usize,
}

/// Equally wide groups of bits inside a block.
///
/// Group `j` serves the elements `span * j ..` and lies, counting bits from the block's start, at
///
/// ```text
/// first + j / per * chunk + j % per % lanes * 8 + j % per / lanes * bits
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitField {
    /// First bit inside the block.
    pub first: usize,
    /// Width of a group: at most 16.
    pub bits: u32,
    /// Groups that lie in neighbouring bytes, at the same bit of each.
    pub lanes: usize,
    /// Groups of a chunk.
    pub per: usize,
    /// Bits from a chunk to the next.
    pub chunk: usize,
    /// Elements that share a group.
    pub span: usize,
    /// Left shift of the group inside the number that it is part of.
    pub place: u32,
}

impl BitField {
    /// Groups of 1, 2, 4 or 8 bits, one per element, spread over `lanes` bytes at a time: all bytes' lowest bits first.
    pub const fn lanes(byte: usize, bits: u32, lanes: usize, place: u32) -> Self {
        Self {
            first: byte * 8,
            bits,
            lanes,
            per: lanes * 8 / bits as usize,
            chunk: lanes * 8,
            span: 1,
            place,
        }
    }

    /// Groups that follow each other without a gap from bit `first` on.
    pub const fn packed(first: usize, bits: u32, place: u32) -> Self {
        Self::strided(first, bits, 1, bits as usize, place)
    }

    /// `per` groups without a gap in every `chunk` bits.
    pub const fn strided(first: usize, bits: u32, per: usize, chunk: usize, place: u32) -> Self {
        Self {
            first,
            bits,
            lanes: 1,
            per,
            chunk,
            span: 1,
            place,
        }
    }

    /// One group for the whole block.
    pub const fn once(first: usize, bits: u32, place: u32) -> Self {
        Self::packed(first, bits, place).shared(usize::MAX)
    }

    /// The same groups, each for `span` elements.
    pub const fn shared(self, span: usize) -> Self {
        Self { span, ..self }
    }

    /// First bit of element `i`'s group.
    pub const fn locate(&self, i: usize) -> usize {
        let j = i / self.span;
        let r = j % self.per;
        self.first
            + j / self.per * self.chunk
            + r % self.lanes * 8
            + r / self.lanes * self.bits as usize
    }
}

/// What a code stands for, before scaling.
#[derive(Clone, Copy, Debug)]
pub enum Levels {
    /// The code less a constant.
    Offset(i32),
    /// The code as two's complement in its whole width.
    Signed,
    /// An entry of a table with a power of two of them.
    Table(&'static [i8]),
    /// An entry of a table of floats.
    Floats(&'static [f32; 16]),
    /// An 8-bit float: sign, 4-bit exponent counted from 7, 3-bit mantissa. What stands for no number is 480.
    E4M3,
}

/// How the scale (or minimum) of a group is made: `unit * steps * factor`.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// A floating-point number of the block or of the group.
    pub unit: Unit,
    /// A whole number of the group; 1 where there is none.
    pub steps: Option<Steps>,
    /// A power of two, or minus one.
    pub factor: f32,
}

impl Scale {
    /// An f16 from these parts.
    pub const fn f16(fields: &'static [BitField]) -> Self {
        Self {
            unit: Unit::F16(fields),
            steps: None,
            factor: 1.0,
        }
    }

    /// The f32 that a block starts with.
    pub const fn f32_first() -> Self {
        Self {
            unit: Unit::F32First,
            steps: None,
            factor: 1.0,
        }
    }

    /// The scale times whole numbers.
    pub const fn times(self, steps: Steps) -> Self {
        Self {
            steps: Some(steps),
            ..self
        }
    }

    /// The scale times a constant.
    pub const fn factor(self, factor: f32) -> Self {
        Self { factor, ..self }
    }
}

/// Encodings of a unit. Fields are asked for the group's number.
#[derive(Clone, Copy, Debug)]
pub enum Unit {
    /// IEEE half precision.
    F16(&'static [BitField]),
    /// `2^(e - 128)` of a byte: half of what OCP Microscaling Formats 1.0 calls E8M0, for levels that are doubled.
    HalfE8M0(BitField),
    /// IEEE single precision in the first four bytes of a block.
    F32First,
    /// Unsigned 4-bit exponent and 3-bit mantissa; 0x7f stands for 0, as in ggml.
    E4M3(BitField),
}

/// Whole numbers, one per group: `times * code + plus`.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// The parts of the code.
    pub fields: &'static [BitField],
    /// Whether the code is a signed byte.
    pub signed: bool,
    /// Factor on the code.
    pub times: i32,
    /// Added then.
    pub plus: i32,
}

impl Steps {
    /// The codes themselves.
    pub const fn of(fields: &'static [BitField]) -> Self {
        Self {
            fields,
            signed: false,
            times: 1,
            plus: 0,
        }
    }
}
