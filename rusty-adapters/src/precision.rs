//! In which precision an adapter's tables are held.

use rusty_compiler::SlotData;
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

impl Precision {
    /// An adapter with its sites' tables in this precision.
    pub fn applied(self, mut adapter: SlotData) -> SlotData {
        for (_, delta) in &mut adapter.sites {
            for table in [&mut delta.a, &mut delta.b].into_iter().flatten() {
                *table = table.converted(self.format(table.format(), table.columns()));
            }
        }
        adapter
    }
}
