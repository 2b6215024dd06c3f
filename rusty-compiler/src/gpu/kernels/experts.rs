//! What kernels of products with experts are specialised for.

use super::contract::{self, ContractConfig};
use super::sink::Store;

/// Scalars of a launch. The first are those of a contraction's unit.
pub mod scalar {
    use super::contract::scalar as unit;

    /// First lane of the launch.
    pub const FIRST: usize = unit::FIRST;
    /// The lane behind its last.
    pub const END: usize = unit::END;
    /// Tiles of lanes.
    pub const TILES: usize = unit::TILES;
    /// Arena word of the inputs.
    pub const X: usize = unit::COUNT;
    /// Arena word of the routes.
    pub const ROUTES: usize = X + 1;
    /// Arena word of products that are left as they are.
    pub const OUT: usize = X + 2;
    const PARTS: usize = X + 3;

    /// Of a part, the byte of the first expert's row of the first lane.
    pub const fn rows(part: usize) -> usize {
        PARTS + 2 * part
    }

    /// Of a part, bytes from an expert to the next.
    pub const fn stride(part: usize) -> usize {
        rows(part) + 1
    }

    /// How many they are; those of tails come behind.
    pub const fn count(parts: usize) -> usize {
        rows(parts)
    }
}

/// What kernels of products are specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertsConfig {
    /// Header word of the row count.
    pub rows: usize,
    /// Input width.
    pub k: u32,
    /// Output width of an expert.
    pub n: u32,
    /// Experts that a row takes.
    pub used: u32,
    /// Whether a row's products are chosen by routes, or are all there are.
    pub routed: bool,
    /// Whether products are summed in the end: each has an input of its own.
    pub combine: bool,
    /// Products with each of a row's experts.
    pub parts: u32,
}

impl ExpertsConfig {
    /// Inputs that a row has.
    pub fn inputs_per_row(&self) -> u32 {
        match self.combine || !self.routed {
            true => self.used,
            false => 1,
        }
    }

    /// Lanes of a part's products of a row.
    pub fn part_lanes(&self) -> u32 {
        self.used * self.n
    }

    /// Lanes of all of a row's products.
    pub fn row_lanes(&self) -> u32 {
        self.parts * self.part_lanes()
    }
}

/// How a launch for few rows sums the products of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Summing {
    /// Not at all: each is a result.
    Nothing,
    /// One behind the other, each by all teams of a cube.
    InTurn,
    /// Side by side, each by one team, all of a cube for the same lanes: teams wait for memory once, not for each product. The inputs of
    /// all of them are in shared memory together.
    SideBySide,
}

/// What the kernel for few rows is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FewExpertsConfig {
    /// Which products.
    pub experts: ExpertsConfig,
    /// Those of one expert as a contraction of one unit.
    pub product: ContractConfig,
    /// How the launch sums them.
    pub sums: Summing,
    /// What becomes of them; none where they are left as they are.
    pub tails: Vec<Store>,
}

impl FewExpertsConfig {
    /// Results that a row has.
    pub fn results_per_row(&self) -> u32 {
        match self.sums {
            Summing::Nothing => self.experts.used,
            Summing::InTurn | Summing::SideBySide => 1,
        }
    }

    /// Lanes of a cube.
    pub fn cube_lanes(&self) -> u32 {
        match self.sums {
            Summing::SideBySide => self.product.lanes,
            Summing::Nothing | Summing::InTurn => self.product.cube_lanes(),
        }
    }

    /// Segments of inputs that a cube holds.
    pub fn segments(&self) -> u32 {
        match self.sums {
            Summing::SideBySide => self.experts.used,
            Summing::Nothing | Summing::InTurn => 1,
        }
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u32 {
        let further = (self.segments() - 1) * self.product.all_segment_words();
        self.product.row_bytes() + 4 * further
    }

    /// Whether it may sum products, which are summed, side by side, cut as it is: each team has one, and a cube the inputs of all of them in so many bytes of
    /// shared memory.
    pub fn may_sum_side_by_side(&self, room: u32) -> bool {
        let whole = self.product.segment() >= self.experts.k;
        let busy = self.experts.used >= self.product.teams();
        let all = Self {
            sums: Summing::SideBySide,
            ..self.clone()
        };
        whole && busy && all.shared_bytes() <= room
    }
}
