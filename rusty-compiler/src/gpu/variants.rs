//! From a plan kernel's variants to the launches that a step chooses among.

use super::contraction::{Vectors, Way};
use super::kernels::matrix_product::MatrixTile;
use super::lower::Lowering;
use super::stage::{Choice, Stage, Template, When};
use super::weights::WeightStore;
use crate::Result;
use crate::plan::{Anchor, Implementation, Kernel};

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
        let plane = self.target.plane_size;
        let floats = |plane| Vectors {
            plane,
            bytes: false,
        };
        let bytes = Vectors {
            plane: self.target.plane(),
            bytes: true,
        };
        let matrix = |rows, lanes| Way::Matrix(MatrixTile { rows, lanes });
        match implementation {
            Implementation::GemvBytes => self.contraction(kernel, Way::Vector(bytes), store),
            Implementation::GemvPlane => {
                self.contraction(kernel, Way::Vector(floats(plane)), store)
            }
            Implementation::GemvShared => self.contraction(kernel, Way::Vector(floats(0)), store),
            Implementation::GemvRowsBytes => self.contraction(kernel, Way::Rows(bytes), store),
            Implementation::GemvRowsPlane => {
                self.contraction(kernel, Way::Rows(floats(plane)), store)
            }
            Implementation::GemvRowsShared => self.contraction(kernel, Way::Rows(floats(0)), store),
            Implementation::GemmTiled => self.contraction(kernel, Way::Tile, store),
            Implementation::GemmMatrix32 => self.contraction(kernel, matrix(32, 32), store),
            Implementation::GemmMatrix64 => self.contraction(kernel, matrix(64, 64), store),
            Implementation::GemmMatrix128 => self.contraction(kernel, matrix(128, 64), store),
            Implementation::AttentionFlash => self.attention(kernel),
            Implementation::Route => self.choice_of_experts(kernel),
            Implementation::ExpertsBytes => self.products(kernel, Some(bytes), store),
            Implementation::ExpertsPlane => self.products(kernel, Some(floats(plane)), store),
            Implementation::ExpertsShared => self.products(kernel, Some(floats(0)), store),
            Implementation::ExpertsGrouped => self.products(kernel, None, store),
            Implementation::RowsPlane => self.whole_rows(kernel, plane, store),
            Implementation::RowsShared => self.whole_rows(kernel, 0, store),
            Implementation::CpuContract
            | Implementation::CpuAttention
            | Implementation::CpuExperts
            | Implementation::CpuRows => {
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
        let plain = self.contract(kernel, way, None, store)?;
        let mut launches = Launches::always(plain);
        if self.adapters && kernel.has_sites() {
            let rows = Some(self.rows_word(kernel));
            launches.adapted = Some(self.contract(kernel, way, rows, store)?);
        }
        Ok(launches)
    }

    /// The launches of attention: by rows where a step only decodes, by tiles else, behind the launch that makes heads.
    fn attention(&self, kernel: &Kernel) -> Result<Launches> {
        let Anchor::Attention { q, spec } = &kernel.anchor else {
            return Err(self.refuse(kernel, "is no attention"));
        };
        let decode = vec![self.row_attention(kernel, *q, spec)?];
        let heads = (!kernel.heads.is_empty()).then(|| self.heads(kernel));
        let tiles = self.tile_attention(kernel, *q, spec)?;
        let tiles = heads.into_iter().chain([tiles]).collect();
        Ok(Launches {
            plain: vec![(When::Decode(true), decode), (When::Decode(false), tiles)],
            adapted: None,
        })
    }

    /// The launches of products with experts.
    fn products(
        &self,
        kernel: &Kernel,
        few: Option<Vectors>,
        store: &mut WeightStore<'_>,
    ) -> Result<Launches> {
        Ok(Launches::always(self.experts(kernel, few, store)?))
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
