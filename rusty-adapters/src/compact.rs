//! All tables of an adapter in one buffer of large pages: kernels miss fewer translations, and the memory goes back to
//! the system as a whole when the adapter goes.

use rusty_compiler::{DeltaTable, SlotData};
use rusty_loader::PageBuffer;

/// Tables begin at multiples of this.
const ALIGNMENT: usize = 64;

/// An adapter with the factors of its sites in one buffer; those of mapped files stay where they are.
pub(crate) fn compact(mut adapter: SlotData) -> SlotData {
    let factors = adapter.sites.iter_mut();
    let factors = factors.flat_map(|(_, d)| [&mut d.a, &mut d.b].into_iter().flatten());
    let mut tables: Vec<&mut DeltaTable> = factors.filter(|t| !t.bytes().is_mapped()).collect();
    let sizes = tables
        .iter()
        .map(|t| t.len_bytes().next_multiple_of(ALIGNMENT));
    let Ok(mut buffer) = PageBuffer::new(sizes.sum::<usize>().max(1), &adapter.name) else {
        // They are where they are; nothing but speed is lost.
        return adapter;
    };
    let mut places = Vec::with_capacity(tables.len());
    let mut at = 0;
    for table in &tables {
        let range = at..at + table.len_bytes();
        buffer[range.clone()].copy_from_slice(table.bytes());
        at = range.end.next_multiple_of(ALIGNMENT);
        places.push(range);
    }
    let buffer = buffer.freeze();
    for (table, range) in tables.iter_mut().zip(places) {
        let moved = buffer.slice(range).and_then(|bytes| table.moved(bytes));
        if let Some(moved) = moved {
            **table = moved;
        }
    }
    adapter
}
