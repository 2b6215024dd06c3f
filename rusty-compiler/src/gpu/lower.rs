//! From plan kernels to launches: which kernel runs, what it is specialised for, and the scalars of each launch.

use super::kernels::body::{Place, Program, Source};
use super::kernels::choose::ChooseConfig;
use super::kernels::delta::Adapters;
use super::kernels::env::header;
use super::kernels::page_words::PageWords;
use super::kernels::reduce::Team;
use super::kernels::rows::{Origin, RowsConfig};
use super::kernels::shrink::ShrinkConfig;
use super::kernels::sink::{Store, Target as StoreTarget};
use super::pages::halves;
use super::residence::ChunkId;
use super::stage::{Grid, Scalars, Stage, Template, template};
use super::text::Kind;
use super::weights::{Span, WeightStore, row_bytes};
use crate::plan::exclusion::{FIRST_PLANE, SHRINK_PLANE};
use crate::plan::{Anchor, Body, Inst, Kernel, Operand, Plan, PlanValueId, Sink, Tail};
use crate::{Error, Result};
use rusty_backend::Target;
use rusty_graph::{L, WeightId};
use std::collections::HashMap;

/// Lanes of a row of which a cube finds the largest, about, and cubes of a row at most.
const CHOICE_LANES: u32 = 1024;
const CHOICE_CUBES: u32 = 64;
/// Lanes of a segment for each unit of a plane up to which a plane alone takes it.
const PLANE_LANES: u32 = 8;

/// What lowering needs to know.
pub(super) struct Lowering<'a> {
    pub plan: &'a Plan,
    pub target: &'a Target,
    pub kv: PageWords,
    /// By layer, in how many buffers its pages lie.
    pub pieces: &'a [u32],
    pub adapters: bool,
    pub vectors: &'a HashMap<WeightId, u32>,
}

/// The launches of every kernel.
pub(super) fn stages(
    plan: &Plan,
    (kv, pieces): (PageWords, &[u32]),
    adapters: bool,
    vectors: &HashMap<WeightId, u32>,
    store: &mut WeightStore<'_>,
) -> Result<Vec<Stage>> {
    let lowering = Lowering {
        plan,
        target: &plan.target,
        kv,
        pieces,
        adapters,
        vectors,
    };
    let stages = plan.kernels.iter().map(|k| lowering.stage(k, store));
    stages.collect()
}

