//! Bodies on the CPU: each instruction runs over the lanes of one row that a tile holds, in vector chunks.
//!
//! At bind time operands become addresses. A register is a pointer: sources point at the arena, the weight
//! or the tile itself, computed registers at scratch that stays in the first-level cache.

use super::lanes::{binary, map, norm, rotate, softmax, take, unary};
use super::registers::Registers;
use super::simd::{Vector, per_isa};
use super::weights::Weights;
use crate::plan::{Body, Inst, Kernel, Operand, Plan};
use rusty_graph::{BinaryOp, RopeLayout, UnaryOp};

/// A body with resolved operands.
pub(super) struct Program {
    ops: Vec<Op>,
}

// SAFETY: the pointers lead to vectors of the bound weights, which are never written.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

#[derive(Clone, Copy)]
enum Op {
    Result(usize),
    /// Arena offset in bytes and row width.
    Load(usize, usize),
    Lane(*const f32),
    /// Runs of lanes of some sources in turn.
    Moved([Run; 2]),
    Unary(UnaryOp, usize),
    Binary(BinaryOp, usize, usize),
    Scale(f32, usize),
    Norm {
        x: usize,
        weight: *const f32,
        eps: f32,
        group: usize,
    },
    Softmax {
        x: usize,
        group: usize,
    },
    Rope {
        x: usize,
        table: usize,
        head_dim: usize,
        dims: usize,
        layout: RopeLayout,
    },
}

/// Neighbouring lanes that are taken from each group of a source: `count` from `first` of every `group`.
#[derive(Clone, Copy, Default)]
struct Run {
    /// Arena offset in bytes and row width.
    offset: usize,
    width: usize,
    group: usize,
    first: usize,
    count: usize,
}

/// A step's rotary table: per row `dims / 2` cosines, then as many sines.
#[derive(Clone, Copy)]
pub(super) struct RopeRows {
    pub(super) at: *const f32,
    pub(super) half: usize,
}

/// Which lanes of which row, and where their sources are.
#[derive(Clone, Copy)]
pub(super) struct Lanes<'a> {
    pub(super) row: usize,
    pub(super) first: usize,
    pub(super) count: usize,
    /// Lanes of the anchor's results, starting at `first`.
    pub(super) results: &'a [*const f32],
    pub(super) arena: *const u8,
    pub(super) ropes: &'a [RopeRows],
}

impl Program {
    /// Resolves a body of `kernel`; `None` where a weight is not bound (the plan is broken).
    pub(super) fn new(
        plan: &Plan,
        kernel: &Kernel,
        body: &Body,
        weights: &Weights,
    ) -> Option<Self> {
        let operands = Operands {
            plan,
            kernel,
            weights,
        };
        let ops = body.insts.iter().map(|inst| operands.resolve(inst));
        let ops = ops.collect::<Option<Vec<_>>>()?;
        Some(Self { ops })
    }

    /// A body that reads results only.
    #[cfg(test)]
    pub(super) fn sources_only(body: &Body) -> Option<Self> {
        let ops = body.insts.iter().map(|inst| match *inst {
            Inst::Result(i) => Some(Op::Result(i as usize)),
            Inst::Unary(op, x) => Some(Op::Unary(op, x as usize)),
            Inst::Binary(op, a, b) => Some(Op::Binary(op, a as usize, b as usize)),
            Inst::Softmax { x, group } => Some(Op::Softmax {
                x: x as usize,
                group: group as usize,
            }),
            _ => None,
        });
        Some(Self {
            ops: ops.collect::<Option<Vec<_>>>()?,
        })
    }

    /// Number of instructions.
    pub(super) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Lanes that must be computed together: 1, or a multiple of all groups and heads.
    pub(super) fn unit(&self) -> usize {
        self.ops.iter().fold(1, |unit, op| match *op {
            Op::Norm { group, .. } | Op::Softmax { group, .. } => lcm(unit, group),
            Op::Rope { head_dim, .. } => lcm(unit, head_dim),
            _ => unit,
        })
    }
}

/// Where the operands of a kernel's bodies are looked up.
struct Operands<'a> {
    plan: &'a Plan,
    kernel: &'a Kernel,
    weights: &'a Weights,
}

