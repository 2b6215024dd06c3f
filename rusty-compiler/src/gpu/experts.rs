//! Experts: the launches that choose them and that multiply with them.

mod grouped;

use super::contraction::Vectors;
use super::kernels::body::{Place, Program, Source};
use super::kernels::contract::{ContractConfig, PartConfig, UnitConfig};
use super::kernels::expert_results::{self, ExpertResultsConfig};
use super::kernels::experts::{ExpertsConfig, FewExpertsConfig, Summing, scalar};
use super::kernels::reduce::Team;
use super::kernels::route::RouteConfig;
use super::kernels::sink::Store;
use super::lower::Lowering;
use super::residence::ChunkId;
use super::stage::{Grid, Scalars, Template, template};
use super::text::Kind;
use super::weights::{WeightStore, row_bytes};
use crate::Result;
use crate::plan::{Anchor, ExpertPart, ExpertWay, F32, Inst, Kernel, Operand, Sink};
use rusty_backend::Language;
use rusty_graph::{RouteSpec, WeightDecl, WeightId};

/// Units of a cube of products of few rows, and outputs of a team: an expert has few, but a row takes several experts.
const UNITS: u32 = 128;
const LANES: u32 = 2;
/// Outputs of a cube whose teams have experts of their own, for all of which it makes the inputs, and bytes of shared memory that it may
/// take for those: a processor is to have several such cubes.
const SHARED_LANES: u32 = 4;
const SHARED_ROOM: u32 = 48 << 10;

/// A kernel's products with experts.
struct Products<'a> {
    x: u16,
    routes: Option<u16>,
    /// Experts that there are.
    count: usize,
    /// Of each part, how all its experts are stored.
    decls: Vec<&'a WeightDecl>,
    config: ExpertsConfig,
}

impl<'a> Products<'a> {
    fn of(lowering: &Lowering<'a>, kernel: &'a Kernel) -> Result<Self> {
        let Anchor::Experts {
            x,
            routes,
            k,
            n,
            used,
            combine,
            parts,
        } = &kernel.anchor
        else {
            return Err(lowering.refuse(kernel, "is no product with experts"));
        };
        let decl = |w: &WeightId| &lowering.plan.weights[w.index()];
        let stored = |part: &ExpertPart| {
            let first = decl(part.weights.first()?);
            let alike = |w: &WeightId| decl(w).format == first.format;
            part.weights.iter().all(alike).then_some(first)
        };
        let decls = parts.iter().map(stored).collect::<Option<Vec<_>>>();
        let mixed = || lowering.refuse(kernel, "has experts of different formats");
        Ok(Self {
            x: *x,
            routes: *routes,
            count: ExpertPart::experts(parts),
            decls: decls.ok_or_else(mixed)?,
            config: ExpertsConfig {
                rows: lowering.rows_word(kernel),
                k: *k,
                n: *n,
                used: *used,
                routed: routes.is_some(),
                combine: *combine,
                parts: parts.len() as u32,
            },
        })
    }
}

/// What launches of products leave behind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// What tails make of them.
    Results,
    /// The products, from an arena word on.
    Products(u32),
}

/// Lanes of all experts in one chunk of the weights.
struct LanesOfExperts {
    id: ChunkId,
    first: u32,
    end: u32,
    /// Of each part, the byte of the first expert's row of the first lane, and bytes from an expert to the next.
    parts: Vec<[u32; 2]>,
}

