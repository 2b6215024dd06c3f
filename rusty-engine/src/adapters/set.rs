//! Which adapters a session uses.

use rusty_adapters::Mix;

/// A registered adapter; never given twice by one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct AdapterId(pub(crate) u32);

impl std::fmt::Display for AdapterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Adapters with weights, and how they are mixed. Order matters to nothing but rounding.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct AdapterSet {
    pub(crate) entries: Vec<(AdapterId, f32)>,
    pub(crate) mix: Mix,
}

impl AdapterSet {
    /// No adapter: the base model.
    pub const BASE: AdapterSet = AdapterSet {
        entries: Vec::new(),
        mix: Mix::Sum,
    };

    /// The weighted sum of several adapters.
    pub fn sum(entries: impl IntoIterator<Item = (AdapterId, f32)>) -> Self {
        Self::mixed(entries, Mix::Sum)
    }

    /// Several adapters, mixed as stated.
    pub fn mixed(entries: impl IntoIterator<Item = (AdapterId, f32)>, mix: Mix) -> Self {
        Self {
            entries: entries.into_iter().collect(),
            mix,
        }
    }

    /// The adapters and their weights.
    pub fn entries(&self) -> &[(AdapterId, f32)] {
        &self.entries
    }
}

impl From<AdapterId> for AdapterSet {
    fn from(id: AdapterId) -> Self {
        Self::sum([(id, 1.0)])
    }
}

impl From<Option<AdapterId>> for AdapterSet {
    fn from(id: Option<AdapterId>) -> Self {
        Self::sum(id.map(|id| (id, 1.0)))
    }
}
