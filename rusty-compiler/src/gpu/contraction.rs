//! Contractions: units, tiles, and the launches for each chunk of the weights.

use super::kernels::body::Source;
use super::kernels::contract::{ContractConfig, PartConfig, UnitConfig, scalar};
use super::kernels::delta::Adapters;
use super::kernels::matrix::MatrixConfig;
use super::kernels::matrix_product::MatrixTile;
use super::kernels::reduce::Team;
use super::kernels::tile;
use super::lower::Lowering;
use super::residence::ChunkId;
use super::stage::{Grid, Scalars, Template, template};
use super::text::Kind;
use super::weights::{Span, WeightStore, row_bytes};
use crate::Result;
use crate::plan::{Anchor, ContractionFamily, Kernel, Part, Teams, Unit};
use rusty_backend::Language;
use rusty_graph::WeightId;

/// Tiles are cut otherwise.
const TILE_TEAMS: Teams = Teams {
    units: tile::UNITS,
    lanes: 1,
    bytes: false,
};

/// How a contraction runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Teams of units make a few lanes of a row each: of so many units, or by shared memory alone.
    Vector { plane: u32 },
    /// The same, products of bytes.
    Bytes { plane: u32 },
    /// Tiles in single precision.
    Tile,
    /// Tiles on matrix units.
    Matrix(MatrixTile),
}

impl Lowering<'_> {
    /// The launches of a contraction; with adapters, `adapters` is the header word of the row count.
    pub fn contract(
        &self,
        kernel: &Kernel,
        way: Way,
        adapters: Option<usize>,
        store: &mut WeightStore<'_>,
    ) -> Result<Vec<Template>> {
        let Anchor::Contract { k, parts } = &kernel.anchor else {
            return Err(self.refuse(kernel, "is no contraction"));
        };
        let units = kernel.units();
        if let Some(unit) = units
            .iter()
            .find(|u| u.parts.iter().any(|p| parts[*p].n != parts[u.parts[0]].n))
        {
            return Err(self.refuse(
                kernel,
                format!("a tail reads parts {:?} of different widths", unit.parts),
            ));
        }
        let groups: Vec<Vec<WeightId>> = units
            .iter()
            .map(|u| u.parts.iter().map(|p| parts[*p].weight).collect())
            .collect();
        let mut launches = Vec::new();
        if adapters.is_some() {
            launches.push(self.shrink(kernel, *k, parts.len() as u32));
        }
        for spans in store.cut(&groups) {
            let present: Vec<Span> = spans.iter().flatten().cloned().collect();
            let chunk = store.chunk(&present, self.of_outputs(kernel))?;
            let mut offsets = chunk.offsets.into_iter();
            let ranges: Vec<Option<Range>> = spans
                .iter()
                .map(|s| {
                    s.as_ref().map(|span| Range {
                        first: span.first,
                        end: span.end,
                        offsets: offsets.next().unwrap_or_default(),
                    })
                })
                .collect();
            launches.push(self.chunk_launch(kernel, &units, &ranges, chunk.id, way, adapters)?);
        }
        Ok(launches)
    }

    #[allow(clippy::too_many_arguments)]
    fn chunk_launch(
        &self,
        kernel: &Kernel,
        units: &[Unit],
        ranges: &[Option<Range>],
        chunk: ChunkId,
        way: Way,
        adapters: Option<usize>,
    ) -> Result<Template> {
        let Anchor::Contract { k, parts } = &kernel.anchor else {
            return Err(self.refuse(kernel, "is no contraction"));
        };
        let mut scalars = Scalars::default();
        let places = self.places(kernel, &mut scalars);
        let (teams, plane) = match way {
            Way::Vector { plane } | Way::Bytes { plane } => (self.teams(kernel), plane),
            Way::Tile | Way::Matrix(_) => (TILE_TEAMS, 0),
        };
        let mut config = ContractConfig {
            team: Team {
                units: teams.units.min(self.target.max_units),
                plane,
            },
            rows: self.rows_word(kernel),
            k: *k,
            prologue: self.program(&kernel.prologue, &places, Source::None, *k),
            parts: parts.iter().map(|p| self.part(p, &mut scalars)).collect(),
            units: Vec::new(),
            adapters: None,
            lanes: teams.lanes,
            wide: self.target.language == Language::CudaC,
            bytes: matches!(way, Way::Bytes { .. }),
        };
        let (rows, tile) = match way {
            Way::Vector { .. } | Way::Bytes { .. } => (1, config.cube_lanes()),
            Way::Tile => (tile::ROWS, tile::LANES),
            Way::Matrix(tile) => (tile.rows, tile.lanes),
        };
        let mut tiles = 0;
        for (unit, range) in units.iter().zip(ranges) {
            let (first, end) = range.as_ref().map_or((0, 0), |r| (r.first, r.end));
            tiles += (end - first).div_ceil(tile);
            let mut values = [0; scalar::COUNT];
            values[scalar::FIRST] = first;
            values[scalar::END] = end;
            values[scalar::TILES] = tiles;
            let arg = scalars.append(&values);
            for (at, p) in unit.parts.iter().enumerate() {
                scalars.0[config.parts[*p].arg] = range.as_ref().map_or(0, |r| r.offsets[at]);
            }
            let tails = unit
                .tails
                .iter()
                .map(|t| self.store(&kernel.tails[*t], &places, Source::Given, &mut scalars))
                .collect();
            config.units.push(UnitConfig {
                parts: unit.parts.clone(),
                tails,
                arg,
            });
        }
        let mut shrunk = None;
        if let Some(rows) = adapters {
            let arg = scalars.push(0);
            scalars.push(0);
            config.adapters = Some(Adapters {
                parts: parts.len() as u32,
                arg,
                rows,
            });
            shrunk = Some(arg);
        }
        let (kind, shared) = match way {
            Way::Vector { .. } | Way::Bytes { .. } => {
                let shared = config.row_bytes();
                (Kind::Gemv(config), shared)
            }
            Way::Tile => {
                let shared = config.tile_bytes();
                (Kind::Gemm(config), shared)
            }
            Way::Matrix(tile) => {
                let config = MatrixConfig {
                    contract: config,
                    tile,
                    native: self.target.language == Language::CudaC,
                };
                let shared = config.shared_bytes();
                (Kind::Matrix(config), shared)
            }
        };
        self.fits(kernel, shared)?;
        let mut made = template(
            kernel,
            kind,
            Grid::Tiles { tiles, rows },
            scalars,
            Some(chunk),
        );
        made.shrunk = shrunk;
        Ok(made)
    }

    fn teams(&self, kernel: &Kernel) -> Teams {
        let family = ContractionFamily::of(self.plan, &kernel.anchor);
        family.map_or(TILE_TEAMS, |family| self.plan.tuning.teams(&family))
    }

    fn part(&self, part: &Part, scalars: &mut Scalars) -> PartConfig {
        let decl = &self.plan.weights[part.weight.index()];
        PartConfig {
            format: decl.format,
            row_bytes: row_bytes(decl) as u32,
            arg: scalars.push(0),
        }
    }
}

/// Lanes of a unit in a chunk, and the bytes at which its parts' rows start.
struct Range {
    first: u32,
    end: u32,
    offsets: Vec<u32>,
}
