//! An adapter's delta at a site as kernels read it: addresses and formats.
//!
//! They are found once, when the adapter is attached. A step looks at each pair of slot and site once, long after
//! the last time: through the tables' owners that would be a chain of waits for memory, here it is one.

use crate::cpu::float::FloatKind;
use crate::delta_table::{DeltaTable, PANEL};
use crate::interleaving::{factor_bytes, panel_bytes};
use crate::slots::SiteDelta;
use rusty_loader::Format;
use std::sync::Arc;

/// How a table's values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableKind {
    Float(FloatKind),
    /// Q8_0, interleaved.
    Int8,
    /// Q4_0.
    Int4,
}

/// A table's first byte and the bytes of a row.
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) at: *const u8,
    pub(super) row_bytes: usize,
    pub(super) kind: TableKind,
}

impl Table {
    fn new(table: &DeltaTable) -> Self {
        Self {
            at: table.bytes().as_ptr(),
            row_bytes: table.row_bytes(),
            kind: match table.format() {
                Format::F32 => TableKind::Float(FloatKind::F32),
                Format::F16 => TableKind::Float(FloatKind::F16),
                Format::Bf16 => TableKind::Float(FloatKind::Bf16),
                Format::Blocks(codec) if codec.name == "q4_0" => TableKind::Int4,
                Format::Blocks(_) => TableKind::Int8,
            },
        }
    }
}

/// Blocks of outputs and inputs, and `[rows, columns]` numbers that mix them.
#[derive(Clone, Copy)]
pub(super) struct KronTable {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) mix: *const f32,
    /// Outputs of a block.
    pub(super) height: usize,
}

/// The tables of a [`SiteDelta`], valid while that lives. Pointers are null where there is nothing.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct SiteTables {
    pub(super) rank: usize,
    /// Width of the inputs that `A` acts on.
    pub(super) k: usize,
    /// Rows of `A`; none is the identity.
    pub(super) a: Option<Table>,
    /// Panels of `B`; none where the rank is 0.
    pub(super) b: Option<Table>,
    pub(super) scale: *const f32,
    /// The scale of all ranks where it is the same: tables of scales are small and would each be waited for.
    pub(super) even: Option<f32>,
    /// Blocks in which both act.
    pub(super) kron: Option<KronTable>,
    pub(super) gain_low: *const f32,
    pub(super) gain_in: *const f32,
    pub(super) gain_out: *const f32,
    pub(super) bias: *const f32,
}

// SAFETY: the delta's tables and vectors are shared and never written.
unsafe impl Send for SiteTables {}
// SAFETY: as above.
unsafe impl Sync for SiteTables {}

impl SiteTables {
    /// Finds a delta's tables at a site of input width `k`.
    pub(in crate::cpu) fn new(delta: &SiteDelta, k: usize) -> Self {
        let columns = delta.kron.as_ref().map_or(1, |kron| kron.columns as usize);
        let panels = delta.b.as_ref().map_or(0, DeltaTable::rows) / (delta.rank as usize).max(1);
        let vector = |v: &Option<Arc<[f32]>>| v.as_ref().map_or(std::ptr::null(), |v| v.as_ptr());
        Self {
            rank: delta.rank as usize,
            k: k / columns,
            a: delta.a.as_ref().map(Table::new),
            b: delta.b.as_ref().map(Table::new),
            scale: delta.scale.as_ptr(),
            even: delta
                .scale
                .first()
                .copied()
                .filter(|first| delta.scale.iter().all(|s| s == first)),
            kron: delta.kron.as_ref().map(|kron| KronTable {
                rows: kron.rows as usize,
                columns,
                mix: kron.mix.as_ptr(),
                height: panels * PANEL,
            }),
            gain_low: vector(&delta.gain_low),
            gain_in: vector(&delta.gain_in),
            gain_out: vector(&delta.gain_out),
            bias: vector(&delta.bias),
        }
    }

    /// Whether it scales inputs.
    pub(in crate::cpu) fn gains_input(&self) -> bool {
        !self.gain_in.is_null()
    }

    /// Whether `A` acts on inputs in single precision where they are quantized as well.
    pub(super) fn reads_floats(&self) -> bool {
        let bytes = self.a.is_some_and(|a| a.kind == TableKind::Int8);
        self.rank > 0 && (self.kron.is_some() || !bytes)
    }

    /// Values of `u` for a row.
    pub(in crate::cpu) fn lows(&self) -> usize {
        self.rank * self.kron.map_or(1, |kron| kron.rows)
    }

    /// Address of rank `from` of `A`; none where that is the identity.
    pub(super) fn rank_at(&self, from: usize) -> Option<usize> {
        self.a.map(|a| a.at.addr() + from * a.row_bytes)
    }

    /// Address and length of ranks `from .. to` of `A`; none where that is the identity.
    pub(super) fn rank_bytes(&self, (from, to): (usize, usize)) -> Option<(usize, usize)> {
        let a = self.a?;
        Some((self.rank_at(from)?, (to - from) * a.row_bytes))
    }

    /// Address and length of the panels of columns `first ..`; nothing where blocks share them, which stay at hand.
    pub(super) fn column_bytes(&self, (first, count): (usize, usize)) -> (usize, usize) {
        if self.kron.is_some() {
            return (0, 0);
        }
        let (start, end) = (first / PANEL, (first + count).div_ceil(PANEL));
        let place = |b: Table| {
            let (before, panel) = match b.kind {
                TableKind::Int8 => (factor_bytes(self.rank), panel_bytes(self.rank)),
                _ => (0, self.rank * b.row_bytes),
            };
            (b.at.addr() + before + start * panel, (end - start) * panel)
        };
        self.b.map_or((0, 0), place)
    }
}
