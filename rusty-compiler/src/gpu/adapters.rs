//! Adapter pools: one per kernel with sites, its slot table in front and the attached tables behind.
//!
//! Attaching writes an adapter's tables into free room and its table entries last; detaching clears the
//! entries. Both are ordered on the device before the next step, and recordings stay valid. Only where an adapter finds no
//! room is a pool made anew: what it holds is copied on the device, without gaps, and a quarter more than is needed is
//! left free, or what of it a binding and the memory allow. So the host need not hold tables that are here.
//!
//! Detaching gives nothing back, so that swapping adapters allocates nothing: beside its table a pool is never larger
//! than five quarters of the most that was attached at once, and what of it is free is told. Only an adapter that cannot be
//! attached, as another pool or the arena finds no memory for it, leaves pools as large as they were, where there is room for the copy
//! that takes.

use super::kernels::delta::{ENTRY, FORMAT_BITS, entry, format_code};
use crate::delta_table::DeltaTable;
use crate::plan::Kernel;
use crate::slots::SlotData;
use crate::{Result, SlotId};
use rusty_backend::{DeviceBuffer, Error as DeviceError, GpuDevice, Owner};
use std::collections::HashMap;

/// Bytes of which pools are whole multiples.
const BLOCK: u64 = 256;

/// What a slot's data has in a pool.
struct Taken {
    slot: SlotId,
    /// First word.
    at: u32,
    words: u32,
    /// Its entries, with offsets from the first word counted from one.
    entries: Vec<u32>,
}

/// One kernel's tables.
pub(super) struct Pool {
    /// Sites of a contraction's parts, or of experts.
    parts: Vec<Option<rusty_graph::SiteId>>,
    slots: u32,
    buffer: DeviceBuffer,
    /// By first word, ascending.
    taken: Vec<Taken>,
}

/// The byte at which a word lies.
fn byte(word: u32) -> u64 {
    u64::from(word) * 4
}

impl Pool {
    /// An empty pool for `slots` slots beside BASE.
    pub fn new(kernel: &Kernel, slots: u32, device: &dyn GpuDevice) -> Result<Self> {
        let parts: Vec<_> = kernel.sites().collect();
        let words = (slots + 1) * parts.len() as u32 * ENTRY;
        let bytes = byte(words).next_multiple_of(BLOCK);
        Ok(Self {
            parts,
            slots,
            buffer: device.alloc(bytes, Owner::Adapters, &kernel.name)?,
            taken: Vec::new(),
        })
    }

    /// The buffer to bind.
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// Whether no adapter has anything here.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Bytes that hold nothing.
    pub fn room_bytes(&self) -> u64 {
        self.buffer.bytes() - byte(self.table_words()) - self.taken_words() * 4
    }

    fn table_words(&self) -> u32 {
        (self.slots + 1) * self.parts.len() as u32 * ENTRY
    }

    /// Words of all tables that are attached.
    pub fn taken_words(&self) -> u64 {
        self.taken.iter().map(|t| u64::from(t.words)).sum()
    }

    fn capacity(&self) -> u32 {
        (self.buffer.bytes() / 4) as u32
    }

    /// Writes an adapter's tables for a slot. `true`: the pool is another buffer from here on, and what binds the old one is
    /// to be recorded anew.
    pub fn attach(
        &mut self,
        slot: SlotId,
        data: &SlotData,
        device: &dyn GpuDevice,
    ) -> Result<bool> {
        self.detach(slot, device)?;
        let (entries, tables) = self.packed(data);
        if tables.is_empty() {
            return Ok(false);
        }
        let words = tables.len() as u32;
        let room = self.room(words);
        let at = match room {
            Some(at) => at,
            None => self.resize(words, device)?,
        };
        device.write(&self.buffer, byte(at), bytemuck::cast_slice(&tables))?;
        let taken = Taken {
            slot,
            at,
            words,
            entries,
        };
        self.write_entries(&taken, device)?;
        self.taken.push(taken);
        self.taken.sort_by_key(|t| t.at);
        Ok(room.is_none())
    }

    /// Clears a slot.
    pub fn detach(&mut self, slot: SlotId, device: &dyn GpuDevice) -> Result<()> {
        let before = self.taken.len();
        self.taken.retain(|t| t.slot != slot);
        if self.taken.len() < before {
            let entries = vec![0u32; self.parts.len() * ENTRY as usize];
            device.write(
                &self.buffer,
                self.entry_byte(slot),
                bytemuck::cast_slice(&entries),
            )?;
        }
        Ok(())
    }

    /// Moves all that is attached to another buffer, one behind the other; `words` more fit from the word that it gives. With
    /// an error it is as it was.
    pub fn resize(&mut self, words: u32, device: &dyn GpuDevice) -> Result<u32> {
        let wanted = self.taken_words() + u64::from(words);
        let mut other = Self {
            parts: self.parts.clone(),
            slots: self.slots,
            buffer: self.buffer_for(wanted, device)?,
            taken: Vec::with_capacity(self.taken.len() + 1),
        };
        let mut at = other.table_words();
        for run in self.taken.chunk_by(|a, b| a.at + a.words == b.at) {
            let first = run[0].at;
            let words: u32 = run.iter().map(|t| t.words).sum();
            device.copy(
                &self.buffer,
                byte(first),
                &other.buffer,
                byte(at),
                byte(words),
            )?;
            for taken in run {
                let moved = Taken {
                    slot: taken.slot,
                    at: at + (taken.at - first),
                    words: taken.words,
                    entries: taken.entries.clone(),
                };
                other.write_entries(&moved, device)?;
                other.taken.push(moved);
            }
            at += words;
        }
        *self = other;
        Ok(at)
    }

