//! All tables of an adapter in one buffer of large pages: kernels miss fewer translations, and the memory goes back to
//! the system as a whole when the adapter goes.

use rusty_compiler::{DeltaTable, SlotData};
use rusty_loader::PageBuffer;
use std::collections::HashMap;

/// Where a table's bytes are: address and length.
fn place(table: &DeltaTable) -> (usize, usize) {
    (table.bytes().as_ptr().addr(), table.len_bytes())
}

/// Tables begin at multiples of this.
const ALIGNMENT: usize = 64;

/// An adapter with the factors of its sites in one buffer, those that sites share once; those of mapped files stay where they
/// are.
pub(crate) fn compact(mut adapter: SlotData) -> SlotData {
    let factors = adapter.sites.iter_mut();
    let factors = factors.flat_map(|(_, d)| [&mut d.a, &mut d.b].into_iter().flatten());
    let mut tables: Vec<&mut DeltaTable> = factors.filter(|t| !t.bytes().is_mapped()).collect();
    let mut places = HashMap::new();
    let mut size = 0;
    for table in &tables {
        places.entry(place(table)).or_insert_with(|| {
            let range = size..size + table.len_bytes();
            size = range.end.next_multiple_of(ALIGNMENT);
            range
        });
    }
    let Ok(mut buffer) = PageBuffer::new(size.max(1), &adapter.name) else {
        // They are where they are; nothing but speed is lost.
        return adapter;
    };
    for table in &tables {
        buffer[places[&place(table)].clone()].copy_from_slice(table.bytes());
    }
    let buffer = buffer.freeze();
    for table in &mut tables {
        let range = places[&place(table)].clone();
        let moved = buffer.slice(range).and_then(|bytes| table.moved(bytes));
        if let Some(moved) = moved {
            **table = moved;
        }
    }
    adapter
}
