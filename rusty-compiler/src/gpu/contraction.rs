//! Contractions: units, tiles, and the launches for each chunk of the weights.

use super::kernels::body::{Place, Source};
use super::kernels::contract::{ContractConfig, PartConfig, UnitConfig, scalar};
use super::kernels::delta::Adapters;
use super::kernels::depth_shares::DepthShares;
use super::kernels::gemm::GemmConfig;
use super::kernels::gemv_sizes::team_units;
use super::kernels::matrix::MatrixConfig;
use super::kernels::matrix_product::MatrixTile;
use super::kernels::packed_inputs::PackedInputs;
use super::kernels::reduce::Team;
use super::kernels::tile::{self, TileShape};
use super::lower::Lowering;
use super::matrix_products::packed_inputs;
use super::residence::ChunkId;
use super::stage::{Grid, Scalars, Template, template};
use super::text::Kind;
use super::weights::{Span, WeightStore, row_bytes};
use crate::Result;
use crate::passes::rewrite::inline;
use crate::passes::select::{TALL_BYTES, TALL_PARTS};
use crate::plan::exclusion::HALF_TILES;
use crate::plan::{Anchor, Body, ContractionFamily, Kernel, Part, Sink, Sums, Teams, Unit, Way};
use rusty_backend::Language;
use rusty_graph::WeightId;

/// Rows of a cube of matrix-vector products, where it has several, of bytes and of floats, which take more registers.
const BYTE_ROWS: u32 = 4;
const FLOAT_ROWS: u32 = 2;
/// Tiles are cut otherwise.
const TILE_TEAMS: Teams = Teams {
    units: tile::UNITS,
    lanes: 1,
    bytes: false,
    ahead: false,
};

// The choice of kernels goes by that.
const _: () = assert!(TileShape::TALL.shared_bytes(4, TALL_PARTS) <= TALL_BYTES);

