//! Experts: the launches that choose them and that multiply with them.

use super::kernels::experts::ExpertsConfig;
use super::kernels::route::RouteConfig;
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

    /// The launches of products with chosen experts, one for each chunk of lanes.
    pub(super) fn experts(
        &self,
        kernel: &Kernel,
        plane: u32,
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
        let mut launches = Vec::new();
        for spans in store.cut(std::slice::from_ref(weights)) {
            let spans: Vec<_> = spans.into_iter().flatten().collect();
            let chunk = store.chunk(&spans)?;
            let (first, end, starts) = (spans[0].first, spans[0].end, &chunk.offsets[0]);
            let mut scalars = Scalars::default();
            let arg = scalars.push(self.activation(kernel, *x)?.0);
            let at = routes.map_or(Ok(0), |r| self.activation(kernel, r).map(|(word, _)| word));
            scalars.push(at?);
            scalars.push(self.result(kernel)?);
            scalars.push(first);
            scalars.push(end);
            scalars.push(starts[0]);
            // Experts of equal size lie at equal distances.
            scalars.push(starts.get(1).map_or(0, |second| second - starts[0]));
            let config = ExpertsConfig {
                team: team(*k / 16, plane, self.target),
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
            let grid = Grid::Lanes {
                lanes: end - first,
                per_row: if *combine { 1 } else { *used },
            };
            let kind = Kind::Experts(config);
            launches.push(template(kernel, kind, grid, scalars, Some(chunk.buffer)));
        }
        Ok(launches)
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
