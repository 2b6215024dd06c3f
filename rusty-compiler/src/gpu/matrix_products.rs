//! What products on matrix units have that others do not: inputs that a launch of their own packs, and a depth that cubes share.

use super::contraction::{How, most_parts};
use super::depth_cuts::DepthCut;
use super::kernels::contract::ContractConfig;
use super::kernels::delta::Adapters;
use super::kernels::matrix;
use super::kernels::matrix_product::MatrixTile;
use super::kernels::packed_inputs::{PackConfig, PackedInputs};
use super::kernels::sink::{Store, Target as StoreTarget};
use super::lower::{Lowering, team};
use super::stage::{Grid, Scalars, Template, template};
use super::text::Kind;
use crate::Result;
use crate::plan::{Kernel, Part, Way};
use rusty_backend::{Language, Target};

impl Lowering<'_> {
    /// The launch that packs the inputs of a contraction whose parts these are, and beside it makes adapters' first factor.
    pub(super) fn pack(
        &self,
        kernel: &Kernel,
        k: u32,
        parts: &[Part],
        how: How,
    ) -> Result<Template> {
        let mut scalars = Scalars::default();
        let places = self.places(kernel, &mut scalars);
        let mut contract = self.config(kernel, &places, how, &mut Scalars::default())?;
        contract.adapters = how.adapters.map(|rows| Adapters {
            parts: parts.len() as u32,
            arg: scalars.append(&[0, 0]),
            rows,
        });
        let shrunk = contract.adapters.map(|a| a.arg);
        let inputs = packed_inputs(&contract, scalars.push(0), self.target);
        // What it does not depend on is left out: kernels of the same inputs are one.
        contract.parts.clear();
        let plane = match how.adapters {
            Some(_) => self.shrink_plane(kernel),
            None => self.target.plane(),
        };
        let config = PackConfig {
            team: team(k / 4, plane, self.target),
            contract,
            inputs,
        };
        let grid = Grid::Rows { y: config.cubes() };
        let mut made = template(kernel, Kind::Pack(config), grid, scalars, None);
        made.shrunk = shrunk;
        made.packed = Some(inputs.arg);
        Ok(made)
    }

    /// How cubes share the depth of tiles: not unless they see what others leave, nor where pages lie that their counters take the
    /// place of.
    pub(super) fn depth_cut(
        &self,
        kernel: &Kernel,
        config: &ContractConfig,
        way: Way,
        tiles: u32,
        scalars: &mut Scalars,
    ) -> Option<DepthCut> {
        let Way::Matrix { rows, lanes } = way else {
            return None;
        };
        let tile = MatrixTile::of_products(rows, lanes, most_parts(kernel));
        let mut tails = config.units.iter().flat_map(|unit| &unit.tails);
        let in_arena = |tail: &Store| matches!(tail.target, StoreTarget::Arena { .. });
        let can = self.target.orders_groups && tails.all(in_arena);
        let cut = DepthCut::of(config, tile, tiles);
        (can && cut.shares(config.units.len())).then(|| DepthCut {
            arg: scalars.push(1),
            ..cut
        })
    }
}

/// Where the packed inputs of a contraction lie, by the scalar `arg`.
pub(super) fn packed_inputs(config: &ContractConfig, arg: usize, target: &Target) -> PackedInputs {
    PackedInputs {
        arg,
        k: config.k,
        parts: config.adapters.map_or(1, |adapters| adapters.parts),
        halves: matrix::halves(&config.parts, target.language == Language::CudaC),
    }
}
