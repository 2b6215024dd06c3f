//! Products of contractions, with adapters, and of experts: of lanes that a launch makes.

use super::bodies::{Rows, some_rows};
use super::{Expected, Reference, picks};
use crate::Result;
use crate::gpu::kernels::contract::{ContractConfig, scalar};
use crate::gpu::kernels::experts;
use crate::gpu::stage::Template;
use crate::gpu::text::Kind;
use crate::plan::{Anchor, ExpertPart, Part};
use crate::slots::{SiteDelta, SlotData};
use rusty_graph::interpret::{Matrix, SiteLora, ops};
use rusty_graph::{SiteId, WeightId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// Lanes from each end of those of a unit, and between.
const LANES: u32 = 16;
/// Of an expert.
const EXPERT_LANES: u32 = 8;

impl Reference<'_> {
    /// What launches of a contraction make, each of its own lanes.
    pub(super) fn contraction(
        &self,
        rows: &Rows,
        launched: &[Template],
        out: &mut Vec<Expected>,
    ) -> Result<()> {
        let x = rows.body(&self.kernel.prologue, &[], None);
        for template in launched {
            let config = match &template.spec.kind {
                Kind::Gemv(config) => config,
                Kind::Gemm(config) => &config.contract,
                Kind::Matrix(config) => &config.contract,
                _ => continue,
            };
            self.units(rows, &x, (config, &template.scalars), out)?;
        }
        Ok(())
    }

    fn units(
        &self,
        rows: &Rows,
        x: &Matrix,
        (config, scalars): (&ContractConfig, &[u32]),
        out: &mut Vec<Expected>,
    ) -> Result<()> {
        let Anchor::Contract { parts, .. } = &self.kernel.anchor else {
            return Ok(());
        };
        for (unit, placed) in self.kernel.units().iter().zip(&config.units) {
            let at = |what| scalars[placed.arg + what];
            let lanes: Vec<u32> = picks(at(scalar::FIRST), at(scalar::END), LANES).collect();
            if lanes.is_empty() {
                continue;
            }
            let mut results = vec![Matrix::default(); parts.len()];
            for part in &unit.parts {
                results[*part] = self.product(rows, x, &parts[*part], &lanes)?;
            }
            for tail in unit.tails.iter().map(|t| &self.kernel.tails[*t]) {
                let made = rows.body(&tail.body, &results, Some(&lanes));
                self.store(rows, tail, &made, Some(&lanes), out);
            }
        }
        Ok(())
    }

    /// Some lanes of a part, as the rows' adapters change them.
    fn product(&self, rows: &Rows, x: &Matrix, part: &Part, lanes: &[u32]) -> Result<Matrix> {
        let weight = self.weight_rows(part.weight, lanes)?;
        let mut out = ops::product(x, &weight);
        for (number, adapter) in (1..).zip(self.adapters) {
            let Some((site, delta)) = part.site.and_then(|s| Some((s, adapter.site(s)?))) else {
                continue;
            };
            let adapted = Adapted::new(site, delta, lanes);
            for (i, row) in rows.numbers.iter().enumerate() {
                if self.rows.slot(self.rows.of_step(*row)).0 == number {
                    let own = adapted.product(&some_rows(x, &[i]), &weight);
                    out.row_mut(i).copy_from_slice(own.row(0));
                }
            }
        }
        Ok(out)
    }

    /// The adapter that a row names.
    fn adapter(&self, row: usize) -> Option<&SlotData> {
        let slot = self.rows.slot(self.rows.of_step(row)).0 as usize;
        Some(self.adapters.get(slot.checked_sub(1)?)?)
    }

    /// What launches of products with experts leave in the end, of the first one's lanes.
    pub(super) fn experts(
        &self,
        rows: &Rows,
        launched: &[Template],
        out: &mut Vec<Expected>,
    ) -> Result<()> {
        let Anchor::Experts {
            x,
            routes,
            n,
            used,
            combine,
            parts,
            ..
        } = &self.kernel.anchor
        else {
            return Ok(());
        };
        let first = launched.first().map_or(&[][..], |t| &t.scalars[..]);
        let (Some(start), Some(end)) = (
            first.get(experts::scalar::FIRST),
            first.get(experts::scalar::END),
        ) else {
            return Ok(());
        };
        let lanes: Vec<u32> = picks(*start, *end, EXPERT_LANES).collect();
        let taken = (rows.lanes(*x), routes.map(|r| rows.lanes(r)));
        let results = parts
            .iter()
            .map(|part| self.expert_part(rows, taken, part, (*used, *combine), &lanes));
        let results = results.collect::<Result<Vec<_>>>()?;
        let each = if *combine { 1 } else { *used };
        let lanes: Vec<u32> = (0..each)
            .flat_map(|j| lanes.iter().map(move |lane| j * n + lane))
            .collect();
        for tail in &self.kernel.tails {
            let made = rows.body(&tail.body, &results, Some(&lanes));
            self.store(rows, tail, &made, Some(&lanes), out);
        }
        Ok(())
    }

    /// Some lanes of a part's products with `used` experts of each row, or of their sum.
    fn expert_part(
        &self,
        rows: &Rows,
        (x, routes): (&Matrix, Option<&Matrix>),
        part: &ExpertPart,
        (used, combine): (u32, bool),
        lanes: &[u32],
    ) -> Result<Matrix> {
        let taken = self.matrices(&part.weights, routes, used, lanes)?;
        let product = |row: usize, expert: usize, x: &Matrix| {
            let acting = self.adapter(rows.numbers[row]).zip(part.site(expert));
            let delta = acting.and_then(|(adapter, site)| Some((site, adapter.site(site)?)));
            match delta {
                Some((site, delta)) => Adapted::new(site, delta, lanes).product(x, &taken[&expert]),
                None => ops::product(x, &taken[&expert]),
            }
        };
        let results = if combine { 1 } else { used as usize };
        let mut all = Matrix::zeros(rows.numbers.len(), results * lanes.len());
        for row in 0..all.rows {
            let x = some_rows(x, &[row]);
            let product = |expert: usize, x: &Matrix| product(row, expert, x);
            let made = match routes {
                Some(routes) => ops::experts(&x, &some_rows(routes, &[row]), product, combine),
                None => ops::head_products(&x, product, used as usize),
            };
            all.row_mut(row).copy_from_slice(made.row(0));
        }
        Ok(all)
    }

    /// Some lanes of the experts that rows take, and of the first, which tells all experts' shape; without routes of all.
    fn matrices(
        &self,
        weights: &[WeightId],
        routes: Option<&Matrix>,
        used: u32,
        lanes: &[u32],
    ) -> Result<BTreeMap<usize, Matrix>> {
        let taken = match routes {
            Some(routes) => chosen(routes, used),
            None => (0..used as usize).collect(),
        };
        let mut all = BTreeMap::new();
        for expert in [0].into_iter().chain(taken) {
            if let Entry::Vacant(entry) = all.entry(expert) {
                entry.insert(self.weight_rows(weights[expert], lanes)?);
            }
        }
        Ok(all)
    }
}

