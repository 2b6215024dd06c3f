//! In which precision an adapter's tables are held.

use crate::shared::Shared;
use rusty_compiler::{SiteDelta, SlotData};
use rusty_loader::{Format, formats};

/// Precision of an adapter's factors; gains, biases and scales are always single precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// As the file stores them.
    #[default]
    Stored,
    /// Half precision.
    F16,
    /// Q8_0.
    Int8,
    /// Q4_0.
    Int4,
}

impl Precision {
    /// The format of a table with rows of `columns` that is stored as `stored`. Rows that are no whole blocks stay
    /// in half precision.
    pub(crate) fn format(self, stored: Format, columns: usize) -> Format {
        let format = match self {
            Precision::Stored => return stored,
            Precision::F16 => Format::F16,
            Precision::Int8 => Format::Blocks(&formats::Q8_0),
            Precision::Int4 => Format::Blocks(&formats::Q4_0),
        };
        match columns.is_multiple_of(format.block_len()) {
            true => format,
            false => Format::F16,
        }
    }
}

/// The format of factors that act on blocks of inputs and outputs, which are floats.
pub(crate) fn floats(format: Format) -> Format {
    match format.block_len() {
        1 => format,
        _ => Format::F16,
    }
}

impl Precision {
    /// An adapter with its sites' tables in this precision.
    pub fn applied(self, mut adapter: SlotData) -> SlotData {
        // What lies in a mapped file is not read for nothing.
        if self != Precision::Stored {
            let mut shared = Shared::default();
            let deltas = adapter.sites.iter_mut();
            deltas.for_each(|(_, delta)| self.apply(delta, &mut shared));
        }
        adapter
    }

    /// Brings the tables of a site to this precision; equal ones of several sites are held once.
    pub(crate) fn apply(self, delta: &mut SiteDelta, shared: &mut Shared) {
        let blocks = delta.kron.is_some();
        for table in [&mut delta.a, &mut delta.b].into_iter().flatten() {
            let format = self.format(table.format(), table.columns());
            *table = table.converted(match blocks {
                true => floats(format),
                false => format,
            });
        }
        shared.take(delta);
    }
}