/// How matrix-vector products run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vectors {
    /// Units of a plane, or 0: by shared memory alone.
    pub plane: u32,
    /// Whether they are of bytes.
    pub bytes: bool,
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
        if self.touched_piece(kernel)?.is_some() {
            // Passes leave keys and values to kernels of whole heads.
            return Err(self.refuse(kernel, "writes pages that lie in several buffers"));
        }
        let units = self.units(kernel, parts)?;
        let groups: Vec<Vec<WeightId>> = units
            .iter()
            .map(|u| u.parts.iter().map(|p| parts[*p].weight).collect())
            .collect();
        let mut launches = Vec::new();
        let inside = way.is_of_vectors() && kernel.can_shrink_inside(self.target);
        if adapters.is_some() && !inside && !way.packs() {
            let prologue = self.prologue(kernel, way);
            launches.push(self.shrink(kernel, &prologue, (*k, parts.len() as u32)));
        }
        if way.packs() {
            let how = How {
                way,
                adapters,
                shrinks: false,
            };
            launches.push(self.pack(kernel, *k, parts, how)?);
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
            let how = How {
                way,
                adapters,
                // The first launch makes it for all.
                shrinks: adapters.is_some() && inside && launches.is_empty(),
            };
            launches.push(self.chunk_launch(kernel, &units, &ranges, chunk.id, how)?);
        }
        Ok(launches)
    }

    /// The units of a contraction, whose parts are of one width each.
    fn units(&self, kernel: &Kernel, parts: &[Part]) -> Result<Vec<Unit>> {
        let units = kernel.units();
        let uneven = |u: &&Unit| u.parts.iter().any(|p| parts[*p].n != parts[u.parts[0]].n);
        match units.iter().find(uneven) {
            Some(unit) => {
                let reason = format!("a tail reads parts {:?} of different widths", unit.parts);
                Err(self.refuse(kernel, reason))
            }
            None => Ok(units),
        }
    }

    fn chunk_launch(
        &self,
        kernel: &Kernel,
        units: &[Unit],
        ranges: &[Option<Range>],
        chunk: ChunkId,
        how: How,
    ) -> Result<Template> {
        let mut scalars = Scalars::default();
        let places = self.places(kernel, &mut scalars);
        let mut config = self.config(kernel, &places, how, &mut scalars)?;
        let (rows, tile) = match how.way {
            Way::Vector(_) | Way::Rows(_) => (config.cube_rows, config.cube_lanes()),
            Way::Tile { rows, lanes } => (rows, lanes),
            Way::Matrix { rows, lanes } => {
                let tile = MatrixTile::of_products(rows, lanes, most_parts(kernel));
                (tile.rows, tile.lanes)
            }
        };
        let tiles = self.add_units(
            kernel,
            (units, ranges),
            &places,
            tile,
            &mut config,
            &mut scalars,
        );
        config.adapters = how.adapters.map(|rows| Adapters {
            parts: config.parts.len() as u32,
            arg: scalars.append(&[0, 0]),
            rows,
        });
        let shrunk = config.adapters.map(|a| a.arg);
        let grid = Grid::Tiles {
            tiles: config.shrink_cubes() + tiles,
            rows,
        };
        let packed = how
            .way
            .packs()
            .then(|| packed_inputs(&config, scalars.push(0), self.target));
        let depth =
            packed.and_then(|_| self.depth_cut(kernel, &config, how.way, tiles, &mut scalars));
        let shares = depth.map(|cut| DepthShares {
            count: cut.arg,
            left: scalars.push(0),
        });
        let (kind, shared) = self.kind(kernel, config, how.way, packed, shares);
        self.fits(kernel, shared)?;
        let mut made = template(kernel, kind, grid, scalars, Some(chunk));
        made.shrunk = shrunk;
        made.packed = packed.map(|inputs| inputs.arg);
        made.splits = shares.map(|shares| shares.left);
        made.depth = depth;
        Ok(made)
    }

    /// Adds the units of a launch, of which `ranges` say what lanes it has, and returns the number of its tiles, of `tile` lanes.
    fn add_units(
        &self,
        kernel: &Kernel,
        (units, ranges): (&[Unit], &[Option<Range>]),
        places: &[Place],
        tile: u32,
        config: &mut ContractConfig,
        scalars: &mut Scalars,
    ) -> u32 {
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
                .map(|t| self.store(&kernel.tails[*t], places, Source::Given, scalars))
                .collect();
            config.units.push(UnitConfig {
                parts: unit.parts.clone(),
                tails,
                arg,
            });
        }
        tiles
    }

    /// What the kernels of a contraction's launches have in common, without units.
    pub(super) fn config(
        &self,
        kernel: &Kernel,
        places: &[Place],
        how: How,
        scalars: &mut Scalars,
    ) -> Result<ContractConfig> {
        let Anchor::Contract { k, parts } = &kernel.anchor else {
            return Err(self.refuse(kernel, "is no contraction"));
        };
        let none = Vectors {
            plane: 0,
            bytes: false,
        };
        let (teams, vectors) = match how.way {
            Way::Vector(sums) | Way::Rows(sums) => (self.teams(kernel), self.vectors_of(sums)),
            Way::Tile { .. } | Way::Matrix { .. } => (TILE_TEAMS, none),
        };
        let team = Team {
            units: teams.units.min(self.target.max_units),
            plane: vectors.plane,
        };
        let cube_rows = match how.way {
            Way::Rows(_) if vectors.bytes => BYTE_ROWS,
            Way::Rows(_) => FLOAT_ROWS,
            _ => 1,
        };
        let lanes = match cube_rows {
            1 => teams.lanes,
            rows => lanes_beside(rows, most_parts(kernel), team, teams.lanes),
        };
        let cuda = self.target.language == Language::CudaC;
        let inside = self.plan.makes_first_inside(kernel, how.way);
        let first = kernel.first.first().filter(|_| inside);
        let prologue = self.prologue(kernel, how.way);
        let config = ContractConfig {
            team,
            rows: self.rows_word(kernel),
            k: *k,
            first: first.map(|tail| self.store(tail, places, Source::None, scalars)),
            prologue: self.program(&prologue, places, Source::None, *k),
            parts: parts.iter().map(|p| self.part(p, scalars)).collect(),
            units: Vec::new(),
            adapters: None,
            lanes,
            cube_rows,
            wide: cuda,
            bytes: vectors.bytes,
            ahead: cuda && teams.ahead,
            shrinks: how.shrinks,
        };
        let single = ContractConfig {
            cube_rows: 1,
            lanes: teams.lanes,
            ..config.clone()
        };
        // Of the largest planes few devices have room for several rows, and for sums beside them.
        let room = single.row_bytes().max(self.target.shared_bytes / 2);
        Ok(match config.row_bytes() <= room {
            true => config,
            false => single,
        })
    }

    /// What makes a contraction's input row; of what comes first, which no launch stored before, too.
    fn prologue(&self, kernel: &Kernel, way: Way) -> Body {
        let inside = self.plan.makes_first_inside(kernel, way);
        let made = kernel.first.iter().filter(|_| inside);
        let made = made.filter_map(|tail| match tail.sink {
            Sink::Value(value) => Some((value, tail.body.clone())),
            Sink::Key { .. } | Sink::Val { .. } => None,
        });
        inline(
            &kernel.prologue,
            &kernel.operands,
            &made.collect::<Vec<_>>(),
        )
    }

    /// The kernel of a way, and the bytes of shared memory that it takes.
    fn kind(
        &self,
        kernel: &Kernel,
        config: ContractConfig,
        way: Way,
        packed: Option<PackedInputs>,
        shares: Option<DepthShares>,
    ) -> (Kind, u32) {
        match way {
            Way::Vector(_) | Way::Rows(_) => {
                let shared = config.row_bytes();
                (Kind::Gemv(config), shared)
            }
            Way::Tile { rows, lanes } => {
                let config = GemmConfig {
                    halves: self.has_halves(kernel, &config),
                    contract: config,
                    tile: TileShape { rows, lanes },
                };
                let shared = config.shared_bytes();
                (Kind::Gemm(config), shared)
            }
            Way::Matrix { rows, lanes } => {
                let config = MatrixConfig {
                    contract: config,
                    tile: MatrixTile::of_products(rows, lanes, most_parts(kernel)),
                    shares,
                    packed,
                    stages: 1,
                    native: self.target.language == Language::CudaC,
                };
                let config = config.with_stages(self.target.shared_bytes);
                let shared = config.shared_bytes();
                (Kind::Matrix(config), shared)
            }
        }
    }

    /// Whether tiles hold a contraction's weights in half precision.
    fn has_halves(&self, kernel: &Kernel, config: &ContractConfig) -> bool {
        self.target.f16
            && self.target.language == Language::Wgsl
            && self.plan.tuning.half_tiles
            && config
                .parts
                .iter()
                .all(|p| GemmConfig::has_halves(p.format))
            && !self.plan.excludes(HALF_TILES, kernel)
    }

    /// Matrix-vector products by the target's planes.
    pub(super) fn vectors_of(&self, sums: Sums) -> Vectors {
        let (plane, bytes) = match sums {
            Sums::Bytes => (self.target.plane(), true),
            Sums::Planes => (self.target.plane_size, false),
            Sums::Shared => (0, false),
        };
        Vectors { plane, bytes }
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

/// The most parts of a kernel's units.
pub(super) fn most_parts(kernel: &Kernel) -> u32 {
    let units = kernel.units();
    units.iter().map(|u| u.parts.len()).max().unwrap_or(1) as u32
}

/// Lanes of a team whose cubes have several rows, at most `lanes`: a team has a unit for each of its sums, where it has so many.
fn lanes_beside(rows: u32, parts: u32, team: Team, lanes: u32) -> u32 {
    let most = team_units(team.units, team.plane) / (rows * parts);
    lanes.min(1 << most.max(2).ilog2())
}

/// How the launches of a contraction run.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub way: Way,
    /// With adapters, the header word of the row count.
    pub adapters: Option<usize>,
    /// Whether the launch makes their first factor itself.
    pub shrinks: bool,
}

/// Lanes of a unit in a chunk, and the bytes at which its parts' rows start.
struct Range {
    first: u32,
    end: u32,
    offsets: Vec<u32>,
}
