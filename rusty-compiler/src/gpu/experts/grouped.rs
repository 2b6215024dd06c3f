//! Launches of products with experts of many rows, by tiles.

use super::{LanesOfExperts, Left, Products};
use crate::Result;
use crate::gpu::kernels::experts::{ExpertsConfig, scalar};
use crate::gpu::kernels::grouped::{GroupedConfig, Tiles};
use crate::gpu::kernels::grouped_matrix;
use crate::gpu::kernels::matrix::MatrixConfig;
use crate::gpu::lower::Lowering;
use crate::gpu::stage::{Grid, Template, template};
use crate::gpu::text::Kind;
use crate::gpu::weights::row_bytes;
use crate::plan::{Kernel, Sums};
use rusty_backend::Language;
use rusty_graph::WeightDecl;

impl Lowering<'_> {
    /// The launches of many rows' products with a chunk of lanes, one for each part, on matrix units or not.
    pub(super) fn grouped(
        &self,
        kernel: &Kernel,
        products: &Products<'_>,
        chunk: &LanesOfExperts,
        left: Left,
        on_units: bool,
    ) -> Result<Vec<Template>> {
        let Left::Products(out) = left else {
            return Err(self.refuse(kernel, "has no room for products"));
        };
        let experts = products.count as u32;
        let parts = (0u32..).zip(&products.decls).zip(&chunk.parts);
        let launch = |((p, decl), place): ((u32, &&WeightDecl), &[u32; 2])| {
            let mut scalars = self.expert_scalars(kernel, products, chunk, &[*place])?;
            scalars.0[scalar::OUT] = out + p * products.config.part_lanes();
            let config = GroupedConfig {
                experts: products.config,
                tiles: match on_units {
                    true => Tiles::Matrix(Box::new(self.matrix_of_expert(products.config, decl))),
                    false => Tiles::Single {
                        format: decl.format,
                        row_bytes: row_bytes(decl) as u32,
                    },
                },
            };
            self.fits(kernel, config.shared_bytes())?;
            let tiles = (chunk.end - chunk.first).div_ceil(config.lanes());
            let grid = Grid::Experts { tiles, experts };
            let kind = Kind::Grouped(config);
            Ok(template(kernel, kind, grid, scalars, Some(chunk.id)))
        };
        parts.map(launch).collect()
    }

    /// The product of a part with an expert on matrix units.
    fn matrix_of_expert(&self, config: ExpertsConfig, decl: &WeightDecl) -> MatrixConfig {
        let floats = self.vectors_of(Sums::Planes);
        grouped_matrix::config(
            self.product_of_expert(config, &[decl], floats),
            self.target.language == Language::CudaC,
        )
    }
}
