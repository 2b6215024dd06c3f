//! Experts: the launches that choose them and that multiply with them.

use super::contraction::Vectors;
use super::kernels::body::{Place, Program, Source};
use super::kernels::contract::{ContractConfig, PartConfig, UnitConfig};
use super::kernels::expert_deltas::{self, ExpertDeltasConfig};
use super::kernels::experts::{ExpertsConfig, FewExpertsConfig, scalar};
use super::kernels::grouped::{SumConfig, TILE, sum_scalar};
use super::kernels::reduce::Team;
use super::kernels::route::RouteConfig;
use super::kernels::tile;
use super::lower::Lowering;
use super::stage::{Grid, Scalars, Template, template};
use super::text::Kind;
use super::weights::{WeightStore, row_bytes};
use crate::Result;
use crate::plan::{Anchor, F32, Inst, Kernel, Operand, Sink};
use rusty_backend::Language;
use rusty_graph::{RouteSpec, WeightDecl, WeightId};

/// Units of a cube of products of few rows, and outputs of a team: an expert has few, but a row takes several experts.
const UNITS: u32 = 128;
const LANES: u32 = 2;

/// A kernel's products with experts.
struct Products<'a> {
    x: u16,
    routes: Option<u16>,
    k: u32,
    n: u32,
    used: u32,
    combine: bool,
    weights: &'a Vec<WeightId>,
    decl: &'a WeightDecl,
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
            weights,
            ..
        } = &kernel.anchor
        else {
            return Err(lowering.refuse(kernel, "is no product with experts"));
        };
        let decl = &lowering.plan.weights[weights[0].index()];
        let other = |w: &WeightId| lowering.plan.weights[w.index()].format != decl.format;
        if weights.iter().any(other) {
            return Err(lowering.refuse(kernel, "has experts of different formats"));
        }
        Ok(Self {
            x: *x,
            routes: *routes,
            k: *k,
            n: *n,
            used: *used,
            combine: *combine,
            weights,
            decl,
        })
    }
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
        let grid = Grid::Rows { y: 1 };
        Ok(template(kernel, Kind::Route(config), grid, scalars, None))
    }

    /// The launches of products with chosen experts, one for each chunk of lanes: for few rows as matrix-vector products, or, where it
    /// is not said how, for many rows by tiles. Where they are summed, and do not do so themselves, a launch sums them; with adapters
    /// one applies these, and sums what is summed.
    pub(super) fn experts(
        &self,
        kernel: &Kernel,
        few: Option<Vectors>,
        adapted: bool,
        store: &mut WeightStore<'_>,
    ) -> Result<Vec<Template>> {
        let products = Products::of(self, kernel)?;
        let sums = products.combine && few.is_some() && !adapted;
        let out = match (products.combine && !sums, kernel.scratch) {
            (true, Some(products)) => self.word(products),
            (true, None) => {
                return Err(self.refuse(kernel, "has no room for products to be summed"));
            }
            _ => self.result(kernel)?,
        };
        let config = self.experts_config(kernel, &products, sums);
        let mut launches = Vec::new();
        for spans in store.cut(std::slice::from_ref(products.weights)) {
            let spans: Vec<_> = spans.into_iter().flatten().collect();
            let chunk = store.chunk(&spans, false)?;
            let (first, end, starts) = (spans[0].first, spans[0].end, &chunk.offsets[0]);
            let mut values = [0; scalar::COUNT];
            values[scalar::FIRST] = first;
            values[scalar::END] = end;
            values[scalar::ROWS] = starts[0];
            // Experts of equal size lie at equal distances.
            values[scalar::STRIDE] = starts.get(1).map_or(0, |second| second - starts[0]);
            values[scalar::X] = self.activation(kernel, products.x)?.0;
            values[scalar::ROUTES] = self.routes(kernel, &products)?;
            values[scalar::OUT] = out;
            let lanes = end - first;
            let (kind, grid) = match few {
                Some(vectors) => {
                    let config = self.few_experts(kernel, config, vectors)?;
                    let tiles = lanes.div_ceil(config.product.cube_lanes());
                    values[scalar::TILES] = tiles;
                    let per_row = config.experts.results_per_row();
                    (Kind::Experts(config), Grid::Results { tiles, per_row })
                }
                None => {
                    let tiles = lanes.div_ceil(TILE.lanes);
                    let experts = products.weights.len() as u32;
                    (Kind::Grouped(config), Grid::Experts { tiles, experts })
                }
            };
            let scalars = Scalars(values.to_vec());
            launches.push(template(kernel, kind, grid, scalars, Some(chunk.id)));
        }
        match products.routes {
            _ if adapted => launches.push(self.expert_deltas(kernel, &products, config, out)?),
            Some(routes) if products.combine && !sums => {
                launches.push(self.sum_products(kernel, out, routes, products.n, products.used)?);
            }
            _ => {}
        }
        Ok(launches)
    }

    /// What kernels of products have in common; their scalars are a launch's only ones.
    fn experts_config(
        &self,
        kernel: &Kernel,
        products: &Products<'_>,
        sums: bool,
    ) -> ExpertsConfig {
        ExpertsConfig {
            rows: self.rows_word(kernel),
            k: products.k,
            n: products.n,
            used: products.used,
            routed: products.routes.is_some(),
            combine: products.combine,
            sums,
            format: products.decl.format,
            row_bytes: row_bytes(products.decl) as u32,
        }
    }

    /// The same for few rows.
    fn few_experts(
        &self,
        kernel: &Kernel,
        experts: ExpertsConfig,
        vectors: Vectors,
    ) -> Result<FewExpertsConfig> {
        let input = Place::Arena {
            arg: scalar::X,
            width: experts.k,
        };
        let product = ContractConfig {
            first: None,
            team: Team {
                units: UNITS.min(self.target.max_units),
                plane: vectors.plane,
            },
            rows: experts.rows,
            k: experts.k,
            prologue: Program {
                insts: vec![Inst::Load(0)],
                places: vec![input],
                source: Source::None,
                segment: experts.k,
            },
            parts: vec![PartConfig {
                format: experts.format,
                row_bytes: experts.row_bytes,
                arg: scalar::ROWS,
            }],
            units: vec![UnitConfig {
                parts: vec![0],
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
        };
        self.fits(kernel, product.row_bytes())?;
        Ok(FewExpertsConfig { experts, product })
    }

    /// The launch that applies adapters to products, which lie from arena word `made` on, and sums those that are summed.
    fn expert_deltas(
        &self,
        kernel: &Kernel,
        products: &Products<'_>,
        experts: ExpertsConfig,
        made: u32,
    ) -> Result<Template> {
        use expert_deltas::scalar;
        let mut values = [0; scalar::COUNT];
        values[scalar::PRODUCTS] = made;
        values[scalar::X] = self.activation(kernel, products.x)?.0;
        values[scalar::ROUTES] = self.routes(kernel, products)?;
        values[scalar::OUT] = self.result(kernel)?;
        let config = ExpertDeltasConfig {
            experts,
            count: products.weights.len() as u32,
        };
        let grid = Grid::Tiles {
            tiles: config.cubes_per_row(),
            rows: 1,
        };
        let scalars = Scalars(values.to_vec());
        Ok(template(
            kernel,
            Kind::ExpertDeltas(config),
            grid,
            scalars,
            None,
        ))
    }

    /// Arena word of the routes; 0 where every row takes all.
    fn routes(&self, kernel: &Kernel, products: &Products<'_>) -> Result<u32> {
        let routes = products.routes.map(|r| self.activation(kernel, r));
        Ok(routes.transpose()?.map_or(0, |(word, _)| word))
    }

    /// The launch that sums products, which lie from arena word `products` on.
    fn sum_products(
        &self,
        kernel: &Kernel,
        products: u32,
        routes: u16,
        n: u32,
        used: u32,
    ) -> Result<Template> {
        let mut values = [0; sum_scalar::COUNT];
        values[sum_scalar::PRODUCTS] = products;
        values[sum_scalar::ROUTES] = self.activation(kernel, routes)?.0;
        values[sum_scalar::OUT] = self.result(kernel)?;
        let mut scalars = Scalars::default();
        let arg = scalars.append(&values);
        let config = SumConfig {
            rows: self.rows_word(kernel),
            n,
            used,
            arg,
        };
        let grid = Grid::Rows {
            y: n.div_ceil(tile::UNITS),
        };
        let kind = Kind::SumProducts(config);
        Ok(template(kernel, kind, grid, scalars, None))
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
