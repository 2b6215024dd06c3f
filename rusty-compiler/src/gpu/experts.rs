//! Experts: the launches that choose them and that multiply with them.

use super::kernels::experts::{ExpertsConfig, scalar};
use super::kernels::grouped::{SumConfig, sum_scalar};
use super::kernels::route::RouteConfig;
use super::kernels::tile;
use super::lower::{Lowering, team};
use super::stage::{Grid, Scalars, Template, template};
use super::text::Kind;
use super::weights::{WeightStore, row_bytes};
use crate::Result;
use crate::plan::{Anchor, F32, Kernel, Operand, Sink};
use rusty_graph::RouteSpec;

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

    /// The launches of products with chosen experts, one for each chunk of lanes: for few rows by teams of planes
    /// (or 0: in shared memory), or for many rows by tiles, with a launch that sums them where they are summed.
    pub(super) fn experts(
        &self,
        kernel: &Kernel,
        team_plane: Option<u32>,
        store: &mut WeightStore<'_>,
    ) -> Result<Vec<Template>> {
        let Anchor::Experts {
            x,
            routes,
            k,
            n,
            used,
            combine,
            weights,
        } = &kernel.anchor
        else {
            return Err(self.refuse(kernel, "is no product with experts"));
        };
        let decl = &self.plan.weights[weights[0].index()];
        let other = |w: &rusty_graph::WeightId| self.plan.weights[w.index()].format != decl.format;
        if weights.iter().any(other) {
            return Err(self.refuse(kernel, "has experts of different formats"));
        }
        let out = match (team_plane, kernel.scratch) {
            (None, Some(products)) => self.word(products),
            (None, None) if *combine => {
                return Err(self.refuse(kernel, "has no room for products to be summed"));
            }
            _ => self.result(kernel)?,
        };
        let mut launches = Vec::new();
        for spans in store.cut(std::slice::from_ref(weights)) {
            let spans: Vec<_> = spans.into_iter().flatten().collect();
            let chunk = store.chunk(&spans, false)?;
            let (first, end, starts) = (spans[0].first, spans[0].end, &chunk.offsets[0]);
            let at = routes.map_or(Ok(0), |r| self.activation(kernel, r).map(|(word, _)| word));
            let mut values = [0; scalar::COUNT];
            values[scalar::X] = self.activation(kernel, *x)?.0;
            values[scalar::ROUTES] = at?;
            values[scalar::OUT] = out;
            values[scalar::FIRST] = first;
            values[scalar::END] = end;
            values[scalar::ROWS] = starts[0];
            // Experts of equal size lie at equal distances.
            values[scalar::STRIDE] = starts.get(1).map_or(0, |second| second - starts[0]);
            let mut scalars = Scalars::default();
            let arg = scalars.append(&values);
            let config = ExpertsConfig {
                team: team(*k / 16, team_plane.unwrap_or(0), self.target),
                rows: self.rows_word(kernel),
                k: *k,
                n: *n,
                used: *used,
                routed: routes.is_some(),
                combine: *combine,
                format: decl.format,
                row_bytes: row_bytes(decl) as u32,
                arg,
            };
            let lanes = end - first;
            let (kind, grid) = match team_plane {
                Some(_) => {
                    let per_row = if *combine { 1 } else { *used };
                    (Kind::Experts(config), Grid::Lanes { lanes, per_row })
                }
                None => {
                    let tiles = lanes.div_ceil(tile::LANES);
                    let experts = weights.len() as u32;
                    (Kind::Grouped(config), Grid::Experts { tiles, experts })
                }
            };
            launches.push(template(kernel, kind, grid, scalars, Some(chunk.id)));
        }
        if let (None, true, Some(routes)) = (team_plane, *combine, routes) {
            launches.push(self.sum_products(kernel, out, *routes, *n, *used)?);
        }
        Ok(launches)
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
