//! The weights of a plan as the kernels read them.
//!
//! Float matrices are the mapping itself, but those of BF16 are [shortened](super::shortening) to three quarters, some
//! before each step. Block-quantized matrices are [repacked](super::repacking) once into [panels](super::panel); until then
//! each use packs its panels on the fly, to the same bits.

use super::float::RowKind;
use super::kind::{Kind, Width};
use super::late_panels::LatePanels;
use super::memory::Buffer;
use super::panel::PanelLayout;
use super::repacking::Repack;
use super::short_rows::{self, ShortRows};
use super::shortening::Long;
use super::simd::LANES;
use crate::Result;
use crate::declared::{declared, failure};
use crate::plan::{Anchor, Operand, Plan};
use rusty_backend::UnifiedTensor;
use rusty_graph::WeightId;
use rusty_loader::{ModelFile, WeightView};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// A matrix of a contraction, `[n, k]`.
pub(super) enum Matrix {
    /// In place.
    Float {
        bytes: UnifiedTensor,
        kind: RowKind,
        k: usize,
    },
    /// In twelve bits a value, in [`Weights::panels`].
    Short(ShortRows),
    /// Panels at an offset of [`Weights::panels`].
    Panels { layout: PanelLayout, offset: usize },
    /// Panels that are made at their first use.
    Late(LatePanels),
    /// Blocks in place, packed at each use.
    Stored {
        bytes: UnifiedTensor,
        layout: PanelLayout,
    },
}

impl Matrix {
    /// How its panels lie; none for floats.
    pub(super) fn layout(&self) -> Option<&PanelLayout> {
        match self {
            Matrix::Float { .. } | Matrix::Short(_) => None,
            Matrix::Panels { layout, .. } | Matrix::Stored { layout, .. } => Some(layout),
            Matrix::Late(late) => Some(&late.layout),
        }
    }

    /// The kind of its panels; none for floats.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.layout().map(|layout| layout.kind)
    }

    /// Bytes of a column of a product with it, about.
    pub(super) fn column_bytes(&self) -> usize {
        match self {
            Matrix::Float { kind, k, .. } => kind.row_bytes(*k),
            Matrix::Short(short) => short_rows::row_bytes(short.k),
            _ => self.layout().map_or(0, |l| l.panel_bytes() / LANES),
        }
    }
}

/// Which matrices cores [read ahead](rusty_backend::Target::reads_ahead) on their own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadsAhead {
    None,
    /// But for panels whose codes are bytes.
    Narrow,
    All,
}

/// All weights of a plan.
pub(super) struct Weights {
    /// Repacked and shortened matrices, or room for them.
    pub(super) panels: Buffer,
    pub(super) repack: Repack,
    /// Weights of routed experts.
    pub(super) routed: BTreeSet<WeightId>,
    pub(super) long: Long,
    /// Matrices whose late panels were all made, and how many of them became [`Matrix::Panels`].
    pub(super) finished: Arc<AtomicUsize>,
    pub(super) settled: usize,
    pub(super) matrices: BTreeMap<WeightId, Matrix>,
    vectors: BTreeMap<WeightId, Vec<f32>>,
    pub(super) tables: BTreeMap<WeightId, WeightView>,
    mapped: u64,
    resident: u64,
    /// Whether brain floats are multiplied with inputs that are rounded to such.
    pub(super) brains: bool,
    reads_ahead: ReadsAhead,
}

impl Weights {
    /// Finds and checks what `plan` reads of `file`, and reserves room for repacking it. `brains`: the machine multiplies brain floats.
    pub(super) fn bind(
        plan: &Plan,
        file: &dyn ModelFile,
        memory: u64,
        brains: bool,
        reads_ahead: ReadsAhead,
    ) -> Result<Self> {
        let mut weights = Self::find(plan, file)?;
        weights.brains = brains;
        weights.reads_ahead = reads_ahead;
        weights.reserve(memory);
        weights.account();
        Ok(weights)
    }

    /// Finds and checks what `plan` reads of `file`.
    pub(super) fn find(plan: &Plan, file: &dyn ModelFile) -> Result<Self> {
        let mut weights = Weights {
            panels: Buffer::new(0),
            repack: Repack::Settled,
            routed: BTreeSet::new(),
            long: Long::default(),
            finished: Arc::default(),
            settled: 0,
            matrices: BTreeMap::new(),
            vectors: BTreeMap::new(),
            tables: BTreeMap::new(),
            mapped: 0,
            resident: 0,
            brains: false,
            reads_ahead: ReadsAhead::None,
        };
        for kernel in &plan.kernels {
            match &kernel.anchor {
                Anchor::Contract { parts, .. } => {
                    for part in parts {
                        weights.matrix(plan, file, part.weight)?;
                    }
                }
                Anchor::Experts { parts, routes, .. } => {
                    for weight in parts.iter().flat_map(|part| &part.weights) {
                        weights.matrix(plan, file, *weight)?;
                        if routes.is_some() {
                            weights.routed.insert(*weight);
                        }
                    }
                }
                Anchor::Gather { table, .. } => {
                    let view = declared(file, &plan.weights[table.index()])?;
                    weights.tables.insert(*table, view);
                }
                _ => {}
            }
            for operand in &kernel.operands {
                if let Operand::Vector(id) = operand {
                    weights.vector(plan, file, *id)?;
                }
            }
        }
        Ok(weights)
    }

