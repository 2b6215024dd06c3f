//! Choices among kernels that the facts of a device do not settle: guesses here, until `gpu/tuner.rs` has measured them.

use super::{Anchor, Part, Plan};
use rusty_backend::Target;
use serde::{Deserialize, Serialize};

/// Keys of a split where a launch adds splits up, whose cost they are to be worth; not measured.
const SPLIT_KEYS_APART: u32 = 512;

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Rows up to which contractions are matrix-vector products; beyond, tiles that reuse each dequantized weight for several
    /// rows read less.
    pub gemv_rows: u32,
    /// Rows up to which the smallest tiles are taken, of matrix units or in single precision.
    pub small_tile_rows: u32,
    /// Rows up to which the middle one is taken.
    pub middle_tile_rows: u32,
    /// Lanes from which on contractions take the largest tile at all.
    pub large_tile_lanes: u32,
    /// Whether tiles in single precision hold weights in half precision, where the device's language and their format allow it.
    pub half_tiles: bool,
    /// How matrix-vector products are cut, where it is not as [`Teams::guess`] says.
    pub teams: Vec<(ContractionFamily, Teams)>,
    /// How a step's attention is cut.
    pub attention: AttentionCut,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            gemv_rows: 4,
            // So contractions have two of the tiles at most, and those of rows that want an output one, unless another was found to
            // pay for its pipelines.
            small_tile_rows: 64,
            middle_tile_rows: 64,
            large_tile_lanes: 2048,
            half_tiles: true,
            teams: Vec::new(),
            attention: AttentionCut::default(),
        }
    }
}

impl Tuning {
    /// The guess for a device. Splits of keys are longer where a launch adds them up. Of matrix units the smallest tile, which makes its
    /// inputs itself, is behind both others where cubes may share the depth of larger ones: on an H100 a step of 16 rows of Qwen3-0.6B in
    /// Q4_0 took 6.4 ms with it and 2.0 with products of vectors, one of 64 rows 7.3 and 3.9 with the middle tile.
    pub fn guess(target: &Target) -> Self {
        let mut all = Self::default();
        if !target.orders_groups {
            all.attention.split_keys = SPLIT_KEYS_APART;
        }
        match target.multiplies_bf16() && target.orders_groups {
            true => Self {
                gemv_rows: 8,
                small_tile_rows: 1,
                ..all
            },
            false => all,
        }
    }

    /// How matrix-vector products of a family are cut.
    pub fn teams(&self, family: &ContractionFamily) -> Teams {
        let known = self.teams.iter().find(|(f, _)| f == family);
        known.map_or(Teams::guess(family), |(_, teams)| *teams)
    }

    /// The same with another cut for one family.
    pub fn with(&self, family: &ContractionFamily, teams: Teams) -> Self {
        let mut all = self.clone();
        all.teams.retain(|(f, _)| f != family);
        if teams != Teams::guess(family) {
            all.teams.push((family.clone(), teams));
        }
        all
    }
}

/// Contractions of one shape and format.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContractionFamily {
    /// Input width.
    pub k: u32,
    /// Outputs of all parts.
    pub n: u32,
    /// Names of the parts' formats.
    pub formats: String,
}

impl ContractionFamily {
    /// The family of a contraction; none for other kernels.
    pub fn of(plan: &Plan, anchor: &Anchor) -> Option<Self> {
        let Anchor::Contract { k, parts } = anchor else {
            return None;
        };
        let format = |p: &Part| plan.weights[p.weight.index()].format.name();
        let formats: Vec<&str> = parts.iter().map(format).collect();
        Some(Self {
            k: *k,
            n: parts.iter().map(|p| p.n).sum(),
            formats: formats.join(" "),
        })
    }
}

/// How the matrix-vector kernel cuts outputs among units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Teams {
    /// Units of a cube.
    pub units: u32,
    /// Outputs of a team, which is a plane or as large as one: more share an input, fewer make more cubes.
    pub lanes: u32,
    /// Whether products are made of bytes where formats and device allow it.
    pub bytes: bool,
    /// Whether weights are asked for before inputs are made, where the device's language can say so.
    pub ahead: bool,
}

impl Teams {
    /// More outputs where there are cubes enough for any device.
    pub fn guess(family: &ContractionFamily) -> Self {
        Self {
            units: 128,
            lanes: if family.n >= 8192 { 4 } else { 2 },
            bytes: true,
            ahead: false,
        }
    }
}

/// How attention is cut on GPUs. No kernel depends on it: each step says how it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionCut {
    /// Keys of a row for which a cube of their own is worth it.
    pub split_keys: u32,
    /// Splits of a row's keys at most: a cube adds them up one by one.
    pub most_splits: u32,
    /// Rows of one sequence up to which each is attended to alone, where there are keys to split; tiles share what they
    /// read among more.
    pub alone_rows: u32,
}

impl Default for AttentionCut {
    fn default() -> Self {
        Self {
            split_keys: 128,
            most_splits: 32,
            alone_rows: 4,
        }
    }
}
