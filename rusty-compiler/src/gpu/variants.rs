//! From a plan kernel's variants to the launches that a step chooses among.

use super::lower::Lowering;
use super::stage::{Choice, Stage, Template, When};
use super::text::Kind;
use super::weights::WeightStore;
use crate::Result;
use crate::plan::exclusion::{
    FIRST_INSIDE, FIRST_PLANE, HALF_TILES, MATRIX_ATTENTION, ROW_ATTENTION, SHRINK_INSIDE,
    SHRINK_PLANE,
};
use crate::plan::{Anchor, Exclusion, ExpertWay, Implementation, Kernel, Way, Work};

/// What a variant launches.
struct Launches {
    /// In steps without adapters, or where those do not act on the kernel.
    plain: Vec<(When, Vec<Template>)>,
    /// In steps with adapters.
    adapted: Option<Vec<Template>>,
}

impl Launches {
    /// The same in all steps.
    fn always(templates: Vec<Template>) -> Self {
        Self {
            plain: vec![(When::Always, templates)],
            adapted: None,
        }
    }
}

impl Lowering<'_> {
    /// The launches of a kernel.
    pub fn stage(&self, kernel: &Kernel, store: &mut WeightStore<'_>) -> Result<Stage> {
        let mut stage = Stage {
            selected: self.of_outputs(kernel),
            layer: self.layer(kernel)?,
            plain: Vec::new(),
            adapted: Vec::new(),
        };
        for variant in &kernel.variants {
            let launches = self.launches(kernel, variant.implementation, store)?;
            let choice = |(when, templates): (When, Vec<Template>)| Choice {
                rows: variant.rows.clone(),
                when,
                variant: Exclusion::of(
                    self.plan,
                    kernel,
                    replaceable(variant.implementation, &templates),
                ),
                templates,
            };
            let adapted = launches.adapted.map(|templates| (When::Always, templates));
            stage.plain.extend(launches.plain.into_iter().map(choice));
            stage.adapted.extend(adapted.map(choice));
        }
        Ok(stage)
    }

    /// What an implementation of a kernel launches.
    fn launches(
        &self,
        kernel: &Kernel,
        implementation: Implementation,
        store: &mut WeightStore<'_>,
    ) -> Result<Launches> {
        match implementation.work() {
            Work::Contraction(way) => self.contraction(kernel, way, store),
            Work::Attention => self.attention(kernel),
            Work::Route => self.choice_of_experts(kernel),
            Work::Experts(way) => self.products(kernel, way, store),
            Work::Rows { planes } => {
                let plane = if planes { self.target.plane_size } else { 0 };
                self.whole_rows(kernel, plane, store)
            }
            Work::Cpu => {
                Err(self.refuse(kernel, format!("{} runs on CPUs", implementation.name())))
            }
        }
    }

    /// The launches of a contraction, with adapters too where they may act on it.
    fn contraction(
        &self,
        kernel: &Kernel,
        way: Way,
        store: &mut WeightStore<'_>,
    ) -> Result<Launches> {
        let first = match self.plan.makes_first_apart(kernel, way) {
            true => self.first(kernel)?,
            false => Vec::new(),
        };
        let behind = |launches: Vec<Template>| first.iter().cloned().chain(launches).collect();
        let plain = self.contract(kernel, way, None, store)?;
        let mut launches = Launches::always(behind(plain));
        if self.adapters && kernel.has_sites() {
            let rows = Some(self.rows_word(kernel));
            let adapted = self.contract(kernel, way, rows, store)?;
            launches.adapted = Some(behind(adapted));
        }
        Ok(launches)
    }

    /// The launches of attention: of tiles, and of rows alone, which make their heads themselves where none sees another's keys; else a
    /// launch before both makes them. Where no kernel is for rows alone, single rows are tiles of one, which find their heads made.
    fn attention(&self, kernel: &Kernel) -> Result<Launches> {
        let Anchor::Attention { q, spec } = &kernel.anchor else {
            return Err(self.refuse(kernel, "is no attention"));
        };
        let heads = match kernel.first[..] {
            [] => None,
            _ => Some(self.first(kernel)?),
        };
        let tiles = self.for_pieces(kernel, vec![self.tile_attention(kernel, *q, spec)?])?;
        let rows = self.for_pieces(kernel, self.row_attention(kernel, *q, spec)?)?;
        let (when, kinds) = match self.has_rows_alone() {
            true => (
                When::Decode(false),
                [(When::Tiles, tiles), (When::Alone, rows)],
            ),
            false => (
                When::Always,
                [(When::Decode(true), rows), (When::Decode(false), tiles)],
            ),
        };
        let heads = heads.map(|launches| (when, launches));
        let all = heads.into_iter().chain(kinds);
        Ok(Launches {
            plain: all.collect(),
            adapted: None,
        })
    }

    /// The launches of products with experts, with adapters too where they may act on them.
    fn products(
        &self,
        kernel: &Kernel,
        way: ExpertWay,
        store: &mut WeightStore<'_>,
    ) -> Result<Launches> {
        let mut launches = Launches::always(self.experts(kernel, way, false, store)?);
        if self.adapters && kernel.has_sites() {
            launches.adapted = Some(self.experts(kernel, way, true, store)?);
        }
        Ok(launches)
    }

    /// The launch that chooses experts.
    fn choice_of_experts(&self, kernel: &Kernel) -> Result<Launches> {
        let Anchor::Route { x, bias, spec } = &kernel.anchor else {
            return Err(self.refuse(kernel, "chooses no experts"));
        };
        let launch = self.route(kernel, *x, *bias, spec)?;
        Ok(Launches::always(vec![launch]))
    }

    /// The launches of a kernel that takes whole rows, by teams with planes or (0) without.
    fn whole_rows(
        &self,
        kernel: &Kernel,
        plane: u32,
        store: &mut WeightStore<'_>,
    ) -> Result<Launches> {
        let mut launches = match kernel.anchor {
            Anchor::ArgMax { x } => {
                let launch = self.choose(kernel, x)?;
                return Ok(Launches {
                    plain: vec![(When::ArgMax, vec![launch])],
                    adapted: None,
                });
            }
            Anchor::Map | Anchor::Gather { .. } | Anchor::SelectRows { .. } => {
                Launches::always(self.rows(kernel, plane, false, store)?)
            }
            Anchor::Contract { .. }
            | Anchor::Route { .. }
            | Anchor::Experts { .. }
            | Anchor::Attention { .. } => {
                return Err(self.refuse(kernel, "takes more than rows as they are"));
            }
        };
        if self.plan.is_for_hidden(kernel) {
            launches.plain[0].0 = When::Hidden;
        }
        if self.adapters && matches!(kernel.anchor, Anchor::Gather { .. }) {
            launches.adapted = Some(self.rows(kernel, plane, true, store)?);
        }
        Ok(launches)
    }
}