impl Lowering<'_> {
    /// An error about a kernel.
    pub fn refuse(&self, kernel: &Kernel, reason: impl Into<String>) -> Error {
        Error::Target {
            target: self.target.name.clone(),
            kernel: kernel.name.clone(),
            reason: reason.into(),
        }
    }

    /// Whether a kernel runs over the rows that want an output.
    pub fn of_outputs(&self, kernel: &Kernel) -> bool {
        kernel.rows == L
    }

    /// Header word of the row count.
    pub fn rows_word(&self, kernel: &Kernel) -> usize {
        match self.of_outputs(kernel) {
            true => header::SELECTED,
            false => header::ROWS,
        }
    }

    /// The one layer whose pages a kernel touches.
    pub fn layer(&self, kernel: &Kernel) -> Result<Option<u32>> {
        let tails = kernel.first.iter().chain(&kernel.tails);
        let stored = tails.filter_map(|t| match t.sink {
            Sink::Key { layer } | Sink::Val { layer } => Some(layer),
            Sink::Value(_) => None,
        });
        let read = match &kernel.anchor {
            Anchor::Attention { spec, .. } => Some(spec.layer),
            _ => None,
        };
        let mut layers: Vec<u32> = stored.chain(read).collect();
        layers.sort_unstable();
        layers.dedup();
        match layers[..] {
            [] => Ok(None),
            [layer] => Ok(Some(layer)),
            _ => Err(self.refuse(kernel, "touches the pages of several layers")),
        }
    }

    /// Arena word of a value.
    pub(super) fn word(&self, value: PlanValueId) -> u32 {
        (self.plan.value(value).offset / 4) as u32
    }

    pub(super) fn activation(&self, kernel: &Kernel, operand: u16) -> Result<(u32, u32)> {
        match kernel.operands.get(operand as usize) {
            Some(Operand::Value(v)) => Ok((self.word(*v), self.plan.value(*v).width)),
            _ => Err(self.refuse(kernel, format!("operand {operand} is no activation"))),
        }
    }

    /// Where the kernel's operands lie; scalars are appended for those that a body reads.
    pub fn places(&self, kernel: &Kernel, scalars: &mut Scalars) -> Vec<Place> {
        let place = |operand: &Operand| match operand {
            Operand::Value(v) => Place::Arena {
                arg: scalars.push(self.word(*v)),
                width: self.plan.value(*v).width,
            },
            Operand::Vector(w) => Place::Vectors {
                arg: scalars.push(self.vectors.get(w).copied().unwrap_or(0)),
            },
            Operand::Rope(r) => Place::Rope {
                word: header::ROPES + r.index(),
            },
        };
        kernel.operands.iter().map(place).collect()
    }

    /// A resolved body.
    pub fn program(&self, body: &Body, places: &[Place], source: Source, width: u32) -> Program {
        Program {
            insts: body.insts.clone(),
            places: places.to_vec(),
            source,
            segment: segment(body, width),
        }
    }

    /// A resolved tail.
    pub fn store(
        &self,
        tail: &Tail,
        places: &[Place],
        source: Source,
        scalars: &mut Scalars,
    ) -> Store {
        let target = match tail.sink {
            Sink::Value(v) => StoreTarget::Arena {
                arg: scalars.push(self.word(v)),
            },
            Sink::Key { layer } => self.page(layer, 0),
            Sink::Val { layer } => self.page(layer, 1),
        };
        Store {
            width: tail.width,
            program: self.program(&tail.body, places, source, tail.width),
            target,
        }
    }

    /// Keys (`half` 0) or values of a layer.
    fn page(&self, layer: u32, half: u32) -> StoreTarget {
        StoreTarget::Page {
            half,
            halves: halves(&self.plan.kv[layer as usize]),
            kv: self.kv,
            piece: self.piece(layer),
        }
    }

    /// The launches of a kernel that takes whole rows; `changed`: of one whose rows an adapter may change.
    pub fn rows(
        &self,
        kernel: &Kernel,
        plane: u32,
        changed: bool,
        store: &mut WeightStore<'_>,
    ) -> Result<Vec<Template>> {
        let Anchor::Gather { table, .. } = kernel.anchor else {
            let mut scalars = self.scalars(kernel)?;
            let origin = match kernel.anchor {
                Anchor::SelectRows { x } => {
                    let (word, width) = self.activation(kernel, x)?;
                    Origin::Select {
                        arg: scalars.push(word),
                        width,
                    }
                }
                _ => Origin::Map,
            };
            return self.rows_launches((kernel, &kernel.tails), plane, origin, scalars, None);
        };
        let decl = &self.plan.weights[table.index()];
        let mut launches = Vec::new();
        for spans in store.cut(&[vec![table]]) {
            let spans: Vec<Span> = spans.into_iter().flatten().collect();
            let chunk = store.chunk(&spans, true)?;
            let mut scalars = self.scalars(kernel)?;
            let arg = scalars.push(chunk.offsets[0][0]);
            scalars.push(spans[0].first);
            scalars.push(spans[0].end - spans[0].first);
            let origin = Origin::Gather {
                format: decl.format,
                row_bytes: row_bytes(decl) as u32,
                arg,
                changed,
            };
            launches.extend(self.rows_launches(
                (kernel, &kernel.tails),
                plane,
                origin,
                scalars,
                Some(chunk.id),
            )?);
        }
        Ok(launches)
    }

    /// The launches that make what comes first for all rows.
    pub fn first(&self, kernel: &Kernel) -> Result<Vec<Template>> {
        let plane = match self.plan.excludes(FIRST_PLANE, kernel) {
            true => 0,
            false => self.target.plane_size,
        };
        let scalars = self.scalars(kernel)?;
        self.rows_launches((kernel, &kernel.first), plane, Origin::Map, scalars, None)
    }

    /// One launch, or one for each buffer of pages: the first of them makes what goes to the arena.
    fn rows_launches(
        &self,
        (kernel, tails): (&Kernel, &[Tail]),
        plane: u32,
        origin: Origin,
        scalars: Scalars,
        weights: Option<ChunkId>,
    ) -> Result<Vec<Template>> {
        let launch = |tails: &[Tail]| {
            self.rows_launch((kernel, tails), plane, origin, scalars.clone(), weights)
        };
        let first = launch(tails);
        let of_pages = tails.iter().filter(|t| !matches!(t.sink, Sink::Value(_)));
        let of_pages: Vec<Tail> = of_pages.cloned().collect();
        if of_pages.is_empty() {
            return Ok(vec![first]);
        }
        let others = self.for_pieces(kernel, vec![launch(&of_pages)])?;
        Ok([first]
            .into_iter()
            .chain(others.into_iter().skip(1))
            .collect())
    }

    fn rows_launch(
        &self,
        (kernel, tails): (&Kernel, &[Tail]),
        plane: u32,
        origin: Origin,
        mut scalars: Scalars,
        weights: Option<ChunkId>,
    ) -> Template {
        let places = self.places(kernel, &mut scalars);
        let source = RowsConfig::source(origin);
        let tails: Vec<Store> = tails
            .iter()
            .map(|t| self.store(t, &places, source, &mut scalars))
            .collect();
        let widest = tails.iter().map(|t| t.program.segment).max().unwrap_or(1);
        let cube = team(widest / 2, plane, self.target);
        // A plane has a few lanes of such a segment for each unit, and its sums need no barrier.
        let (units, team) = match widest <= PLANE_LANES * plane {
            true => (team(256, plane, self.target).units, cube.of_plane()),
            false => (cube.units, cube),
        };
        let config = RowsConfig {
            units,
            team,
            rows: self.rows_word(kernel),
            origin,
            tails,
        };
        let y = config.cubes();
        template(
            kernel,
            Kind::Rows(config),
            Grid::Rows { y },
            scalars,
            weights,
        )
    }

    /// The launch that finds the largest lanes of operand `x`.
    pub fn choose(&self, kernel: &Kernel, x: u16) -> Result<Template> {
        let mut scalars = Scalars::default();
        let (word, width) = self.activation(kernel, x)?;
        let arg = scalars.push(word);
        let cubes = match self.target.orders_groups {
            true => (width / CHOICE_LANES).clamp(1, CHOICE_CUBES),
            false => 1,
        };
        // A cube that reads the row alone has as many units as there may be, down to a power of two.
        let most = if cubes == 1 { 1024 } else { 256 };
        let units = 1 << most.min(self.target.max_units).ilog2();
        let config = ChooseConfig {
            units,
            rows: self.rows_word(kernel),
            width,
            cubes: cubes.min(units),
            args: [arg, scalars.push(0)],
        };
        let left = config.args[1];
        let grid = Grid::Rows { y: config.cubes };
        let mut made = template(kernel, Kind::Choose(config), grid, scalars, None);
        made.splits = Some(left);
        Ok(made)
    }

    /// The launch that makes adapters' first factor for a contraction's `parts`, whose input rows of `k` lanes are made so.
    pub fn shrink(&self, kernel: &Kernel, prologue: &Body, (k, parts): (u32, u32)) -> Template {
        let mut scalars = Scalars::default();
        let places = self.places(kernel, &mut scalars);
        let arg = scalars.push(0);
        scalars.push(0);
        let config = ShrinkConfig {
            team: team(k / 4, self.shrink_plane(kernel), self.target),
            k,
            prologue: self.program(prologue, &places, Source::None, k),
            adapters: Adapters {
                parts,
                arg,
                rows: self.rows_word(kernel),
            },
        };
        let mut made = template(
            kernel,
            Kind::Shrink(config),
            Grid::Shrink { parts },
            scalars,
            None,
        );
        made.shrunk = Some(arg);
        made
    }

    /// Units of the planes that make adapters' first factor of a kernel; 0 where they do so without.
    pub(super) fn shrink_plane(&self, kernel: &Kernel) -> u32 {
        match self.plan.excludes(SHRINK_PLANE, kernel) {
            true => 0,
            false => self.target.plane(),
        }
    }
}

/// A team with about `wanted` units: a power of two, whole planes, at most 256.
pub(super) fn team(wanted: u32, plane: u32, target: &Target) -> Team {
    let most = 256.min(target.max_units);
    Team {
        units: wanted.next_power_of_two().clamp(plane.max(32), most),
        plane,
    }
}

/// Lanes of a row that one team takes: a reduction's group, or enough for a plane.
fn segment(body: &Body, width: u32) -> u32 {
    let groups = body.insts.iter().filter_map(Inst::reduced);
    groups.max().unwrap_or(width.min(256))
}