    /// A matrix of a contraction. Bound by [`Weights::bind`] for every part.
    pub(super) fn matrix_of(&self, id: WeightId) -> Option<&Matrix> {
        self.matrices.get(&id)
    }

    /// Whether cores read a matrix ahead on their own.
    pub(super) fn reads_ahead(&self, matrix: &Matrix) -> bool {
        let of_bytes = || matrix.kind().is_some_and(|kind| kind.width == Width::W8);
        // Rows of blocks of floats were not measured.
        if let Matrix::Float { kind, .. } = matrix
            && !matches!(kind, RowKind::Plain(_))
        {
            return false;
        }
        match self.reads_ahead {
            ReadsAhead::None => false,
            ReadsAhead::Narrow => !of_bytes(),
            ReadsAhead::All => true,
        }
    }

    /// A vector operand.
    pub(super) fn vector_of(&self, id: WeightId) -> Option<&[f32]> {
        self.vectors.get(&id).map(Vec::as_slice)
    }

    /// Whether rows of a table can be gathered.
    pub(super) fn has_table(&self, id: WeightId) -> bool {
        self.tables.contains_key(&id) || self.matrices.contains_key(&id)
    }

    /// Decodes row `row` of a gathered table: from the panels or shortened rows of the product that reads the same weight
    /// (a tied head), so that it is held once, or from the table itself.
    pub(super) fn gather(&self, id: WeightId, row: usize, out: &mut [f32]) {
        if let Some(Matrix::Panels { layout, offset }) = self.matrices.get(&id) {
            // SAFETY: the matrix's panels lie at its offset; nothing writes them once they are packed.
            let panels = unsafe {
                std::slice::from_raw_parts(self.panels.ptr().add(*offset), layout.bytes())
            };
            layout.unpack_row(panels, row, out);
        } else if let Some(Matrix::Short(short)) = self.matrices.get(&id) {
            let at = short.row(self.panels.ptr(), 0);
            // SAFETY: the rows lie there whole; nothing writes them once they are packed.
            let bytes = unsafe {
                std::slice::from_raw_parts(at, short_rows::matrix_bytes(short.n, short.k))
            };
            short.unpack_row(bytes, row, out);
        } else if let Some(view) = self.tables.get(&id) {
            let bytes = view.row_bytes();
            view.format
                .decode_row(&view.bytes[row * bytes..][..bytes], out);
        }
    }

    /// Bytes in the mapping and bytes of our own.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let (mut mapped, mut resident) = (self.mapped, self.resident);
        for matrix in self.matrices.values() {
            if let Matrix::Late(late) = matrix {
                let (made, unread) = late.bytes();
                resident += made;
                match late.is_mapped() {
                    true => mapped += unread,
                    false => resident += unread,
                }
            }
        }
        (mapped, resident)
    }

    fn matrix(&mut self, plan: &Plan, file: &dyn ModelFile, id: WeightId) -> Result<()> {
        if self.matrices.contains_key(&id) {
            return Ok(());
        }
        let decl = &plan.weights[id.index()];
        let view = declared(file, decl)?;
        let (n, k) = (view.rows(), view.row_len());
        let bytes = UnifiedTensor::from_shared(view.bytes);
        let matrix = match RowKind::of(view.format) {
            Err(codec) => {
                let kind = Kind::of(codec).ok_or_else(|| {
                    let name = codec.name;
                    failure(
                        file,
                        decl,
                        format!("is {name}, for which the CPU has no kernel"),
                    )
                })?;
                let layout = PanelLayout { codec, kind, k, n };
                Matrix::Stored { bytes, layout }
            }
            Ok(kind) => Matrix::Float { bytes, kind, k },
        };
        self.matrices.insert(id, matrix);
        Ok(())
    }

    fn vector(&mut self, plan: &Plan, file: &dyn ModelFile, id: WeightId) -> Result<()> {
        if self.vectors.contains_key(&id) {
            return Ok(());
        }
        let view = declared(file, &plan.weights[id.index()])?;
        let mut values = vec![0.0; view.elements()];
        view.format.decode_row(&view.bytes, &mut values);
        self.vectors.insert(id, values);
        Ok(())
    }

    pub(super) fn account(&mut self) {
        (self.mapped, self.resident) = (0, 0);
        for matrix in self.matrices.values() {
            match matrix {
                Matrix::Float { bytes, .. } | Matrix::Stored { bytes, .. } => {
                    if bytes.is_mapped() {
                        self.mapped += bytes.byte_len();
                    } else {
                        self.resident += bytes.byte_len();
                    }
                }
                Matrix::Short(short) => self.resident += short.bytes() as u64,
                Matrix::Panels { layout, .. } => self.resident += layout.bytes() as u64,
                // Counted when it is asked for, see [`Weights::bytes`].
                Matrix::Late(_) => {}
            }
        }
        let tables = self.tables.iter().filter(|(id, _)| {
            !matches!(
                self.matrices.get(id),
                Some(Matrix::Float { .. } | Matrix::Stored { .. })
            )
        });
        for (_, table) in tables {
            if table.bytes.is_mapped() {
                self.mapped += table.bytes.len() as u64;
            } else {
                self.resident += table.bytes.len() as u64;
            }
        }
        let vectors: usize = self.vectors.values().map(|v| v.len() * 4).sum();
        self.resident += vectors as u64;
    }
}
