//! The launches of attention: rows alone, whose keys are split, and tiles of rows.

use super::kernels::attention::AttentionConfig;
use super::kernels::attention_shape::AttentionShape;
use super::kernels::body::{Place, Program, Source};
use super::kernels::contract::UnitConfig;
use super::kernels::matrix_attention::{MatrixAttentionConfig, MatrixAttentionCut};
use super::kernels::reduce::Team;
use super::kernels::row_attention::RowAttentionConfig;
use super::lower::Lowering;
use super::stage::{Grid, Scalars, Template, template};
use super::text::Kind;
use crate::Result;
use crate::plan::exclusion::{MATRIX_ATTENTION, ROW_ATTENTION};
use crate::plan::held_lanes::MOST_REGISTERS;
use crate::plan::{Body, F32, Inst, Kernel, Sink, Tail};
use rusty_backend::Language;
use rusty_graph::{AttentionSpec, AttentionValues};

/// Query rows of an attention tile, where shared memory allows.
pub(super) const ATTENTION_ROWS: u32 = 8;
/// Queries of a cube at most: each takes room in every unit.
const MOST_QUERIES: u32 = 32;
/// Cuts of attention on matrix units, the first that fits: values of heads up to 256 lanes, and of wider ones.
const MATRIX_CUTS: [MatrixAttentionCut; 3] = [
    matrix_cut(1, 1, 64),
    matrix_cut(1, 1, 32),
    matrix_cut(2, 4, 32),
];
/// Planes of a cube of that kernel: each leaves a result in shared memory.
const MOST_PLANES: u32 = 8;
/// Cubes among which an attention launch splits rows' keys at most; more would wait for each other, and take more of the arena.
pub(super) const SPLIT_CUBES: u32 = 512;