impl Lowering<'_> {
    /// The launch that chooses experts by the logits that operand `x` holds, and a bias.
    pub(super) fn route(
        &self,
        kernel: &Kernel,
        x: u16,
        bias: Option<u16>,
        spec: &RouteSpec,
    ) -> Result<Template> {
        let mut scalars = Scalars::default();
        let arg = scalars.push(self.activation(kernel, x)?.0);
        scalars.push(self.result(kernel)?);
        let bias = bias.map(|bias| match kernel.operands.get(bias as usize) {
            Some(Operand::Vector(w)) => Ok(scalars.push(self.vectors.get(w).copied().unwrap_or(0))),
            _ => Err(self.refuse(kernel, "its bias is no vector")),
        });
        let config = RouteConfig {
            bias: bias.transpose()?,
            groups: spec.groups,
            rows: self.rows_word(kernel),
            experts: spec.experts,
            used: spec.used,
            score: spec.score,
            normalize: spec.normalize,
            scale: F32::new(spec.scale),
            arg,
        };
        self.fits(kernel, config.shared_bytes())?;
        let grid = Grid::Rows { y: 1 };
        Ok(template(kernel, Kind::Route(config), grid, scalars, None))
    }

    /// The launches of products with chosen experts, one for each chunk of lanes: for few rows as matrix-vector products, for many by
    /// tiles, one for each part. A launch makes of them what is stored where they do not do so
    /// themselves: of tiles that are not stored as they are, and with adapters.
    pub(super) fn experts(
        &self,
        kernel: &Kernel,
        way: ExpertWay,
        adapted: bool,
        store: &mut WeightStore<'_>,
    ) -> Result<Vec<Template>> {
        let products = Products::of(self, kernel)?;
        let as_they_are = kernel.stores_products();
        let left = match kernel.scratch {
            _ if matches!(way, ExpertWay::Few(_)) && !adapted => Left::Results,
            Some(scratch) => Left::Products(self.word(scratch)),
            None if as_they_are => Left::Products(self.result(kernel)?),
            None => return Err(self.refuse(kernel, "has no room for products")),
        };
        let mut launches = Vec::new();
        for chunk in self.expert_chunks(kernel, &products, store)? {
            match way {
                ExpertWay::Few(sums) => {
                    let vectors = self.vectors_of(sums);
                    launches.push(self.few_experts(kernel, &products, &chunk, left, vectors)?);
                }
                ExpertWay::Tiles | ExpertWay::Matrix => {
                    let on_units = way == ExpertWay::Matrix;
                    launches.extend(self.grouped(kernel, &products, &chunk, left, on_units)?);
                }
            }
        }
        match left {
            Left::Products(made) if adapted || !as_they_are => {
                launches.push(self.expert_results(kernel, &products, made, adapted)?);
            }
            _ => {}
        }
        Ok(launches)
    }

    /// The experts of all parts, cut by lanes where they do not fit a binding together.
    fn expert_chunks(
        &self,
        kernel: &Kernel,
        products: &Products<'_>,
        store: &mut WeightStore<'_>,
    ) -> Result<Vec<LanesOfExperts>> {
        let Anchor::Experts { parts, .. } = &kernel.anchor else {
            return Ok(Vec::new());
        };
        let all = parts.iter().flat_map(|part| &part.weights);
        let cuts = store.cut(&[all.copied().collect()]);
        let spans = cuts.into_iter().flatten().flatten();
        let chunk = |span| {
            let spans = [span];
            let chunk = store.chunk(&spans, false)?;
            // Experts of equal size lie at equal distances.
            let starts = chunk.offsets[0].chunks(products.count);
            let place = |s: &[u32]| [s[0], s.get(1).map_or(0, |second| second - s[0])];
            Ok(LanesOfExperts {
                id: chunk.id,
                first: spans[0].first,
                end: spans[0].end,
                parts: starts.map(place).collect(),
            })
        };
        spans.map(chunk).collect()
    }

    /// Scalars of a launch of products with a chunk's experts of some parts.
    fn expert_scalars(
        &self,
        kernel: &Kernel,
        products: &Products<'_>,
        chunk: &LanesOfExperts,
        parts: &[[u32; 2]],
    ) -> Result<Scalars> {
        let mut values = vec![0; scalar::count(parts.len())];
        values[scalar::FIRST] = chunk.first;
        values[scalar::END] = chunk.end;
        values[scalar::X] = self.activation(kernel, products.x)?.0;
        values[scalar::ROUTES] = self.routes(kernel, products)?;
        for (p, [rows, stride]) in parts.iter().enumerate() {
            values[scalar::rows(p)] = *rows;
            values[scalar::stride(p)] = *stride;
        }
        Ok(Scalars(values))
    }

    /// The launch of few rows' products with a chunk of lanes.
    fn few_experts(
        &self,
        kernel: &Kernel,
        products: &Products<'_>,
        chunk: &LanesOfExperts,
        left: Left,
        vectors: Vectors,
    ) -> Result<Template> {
        let mut scalars = self.expert_scalars(kernel, products, chunk, &chunk.parts)?;
        let tails = match left {
            Left::Results => self.expert_tails(kernel, &mut scalars),
            Left::Products(out) => {
                scalars.0[scalar::OUT] = out;
                Vec::new()
            }
        };
        let mut config = FewExpertsConfig {
            experts: products.config,
            product: self.product_of_expert(products.config, &products.decls, vectors),
            sums: Summing::Nothing,
            tails,
        };
        if products.config.combine && left == Left::Results {
            config = self.summed(config);
        }
        self.fits(kernel, config.shared_bytes())?;
        let lanes = chunk.end - chunk.first;
        let tiles = lanes.div_ceil(config.cube_lanes());
        scalars.0[scalar::TILES] = tiles;
        let per_row = config.results_per_row();
        let grid = Grid::Results { tiles, per_row };
        let kind = Kind::Experts(config);
        Ok(template(kernel, kind, grid, scalars, Some(chunk.id)))
    }

    /// The same for products that are summed: side by side, where there is room for their inputs.
    fn summed(&self, config: FewExpertsConfig) -> FewExpertsConfig {
        let mut beside = config.clone();
        beside.product.lanes = SHARED_LANES;
        let room = SHARED_ROOM.min(self.target.shared_bytes / 2);
        match beside.may_sum_side_by_side(room) {
            true => FewExpertsConfig {
                sums: Summing::SideBySide,
                ..beside
            },
            false => FewExpertsConfig {
                sums: Summing::InTurn,
                ..config
            },
        }
    }

    /// The products of some parts with an expert as a contraction of one unit.
    fn product_of_expert(
        &self,
        ExpertsConfig { rows, k, .. }: ExpertsConfig,
        parts: &[&WeightDecl],
        vectors: Vectors,
    ) -> ContractConfig {
        let input = Place::Arena {
            arg: scalar::X,
            width: k,
        };
        let part = |(p, decl): (usize, &&WeightDecl)| PartConfig {
            format: decl.format,
            row_bytes: row_bytes(decl) as u32,
            arg: scalar::rows(p),
        };
        ContractConfig {
            first: None,
            team: Team {
                units: UNITS.min(self.target.max_units),
                plane: vectors.plane,
            },
            rows,
            k,
            prologue: Program {
                insts: vec![Inst::Load(0)],
                places: vec![input],
                source: Source::None,
                segment: k,
            },
            parts: parts.iter().enumerate().map(part).collect(),
            units: vec![UnitConfig {
                parts: (0..parts.len()).collect(),
                tails: Vec::new(),
                arg: scalar::FIRST,
            }],
            adapters: None,
            lanes: LANES,
            cube_rows: 1,
            wide: self.target.language == Language::CudaC,
            bytes: vectors.bytes,
            ahead: false,
            shrinks: false,
        }
    }

    /// The launch that makes of products, which lie from arena word `made` on, what is stored, with adapters or without.
    fn expert_results(
        &self,
        kernel: &Kernel,
        products: &Products<'_>,
        made: u32,
        adapted: bool,
    ) -> Result<Template> {
        use expert_results::scalar;
        let mut values = [0; scalar::COUNT];
        values[scalar::PRODUCTS] = made;
        values[scalar::X] = self.activation(kernel, products.x)?.0;
        values[scalar::ROUTES] = self.routes(kernel, products)?;
        let mut scalars = Scalars(values.to_vec());
        let config = ExpertResultsConfig {
            experts: products.config,
            adapted: adapted.then_some(products.count as u32),
            tails: self.expert_tails(kernel, &mut scalars),
        };
        self.fits(kernel, config.shared_bytes())?;
        let grid = Grid::Tiles {
            tiles: config.cubes_per_row(),
            rows: 1,
        };
        let kind = Kind::ExpertResults(config);
        Ok(template(kernel, kind, grid, scalars, None))
    }

    /// What becomes of products or of their sums.
    fn expert_tails(&self, kernel: &Kernel, scalars: &mut Scalars) -> Vec<Store> {
        let places = self.places(kernel, scalars);
        let tails = kernel.tails.iter();
        tails
            .map(|tail| self.store(tail, &places, Source::Given, scalars))
            .collect()
    }

    /// Arena word of the routes; 0 where every row takes all.
    fn routes(&self, kernel: &Kernel, products: &Products<'_>) -> Result<u32> {
        let routes = products.routes.map(|r| self.activation(kernel, r));
        Ok(routes.transpose()?.map_or(0, |(word, _)| word))
    }

    /// Arena word of a kernel's only result.
    fn result(&self, kernel: &Kernel) -> Result<u32> {
        match kernel.tails[..] {
            [ref tail] => match tail.sink {
                Sink::Value(v) => Ok(self.word(v)),
                _ => Err(self.refuse(kernel, "stores to the cache")),
            },
            _ => Err(self.refuse(kernel, "has more than one result")),
        }
    }
}