/// What an adapter does to some lanes of a site.
struct Adapted<'a> {
    delta: &'a SiteDelta,
    low: SiteLora,
    lanes: &'a [u32],
}

impl<'a> Adapted<'a> {
    fn new(site: SiteId, delta: &'a SiteDelta, lanes: &'a [u32]) -> Self {
        let rank = delta.rank as usize;
        let mut b = vec![0.0; lanes.len() * rank];
        for (row, lane) in b.chunks_exact_mut(rank.max(1)).zip(lanes) {
            delta.b_row(*lane as usize, row);
        }
        let low = SiteLora {
            site,
            a: delta.a.as_ref().map_or(Vec::new(), |a| a.values()),
            b,
            scale: 1.0,
        };
        Self { delta, low, lanes }
    }

    /// The product of one row.
    fn product(&self, x: &Matrix, weight: &Matrix) -> Matrix {
        let mut gained = x.clone();
        let gains = self.delta.gain_in.iter().flat_map(|g| g.iter());
        (gained.row_mut(0).iter_mut().zip(gains)).for_each(|(x, gain)| *x *= gain);
        let mut out = ops::product(&gained, weight);
        let of = |table: &Option<Arc<[f32]>>, lane: u32, none: f32| {
            table.as_ref().map_or(none, |t| t[lane as usize])
        };
        for (y, lane) in out.row_mut(0).iter_mut().zip(self.lanes) {
            *y *= of(&self.delta.gain_out, *lane, 1.0);
        }
        ops::add_delta(&mut out, x, &self.low);
        for (y, lane) in out.row_mut(0).iter_mut().zip(self.lanes) {
            *y += of(&self.delta.bias, *lane, 0.0);
        }
        out
    }
}

/// Experts that rows take.
fn chosen(routes: &Matrix, used: u32) -> Vec<usize> {
    let rows = (0..routes.rows).map(|row| &routes.row(row)[..used as usize]);
    rows.flatten().map(|expert| *expert as usize).collect()
}