impl Lowering<'_> {
    /// Whether there is a kernel for rows alone: not where planes [hold no heads](crate::plan::Plan::planes_hold_heads), nor where it goes
    /// wrong, for one shape as for all.
    pub(super) fn has_rows_alone(&self) -> bool {
        self.plan.planes_hold_heads(self.target) && !self.plan.excludes_for_any(ROW_ATTENTION)
    }

    /// Attention of rows alone, with what adds their splits up where that takes a launch; or, where [there is none](Self::has_rows_alone),
    /// tiles of one row.
    pub(super) fn row_attention(
        &self,
        kernel: &Kernel,
        q: u16,
        spec: &AttentionSpec,
    ) -> Result<Vec<Template>> {
        if !self.has_rows_alone() {
            return Ok(vec![self.tiles(kernel, q, spec, 1)?]);
        }
        let mut scalars = self.scalars(kernel)?;
        let places = self.places(kernel, &mut scalars);
        let made = kernel.first.iter();
        let (queries, pages): (Vec<&Tail>, Vec<&Tail>) =
            made.partition(|t| matches!(t.sink, Sink::Value(_)));
        let stores = (pages.into_iter())
            .map(|tail| {
                let mut made = self.store(tail, &places, Source::None, &mut scalars);
                made.program.segment = made.width / spec.kv_heads;
                made
            })
            .collect();
        let query = self.query(q, queries.first().map(|t| &t.body), &places, spec);
        let tails = kernel.tails.iter();
        let unit = UnitConfig {
            parts: vec![0],
            tails: tails
                .map(|t| self.store(t, &places, Source::Given, &mut scalars))
                .collect(),
            arg: 0,
        };
        let mut config = RowAttentionConfig {
            team: Team {
                units: (MOST_PLANES * self.target.plane_size).min(256.min(self.target.max_units)),
                plane: self.target.plane_size,
            },
            wide: false,
            shape: self.shape(kernel, spec)?,
            query,
            stores,
            splits: scalars.push(0),
            meets: self.target.orders_groups,
            unit,
        };
        let large =
            |c: &RowAttentionConfig| c.shared_bytes() > self.target.shared_bytes || !c.held().fit();
        share(&mut config, |c| &mut c.shape, large);
        self.fits(kernel, config.shared_bytes())?;
        if self.target.language == Language::CudaC {
            config = config.with_wide_reads();
        }
        let grid = Grid::RowAttention {
            y: config.shape.cubes(),
        };
        let behind = (!config.meets).then(|| Kind::MeetSplits(config.clone()));
        let splits = config.splits;
        let kinds = [Kind::RowAttention(config)].into_iter().chain(behind);
        let launches = kinds.map(|kind| {
            let mut made = template(kernel, kind, grid, scalars.clone(), None);
            made.splits = Some(splits);
            made
        });
        Ok(launches.collect())
    }

    /// The program of a head's queries: the body that makes them, or what operand `q` is.
    fn query(
        &self,
        q: u16,
        made: Option<&Body>,
        places: &[Place],
        spec: &AttentionSpec,
    ) -> Program {
        let given = Body::identity(Inst::Load(q));
        let body = made.unwrap_or(&given);
        Program {
            segment: spec.head_dim,
            ..self.program(body, places, Source::None, spec.head_dim)
        }
    }

    /// Attention of tiles of rows: on matrix units where there are some, which do not go wrong, and the heads fit.
    pub(super) fn tile_attention(
        &self,
        kernel: &Kernel,
        q: u16,
        spec: &AttentionSpec,
    ) -> Result<Template> {
        if self.target.multiplies_bf16() && !self.plan.excludes(MATRIX_ATTENTION, kernel) {
            for cut in MATRIX_CUTS {
                let (config, scalars) = self.matrix_attention(kernel, q, spec, cut)?;
                let fits = config.shared_bytes() <= self.target.shared_bytes
                    && config.registers() <= MOST_REGISTERS;
                if config.is_whole() && fits {
                    let y = config.shape.cubes();
                    let grid = Grid::Attention { y };
                    let kind = Kind::MatrixAttention(config);
                    return Ok(template(kernel, kind, grid, scalars, None));
                }
            }
        }
        self.tiles(kernel, q, spec, ATTENTION_ROWS)
    }

    fn matrix_attention(
        &self,
        kernel: &Kernel,
        q: u16,
        spec: &AttentionSpec,
        cut: MatrixAttentionCut,
    ) -> Result<(MatrixAttentionConfig, Scalars)> {
        let mut scalars = self.scalars(kernel)?;
        let arg = scalars.push(self.activation(kernel, q)?.0);
        let config = MatrixAttentionConfig {
            cut,
            shape: self.shape(kernel, spec)?,
            arg,
            unit: self.unit(kernel, &mut scalars),
            native: self.target.language == Language::CudaC,
        };
        Ok((config, scalars))
    }

    /// The tails, over attention's one result.
    fn unit(&self, kernel: &Kernel, scalars: &mut Scalars) -> UnitConfig {
        let places = self.places(kernel, scalars);
        let tails = kernel.tails.iter();
        UnitConfig {
            parts: vec![0],
            tails: tails
                .map(|t| self.store(t, &places, Source::Given, scalars))
                .collect(),
            arg: 0,
        }
    }

    fn tiles(&self, kernel: &Kernel, q: u16, spec: &AttentionSpec, rows: u32) -> Result<Template> {
        let mut scalars = self.scalars(kernel)?;
        let arg = scalars.push(self.activation(kernel, q)?.0);
        let mut config = AttentionConfig {
            units: 128.min(self.target.max_units),
            rows,
            shape: self.shape(kernel, spec)?,
            arg,
            unit: self.unit(kernel, &mut scalars),
        };
        let large = |c: &AttentionConfig| {
            c.shared_bytes() > self.target.shared_bytes || c.queries() > MOST_QUERIES
        };
        while config.rows > 1 && large(&config) {
            config.rows /= 2;
        }
        share(&mut config, |c| &mut c.shape, large);
        self.fits(kernel, config.shared_bytes())?;
        let grid = Grid::Attention {
            y: config.shape.cubes(),
        };
        Ok(template(
            kernel,
            Kind::Attention(config),
            grid,
            scalars,
            None,
        ))
    }

    fn shape(&self, kernel: &Kernel, spec: &AttentionSpec) -> Result<AttentionShape> {
        let odd = spec.head_dim % 2 == 1 || spec.value_dim() % 2 == 1;
        if odd || !spec.heads.is_multiple_of(spec.kv_heads) {
            return Err(self.refuse(
                kernel,
                "head widths must be even, heads a multiple of key/value heads",
            ));
        }
        Ok(AttentionShape {
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            value_dim: spec.value_dim(),
            of_keys: matches!(spec.values, AttentionValues::OfKeys(_)),
            shares: 1,
            scale: F32::new(spec.scale),
            window: spec.window,
            softcap: spec.softcap.map(F32::new),
            kv: self.kv,
            piece: self.piece(spec.layer),
        })
    }

    /// Refuses a kernel whose cubes need more shared memory than there is.
    pub(super) fn fits(&self, kernel: &Kernel, needs: u32) -> Result<()> {
        let has = self.target.shared_bytes;
        if needs > has {
            let reason = format!("needs {needs} bytes of shared memory; there are {has}");
            return Err(self.refuse(kernel, reason));
        }
        Ok(())
    }
}

const fn matrix_cut(below: u32, across: u32, keys: u32) -> MatrixAttentionCut {
    MatrixAttentionCut {
        below,
        across,
        keys,
    }
}

/// Shares the heads of a key/value head among as many cubes as it takes until none is too `large`.
fn share<C>(
    config: &mut C,
    shape: impl Fn(&mut C) -> &mut AttentionShape,
    large: impl Fn(&C) -> bool,
) {
    let AttentionShape {
        heads, kv_heads, ..
    } = *shape(config);
    let group = heads / kv_heads;
    for shares in (1..=group).filter(|s| group.is_multiple_of(*s)) {
        shape(config).shares = shares;
        if !large(config) {
            break;
        }
    }
}
