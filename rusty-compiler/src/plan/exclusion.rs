//! What a plan does without: kernels that went wrong on its device, or that the device did not take.

use super::{Anchor, ContractionFamily, ExpertPart, Kernel, Plan, Way};
use std::fmt::{Display, Formatter, Result};

/// Attention of tiles of rows on matrix units.
pub(crate) const MATRIX_ATTENTION: &str = "matrix_attention";
/// Attention of single rows.
pub(crate) const ROW_ATTENTION: &str = "row_attention";
/// Tiles in single precision that hold weights in half precision.
pub(crate) const HALF_TILES: &str = "half_tiles";
/// The instruction that converts halves in WGSL.
pub(crate) const HALVES: &str = "halves";
/// Launches that make adapters' first factor with sums by planes.
pub(crate) const SHRINK_PLANE: &str = "shrink_plane";
/// Matrix-vector products whose first cubes make adapters' first factor for the others.
pub(crate) const SHRINK_INSIDE: &str = "shrink_inside";

/// Matrix-vector products whose cubes make [what comes first](Kernel::first) each for itself.
pub(crate) const FIRST_INSIDE: &str = "first_inside";

/// Launches that make [what comes first](Kernel::first) with sums by planes.
pub(crate) const FIRST_PLANE: &str = "first_plane";

/// A way to run kernels of one shape that is not to be taken, or what kernels of all shapes have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Exclusion {
    /// The name of an [implementation](super::Implementation), or of one of its kernels for which there is another.
    pub variant: &'static str,
    /// Shape and formats of the kernels.
    pub of: String,
}

impl Exclusion {
    /// A way to run kernels like this one.
    pub(crate) fn of(plan: &Plan, kernel: &Kernel, variant: &'static str) -> Self {
        Self {
            variant,
            of: shape(plan, kernel),
        }
    }
}

impl Display for Exclusion {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} for {}", self.variant, self.of)
    }
}

impl Plan {
    /// Whether a kernel is not to run so.
    pub(crate) fn excludes(&self, variant: &'static str, kernel: &Kernel) -> bool {
        // Shapes are text, made where they are asked for.
        let mut named = self.excluded.iter().filter(|e| e.variant == variant);
        let own = |e: &Exclusion| *e == Exclusion::of(self, kernel, variant);
        named.any(own)
    }

    /// Whether launches of a contraction make what [comes first](Kernel::first) for themselves.
    pub(crate) fn makes_first_inside(&self, kernel: &Kernel, way: Way) -> bool {
        let alone = matches!(way, Way::Vector(_));
        alone && !kernel.first.is_empty() && !self.excludes(FIRST_INSIDE, kernel)
    }

    /// Whether a launch of its own makes what comes first.
    pub(crate) fn makes_first_apart(&self, kernel: &Kernel, way: Way) -> bool {
        !kernel.first.is_empty() && !self.makes_first_inside(kernel, way)
    }

    /// Whether kernels of some shape are not to run so.
    pub(crate) fn excludes_for_any(&self, variant: &'static str) -> bool {
        self.excluded.iter().any(|e| e.variant == variant)
    }
}

/// Shape and formats, as far as they tell kernels of one implementation apart.
fn shape(plan: &Plan, kernel: &Kernel) -> String {
    let widths = || {
        let tails = kernel.tails.iter().map(|t| t.width.to_string());
        tails.collect::<Vec<_>>().join(" ")
    };
    match &kernel.anchor {
        Anchor::Contract { .. } => match ContractionFamily::of(plan, &kernel.anchor) {
            Some(ContractionFamily { k, n, formats }) => format!("{k} to {n} in {formats}"),
            None => String::new(),
        },
        Anchor::Experts {
            k, n, used, parts, ..
        } => {
            let firsts = parts.iter().filter_map(|part| part.weights.first());
            let formats = firsts.map(|w| plan.weights[w.index()].format.name());
            let formats = formats.collect::<Vec<_>>().join(" ");
            let all = ExpertPart::experts(parts);
            format!("{used} of {all} experts, {k} to {n} in {formats}")
        }
        Anchor::Attention { spec, .. } => {
            let (heads, kv_heads, width) = (spec.heads, spec.kv_heads, spec.head_dim);
            let window = spec.window.map_or(String::new(), |w| format!(", {w} keys"));
            format!("{heads} heads of {width} over {kv_heads}{window}")
        }
        Anchor::Route { spec, .. } => format!("{} of {} experts", spec.used, spec.experts),
        Anchor::Gather { table, .. } => {
            let format = plan.weights[table.index()].format.name();
            format!("rows of {} from {format}", widths())
        }
        Anchor::Map | Anchor::SelectRows { .. } => format!("rows of {}", widths()),
        Anchor::ArgMax { x } => match kernel.operands.get(*x as usize) {
            Some(super::Operand::Value(v)) => format!("rows of {}", plan.value(*v).width),
            _ => String::new(),
        },
    }
}
