//! What a set of adapters amounts to at their weights.

use crate::adapters::AdapterId;
use rusty_adapters::Mix;

/// A set with every weight resolved: what keys and values belong to.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub(crate) struct Resolved {
    /// Adapters and the bits of their weights.
    pub(super) entries: Vec<(AdapterId, u32)>,
    pub(super) linear: bool,
}

impl Resolved {
    pub fn names(&self, id: AdapterId) -> bool {
        self.entries.iter().any(|(own, _)| *own == id)
    }

    /// The adapter, where it is one alone.
    pub(super) fn only(&self) -> Option<AdapterId> {
        match self.entries[..] {
            [(id, _)] => Some(id),
            _ => None,
        }
    }

    pub fn is_base(&self) -> bool {
        self.entries.is_empty()
    }

    /// How its adapters are mixed.
    pub fn mix(&self) -> Mix {
        match self.linear {
            true => Mix::Linear,
            false => Mix::Sum,
        }
    }
}
