//! Products with experts: their parts, and what launches leave of them for others.

use super::{Anchor, Inst, Kernel};
use rusty_backend::Target;
use rusty_graph::{SiteId, WeightId};

/// One product with each of a row's experts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExpertPart {
    /// The experts' matrices.
    pub weights: Vec<WeightId>,
    /// Where adapters act on the first expert's product; the sites of the others follow it.
    pub sites: Option<SiteId>,
}

impl ExpertPart {
    /// Experts that there are to choose from: as many for each part.
    pub fn experts(parts: &[Self]) -> usize {
        parts.first().map_or(0, |part| part.weights.len())
    }

    /// Where adapters act on an expert's product.
    pub fn site(&self, expert: usize) -> Option<SiteId> {
        self.sites.map(|first| SiteId(first.0 + expert as u32))
    }
}

impl Kernel {
    /// Whether what it stores are products with experts as they are.
    pub(crate) fn stores_products(&self) -> bool {
        match (&self.anchor, &self.tails[..]) {
            (Anchor::Experts { combine, parts, .. }, [tail]) => {
                let as_it_is = tail.body.as_identity() == Some(Inst::Result(0));
                !combine && parts.len() == 1 && as_it_is
            }
            _ => false,
        }
    }

    /// Lanes of a row of products with experts that a launch leaves for another one to sum, or to make of them what tails say: where a
    /// variant has both, and on GPUs in steps with adapters.
    pub(crate) fn products_apart(&self, target: &Target) -> Option<u32> {
        let Anchor::Experts { n, used, parts, .. } = &self.anchor else {
            return None;
        };
        let adapted = self.has_sites() && !target.is_cpu();
        let apart = self.variants.iter().any(|v| adapted || v.dispatches > 1);
        (apart && !self.stores_products()).then(|| n * used * parts.len() as u32)
    }
}