impl Operands<'_> {
    fn resolve(&self, inst: &Inst) -> Option<Op> {
        Some(match *inst {
            Inst::Result(i) => Op::Result(i as usize),
            Inst::Load(o) => {
                let (offset, width) = self.value(o)?;
                Op::Load(offset, width)
            }
            Inst::Lane(o) => Op::Lane(self.vector(o)?),
            // The pass that makes these leaves CPUs out.
            Inst::Chosen(_) => return None,
            Inst::Part {
                from,
                group,
                first,
                count,
            } => Op::Moved([self.run(from, group, first, count)?, Run::default()]),
            Inst::Join { from, lanes } => Op::Moved([
                self.run(from[0], lanes[0], 0, lanes[0])?,
                self.run(from[1], lanes[1], 0, lanes[1])?,
            ]),
            Inst::Unary(op, x) => Op::Unary(op, x as usize),
            Inst::Binary(op, a, b) => Op::Binary(op, a as usize, b as usize),
            Inst::Scale(c, x) => Op::Scale(c.get(), x as usize),
            Inst::RmsNorm {
                x,
                weight,
                eps,
                group,
            } => Op::Norm {
                x: x as usize,
                weight: self.vector(weight)?,
                eps: eps.get(),
                group: group as usize,
            },
            Inst::Softmax { x, group } => Op::Softmax {
                x: x as usize,
                group: group as usize,
            },
            Inst::Rope {
                x,
                table,
                head_dim,
                dims,
                layout,
            } => Op::Rope {
                x: x as usize,
                table: self.table(table)?,
                head_dim: head_dim as usize,
                dims: dims as usize,
                layout,
            },
        })
    }

    /// A bound vector.
    fn vector(&self, operand: u16) -> Option<*const f32> {
        match self.kernel.operands.get(operand as usize)? {
            Operand::Vector(w) => self.weights.vector_of(*w).map(<[f32]>::as_ptr),
            _ => None,
        }
    }

    /// An activation's place in the arena in bytes, and its width.
    fn value(&self, operand: u16) -> Option<(usize, usize)> {
        match self.kernel.operands.get(operand as usize)? {
            Operand::Value(v) => {
                let value = self.plan.value(*v);
                Some((value.offset as usize, value.width as usize))
            }
            _ => None,
        }
    }

    /// Number of a rotary table.
    fn table(&self, operand: u16) -> Option<usize> {
        match self.kernel.operands.get(operand as usize)? {
            Operand::Rope(id) => Some(id.index()),
            _ => None,
        }
    }

    fn run(&self, from: u16, group: u32, first: u32, count: u32) -> Option<Run> {
        let (offset, width) = self.value(from)?;
        Some(Run {
            offset,
            width,
            group: group as usize,
            first: first as usize,
            count: count as usize,
        })
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

per_isa! {
    /// Runs a program and returns where its result's lanes lie (valid until the registers are used again).
    ///
    /// # Safety
    /// `lanes` names lanes inside all sources, a multiple of [`Program::unit`]; nobody writes them meanwhile;
    /// `regs` has room for the program and the lanes.
    pub(super) fn run(program: &Program, lanes: Lanes<'_>, regs: &mut Registers) -> *const f32 = run_with
}

#[inline(always)]
unsafe fn run_with<V: Vector>(
    program: &Program,
    at: Lanes<'_>,
    regs: &mut Registers,
) -> *const f32 {
    let mut last = std::ptr::null();
    // SAFETY: the caller's duty.
    unsafe {
        for (i, op) in program.ops.iter().enumerate() {
            last = match *op {
                Op::Result(r) => at.results[r],
                Op::Load(offset, width) => {
                    let base: *const f32 = at.arena.add(offset).cast();
                    base.add(at.row * width + at.first)
                }
                Op::Lane(vector) => vector.add(at.first),
                made => {
                    let out = regs.scratch.floats().add(i * regs.stride);
                    make::<V>(made, at, &regs.regs, out);
                    out
                }
            };
            regs.regs[i] = last;
        }
    }
    last
}

/// Writes the lanes of an instruction that computes or moves them.
#[inline(always)]
unsafe fn make<V: Vector>(op: Op, at: Lanes<'_>, regs: &[*const f32], out: *mut f32) {
    // SAFETY: the caller's duty.
    unsafe {
        match op {
            // They stay where they lie.
            Op::Result(_) | Op::Load(..) | Op::Lane(_) => {}
            Op::Moved(runs) => gather_lanes(&runs, at, out),
            Op::Unary(op, x) => unary::<V>(op, regs[x], out, at.count),
            Op::Binary(op, a, b) => binary::<V>(op, regs[a], regs[b], out, at.count),
            Op::Scale(c, x) => {
                let (c, x) = (V::splat(c), regs[x]);
                map::<V>(at.count, out, |i, n| V::mul(c, take::<V>(x, i, n)));
            }
            Op::Norm {
                x,
                weight,
                eps,
                group,
            } => {
                for g in (0..at.count).step_by(group) {
                    norm::<V>(regs[x].add(g), weight, eps, group, out.add(g));
                }
            }
            Op::Softmax { x, group } => {
                for g in (0..at.count).step_by(group) {
                    softmax::<V>(regs[x].add(g), group, out.add(g));
                }
            }
            Op::Rope {
                x,
                table,
                head_dim,
                dims,
                layout,
            } => {
                let table = at.ropes[table];
                let cos = table.at.add(at.row * 2 * table.half);
                for h in (0..at.count).step_by(head_dim) {
                    let (x, out) = (regs[x].add(h), out.add(h));
                    rotate::<V>(x, out, cos, dims, layout);
                    std::ptr::copy_nonoverlapping(x.add(dims), out.add(dims), head_dim - dims);
                }
            }
        }
    }
}

/// Writes lanes `first ..` of a row that takes its runs in turn.
unsafe fn gather_lanes(runs: &[Run; 2], at: Lanes<'_>, out: *mut f32) {
    let period = runs[0].count + runs[1].count;
    let mut done = 0;
    while done < at.count {
        let lane = at.first + done;
        let (turn, inner) = (lane / period, lane % period);
        let (run, inner) = match inner < runs[0].count {
            true => (&runs[0], inner),
            false => (&runs[1], inner - runs[0].count),
        };
        let count = (run.count - inner).min(at.count - done);
        // SAFETY: the caller's duty.
        unsafe {
            let row: *const f32 = at.arena.add(run.offset).cast();
            let from = row.add(at.row * run.width + turn * run.group + run.first + inner);
            std::ptr::copy_nonoverlapping(from, out.add(done), count);
        }
        done += count;
    }
}
