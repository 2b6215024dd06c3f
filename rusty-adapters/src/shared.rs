//! Tables that several sites of an adapter have in common: VeRA's factors, for one, are those of all layers. They are held once.

use rusty_compiler::{DeltaTable, SiteDelta};
use rusty_loader::SharedBytes;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_128;

/// The bytes of tables so far, by their checksum.
#[derive(Default)]
pub(crate) struct Shared {
    known: HashMap<u128, SharedBytes>,
}

impl Shared {
    /// Puts bytes that are known in the place of equal ones.
    pub fn take(&mut self, delta: &mut SiteDelta) {
        for table in [&mut delta.a, &mut delta.b].into_iter().flatten() {
            self.take_table(table);
        }
    }

    fn take_table(&mut self, table: &mut DeltaTable) {
        let bytes = self.known.entry(xxh3_128(table.bytes()));
        let bytes = bytes.or_insert_with(|| table.bytes().clone());
        if **bytes == **table.bytes()
            && let Some(same) = table.moved(bytes.clone())
        {
            *table = same;
        }
    }
}
