//! Bodies: small programs over the lanes of a row, held as data.
//!
//! An instruction's result is named by its position. A body is a pure function of a row: back ends expand it
//! into a kernel's source (GPU) or run it over register-sized chunks (CPU). It is `Hash + Eq`, so it can be
//! a comptime argument and part of a kernel-cache key.

use rusty_graph::{BinaryOp, RopeLayout, UnaryOp};

/// The result of the instruction at this position.
pub type Reg = u16;

/// A float constant compared and hashed by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct F32(u32);

impl F32 {
    /// Wraps a float.
    pub fn new(v: f32) -> Self {
        Self(v.to_bits())
    }

    /// The float.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl std::fmt::Debug for F32 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// One instruction. `operand` numbers index the kernel's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inst {
    /// Lane of the anchor's result `i` (tails only).
    Result(u16),
    /// Lane of an activation operand, same row.
    Load(u16),
    /// Lane of a vector operand.
    Lane(u16),
    /// Lane of an activation operand over `T`, in a kernel over `L`: of the row that wants an output.
    Chosen(u16),
    /// Some lanes of each group of an activation operand: lane `l` is lane `l / count * group + first + l % count`.
    Part {
        /// Operand number.
        from: u16,
        /// Lanes of a group.
        group: u32,
        /// The first lane of a group that is taken.
        first: u32,
        /// How many are.
        count: u32,
    },
    /// The lanes of two activation operands, group by group.
    Join {
        /// Operand numbers.
        from: [u16; 2],
        /// Lanes of a group of each.
        lanes: [u32; 2],
    },
    /// Elementwise function.
    Unary(UnaryOp, Reg),
    /// Elementwise function of two.
    Binary(BinaryOp, Reg, Reg),
    /// Product with a constant.
    Scale(F32, Reg),
    /// `x / sqrt(mean(x^2) + eps) * weight[lane % group]`, the mean over each `group` lanes.
    RmsNorm {
        /// Normed value.
        x: Reg,
        /// Operand number of the weight, a vector of `group` lanes.
        weight: u16,
        /// Added to the mean square.
        eps: F32,
        /// Lanes per group; the row's width for a whole-row norm.
        group: u32,
    },
    /// `exp(x - m) / sum(exp(x - m))`, `m` the maximum, maximum and sum over each `group` lanes.
    Softmax {
        /// What shares are of.
        x: Reg,
        /// Lanes per group; the row's width for a softmax of the whole row.
        group: u32,
    },
    /// Rotates pairs of lanes of each head; lanes past `dims` pass through.
    Rope {
        /// Rotated value.
        x: Reg,
        /// Operand number of the `(cos, sin)` table.
        table: u16,
        /// Width of a head.
        head_dim: u32,
        /// Rotated lanes of a head.
        dims: u32,
        /// Pairing of lanes.
        layout: RopeLayout,
    },
}

impl Inst {
    /// Lanes of the groups over which it reduces; `None`: it does not.
    pub fn reduced(&self) -> Option<u32> {
        match self {
            Inst::RmsNorm { group, .. } | Inst::Softmax { group, .. } => Some(*group),
            _ => None,
        }
    }

    /// Lanes of the groups of which it looks at other lanes than the one that it makes.
    fn group(&self) -> Option<u32> {
        match self {
            Inst::Rope { head_dim, .. } => Some(*head_dim),
            _ => self.reduced(),
        }
    }
}

/// A program; the last instruction is its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Body {
    /// Instructions in SSA order: each reads only earlier ones.
    pub insts: Vec<Inst>,
}

impl Body {
    /// A body that returns one source unchanged.
    pub fn identity(source: Inst) -> Self {
        Self {
            insts: vec![source],
        }
    }

    /// The single source instruction, where the body does nothing else.
    pub fn as_identity(&self) -> Option<Inst> {
        match self.insts.as_slice() {
            [source] => Some(*source),
            _ => None,
        }
    }

    /// Whether an operand's lanes are read, at their own places or at others.
    pub fn reads(&self, operand: u16) -> bool {
        self.insts.contains(&Inst::Load(operand)) || self.moves_lanes_of(operand)
    }

    /// Whether an operand's lanes are read at other places than their own.
    pub fn moves_lanes_of(&self, operand: u16) -> bool {
        self.insts.iter().any(|i| match i {
            Inst::Part { from, .. } => *from == operand,
            Inst::Join { from, .. } => from.contains(&operand),
            _ => false,
        })
    }

    /// Whether bodies may become one. What a softmax needs to know of a group is made once for all of the group's lanes, so beside one
    /// nothing looks at groups of other sizes.
    pub fn groups_agree(bodies: &[&Body]) -> bool {
        let insts = || bodies.iter().flat_map(|b| &b.insts);
        let mut groups = insts().filter_map(Inst::group);
        let first = groups.next();
        let softmax = insts().any(|i| matches!(i, Inst::Softmax { .. }));
        !softmax || groups.all(|group| Some(group) == first)
    }

    /// Whether each group of `lanes` lanes is made of the same lanes of what is read: norms are over whole groups, rotations
    /// inside them. Heads of attention, which this is asked of, have no softmax.
    pub fn stays_in_groups(&self, lanes: u32) -> bool {
        self.insts.iter().all(|i| match i {
            Inst::RmsNorm { group, .. } => *group == lanes,
            Inst::Rope { head_dim, .. } => *head_dim == lanes,
            Inst::Softmax { .. } | Inst::Part { .. } | Inst::Join { .. } => false,
            _ => true,
        })
    }

    /// Whether it is elementwise but for one norm, over the whole of rows of `width` lanes, and reads rows of the kernel's own.
    pub fn norms_once(&self, width: u32) -> bool {
        let norms = self.insts.iter().filter_map(Inst::reduced);
        let others = |i: &Inst| {
            matches!(
                i,
                Inst::Load(_)
                    | Inst::Lane(_)
                    | Inst::Unary(..)
                    | Inst::Binary(..)
                    | Inst::Scale(..)
                    | Inst::RmsNorm { .. }
            )
        };
        norms.eq([width]) && self.insts.iter().all(others)
    }

    /// Whether every instruction is elementwise (no reduction, no lane pairs).
    pub fn is_elementwise(&self) -> bool {
        self.insts
            .iter()
            .all(|i| i.reduced().is_none() && !matches!(i, Inst::Rope { .. }))
    }
}