/// The name of what there is another kernel for, where launches go wrong: of the most particular thing that they do.
fn replaceable(implementation: Implementation, templates: &[Template]) -> &'static str {
    let particular = templates.iter().find_map(|t| match &t.spec.kind {
        Kind::Shrink(config) if config.team.plane > 0 => Some(SHRINK_PLANE),
        Kind::Pack(config) if config.contract.adapters.is_some() && config.team.plane > 0 => {
            Some(SHRINK_PLANE)
        }
        Kind::Gemv(config) if config.shrinks => Some(SHRINK_INSIDE),
        Kind::Gemv(config) if config.first.is_some() => Some(FIRST_INSIDE),
        Kind::Gemm(config) if config.halves => Some(HALF_TILES),
        Kind::MatrixAttention(_) => Some(MATRIX_ATTENTION),
        Kind::RowAttention(_) => Some(ROW_ATTENTION),
        _ => None,
    });
    // What comes first is the least particular.
    let first = |t: &Template| matches!(&t.spec.kind, Kind::Rows(c) if c.team.plane > 0);
    let of_rows = matches!(implementation.work(), Work::Rows { .. });
    match particular {
        Some(name) => name,
        None if !of_rows && templates.iter().any(first) => FIRST_PLANE,
        None => implementation.name(),
    }
}