    /// Another buffer for so many words behind the table, and for a quarter more as far as there is room.
    fn buffer_for(&self, words: u64, device: &dyn GpuDevice) -> Result<DeviceBuffer> {
        let with_table = |bytes: u64| (byte(self.table_words()) + bytes).next_multiple_of(BLOCK);
        let needed = with_table(words * 4);
        let limit = device.target().max_binding_bytes.min(u64::from(u32::MAX));
        let label = self.buffer.label();
        if needed > limit {
            return Err(DeviceError::TooLarge {
                device: device.target().name.clone(),
                what: format!(
                    "one binding for the adapters of {label} (lower ranks or tables of fewer bits take less)"
                ),
                asked: needed,
                limit,
            }
            .into());
        }
        let wished = with_table(words * 5).min(limit / BLOCK * BLOCK);
        let made = match device.alloc(wished, Owner::Adapters, label) {
            Err(DeviceError::OutOfMemory { .. } | DeviceError::TooLarge { .. }) => {
                device.alloc(needed, Owner::Adapters, label)
            }
            made => made,
        };
        Ok(made?)
    }

    /// Writes the table entries of what lies in the pool.
    fn write_entries(&self, taken: &Taken, device: &dyn GpuDevice) -> Result<()> {
        let mut entries = taken.entries.clone();
        for words in entries.chunks_exact_mut(ENTRY as usize) {
            for offset in &mut words[entry::A as usize..=entry::BIAS as usize] {
                // Zero is "absent"; offsets count from one.
                *offset = if *offset > 0 {
                    *offset - 1 + taken.at
                } else {
                    0
                };
            }
        }
        let at = self.entry_byte(taken.slot);
        device.write(&self.buffer, at, bytemuck::cast_slice(&entries))?;
        Ok(())
    }

    fn entry_byte(&self, slot: SlotId) -> u64 {
        u64::from(slot.0) * self.parts.len() as u64 * u64::from(ENTRY) * 4
    }

    /// First word of a free range.
    fn room(&self, words: u32) -> Option<u32> {
        let mut at = self.table_words();
        for taken in &self.taken {
            if taken.at - at >= words {
                return Some(at);
            }
            at = taken.at + taken.words;
        }
        (self.capacity() - at >= words).then_some(at)
    }

    /// Entries of a slot, with offsets into the tables counted from one, and the tables.
    fn packed(&self, data: &SlotData) -> (Vec<u32>, Vec<u32>) {
        let mut entries = vec![0; self.parts.len() * ENTRY as usize];
        let mut tables = Tables::default();
        for (part, words) in self
            .parts
            .iter()
            .zip(entries.chunks_exact_mut(ENTRY as usize))
        {
            let Some(delta) = part.and_then(|site| data.site(site)) else {
                continue;
            };
            words[entry::RANK as usize] = delta.rank;
            for (at, table) in [(entry::A, &delta.a), (entry::B, &delta.b)] {
                words[at as usize] = table.as_ref().map_or(0, |t| tables.push_shared(t.bytes()));
            }
            if delta.rank > 0 {
                words[entry::SCALE as usize] = tables.push_floats(&delta.scale);
            }
            for (at, vector) in [
                (entry::GAIN_IN, &delta.gain_in),
                (entry::GAIN_OUT, &delta.gain_out),
                (entry::BIAS, &delta.bias),
            ] {
                words[at as usize] = vector.as_ref().map_or(0, |v| tables.push_floats(v));
            }
            let code = |t: &Option<DeltaTable>| t.as_ref().map_or(0, |t| format_code(t.format()));
            words[entry::FORMATS as usize] = code(&delta.a) | (code(&delta.b) << FORMAT_BITS);
        }
        (entries, tables.words)
    }
}

/// Tables one behind the other; each is told by its first word, counted from one.
#[derive(Default)]
struct Tables {
    words: Vec<u32>,
    /// Those that several sites may have in common, by their place in memory.
    shared: HashMap<(usize, usize), u32>,
}

impl Tables {
    fn push_floats(&mut self, values: &[f32]) -> u32 {
        let at = self.words.len() as u32 + 1;
        self.words.extend(values.iter().map(|v| v.to_bits()));
        at
    }

    /// Bytes of a table that outlives this.
    fn push_shared(&mut self, bytes: &[u8]) -> u32 {
        let place = (bytes.as_ptr().addr(), bytes.len());
        if let Some(at) = self.shared.get(&place) {
            return *at;
        }
        let at = self.words.len() as u32 + 1;
        self.shared.insert(place, at);
        let (words, rest) = bytes.as_chunks::<4>();
        let words = words.iter().map(|w| u32::from_le_bytes(*w));
        self.words.extend(words);
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            self.words.push(u32::from_le_bytes(last));
        }
        at
    }
}
