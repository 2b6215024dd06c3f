//! Adapter pools: one per contraction with sites, its slot table in front and the attached tables behind.
//!
//! Attaching writes an adapter's tables into free room and its table entries last; detaching clears the
//! entries. Both are ordered on the device before the next step, and recordings stay valid. Only when a pool
//! has no room is it made anew, larger.

use super::kernels::delta::{ENTRY, FORMAT_BITS, entry, format_code};
use crate::delta_table::DeltaTable;
use crate::plan::{Anchor, Kernel};
use crate::slots::SlotData;
use crate::{Result, SlotId};
use rusty_backend::{DeviceBuffer, GpuDevice, Owner};
use std::sync::Arc;

/// Room that a slot's data takes in a pool.
struct Taken {
    slot: SlotId,
    /// First word.
    at: u32,
    words: u32,
}

/// One contraction's tables.
pub(super) struct Pool {
    parts: Vec<Option<rusty_graph::SiteId>>,
    slots: u32,
    buffer: DeviceBuffer,
    /// By first word, ascending.
    taken: Vec<Taken>,
}

impl Pool {
    /// An empty pool for `slots` slots beside BASE.
    pub fn new(kernel: &Kernel, slots: u32, device: &dyn GpuDevice) -> Result<Self> {
        let parts = match &kernel.anchor {
            Anchor::Contract { parts, .. } => parts.iter().map(|p| p.site).collect(),
            _ => Vec::new(),
        };
        let words = (slots + 1) * parts.len() as u32 * ENTRY;
        let bytes = (u64::from(words) * 4).next_multiple_of(256);
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

    fn table_words(&self) -> u32 {
        (self.slots + 1) * self.parts.len() as u32 * ENTRY
    }

    fn capacity(&self) -> u32 {
        (self.buffer.bytes() / 4) as u32
    }

    /// Writes an adapter's tables for a slot. `false`: there is no room for its words; see [`Pool::grown`].
    pub fn attach(
        &mut self,
        slot: SlotId,
        data: &SlotData,
        device: &dyn GpuDevice,
    ) -> Result<bool> {
        self.detach(slot, device)?;
        let (mut entries, tables) = self.packed(data);
        if tables.is_empty() {
            return Ok(true);
        }
        let Some(at) = self.room(tables.len() as u32) else {
            return Ok(false);
        };
        for words in entries.chunks_exact_mut(ENTRY as usize) {
            for offset in &mut words[entry::A as usize..=entry::BIAS as usize] {
                // Zero is "absent"; packed offsets count from one.
                *offset = if *offset > 0 { *offset - 1 + at } else { 0 };
            }
        }
        device.write(
            &self.buffer,
            u64::from(at) * 4,
            bytemuck::cast_slice(&tables),
        )?;
        device.write(
            &self.buffer,
            self.entry_byte(slot),
            bytemuck::cast_slice(&entries),
        )?;
        self.taken.push(Taken {
            slot,
            at,
            words: tables.len() as u32,
        });
        self.taken.sort_by_key(|t| t.at);
        Ok(true)
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

    /// A larger pool with everything attached and room for `data`.
    pub fn grown(
        &self,
        kernel: &Kernel,
        attached: &[(SlotId, Arc<SlotData>)],
        data: &SlotData,
        device: &dyn GpuDevice,
    ) -> Result<Self> {
        let wanted = attached.iter().map(|(_, d)| self.words(d)).sum::<u64>() + self.words(data);
        let bytes = (u64::from(self.table_words()) * 4 + wanted * 5).next_multiple_of(256);
        let limit = device.target().max_binding_bytes.min(u64::from(u32::MAX));
        if bytes > limit {
            return Err(rusty_backend::Error::TooLarge {
                device: device.target().name.clone(),
                what: format!("one binding for the adapters of {}", kernel.name),
                asked: bytes,
                limit,
            }
            .into());
        }
        let mut grown = Self {
            parts: self.parts.clone(),
            slots: self.slots,
            buffer: device.alloc(bytes, Owner::Adapters, &kernel.name)?,
            taken: Vec::new(),
        };
        for (slot, data) in attached {
            grown.attach(*slot, data, device)?;
        }
        Ok(grown)
    }

    fn entry_byte(&self, slot: SlotId) -> u64 {
        u64::from(slot.0) * self.parts.len() as u64 * u64::from(ENTRY) * 4
    }

    /// Words of an adapter's tables here.
    fn words(&self, data: &SlotData) -> u64 {
        let sites = self.parts.iter().flatten();
        let deltas = sites.filter_map(|site| data.site(*site));
        // A table ends on a whole word.
        deltas.map(|d| d.bytes() as u64 / 4 + 2).sum()
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
        let mut tables = Vec::new();
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
                words[at as usize] = table
                    .as_ref()
                    .map_or(0, |t| push_bytes(&mut tables, t.bytes()));
            }
            if delta.rank > 0 {
                words[entry::SCALE as usize] = push_floats(&mut tables, &delta.scale);
            }
            for (at, vector) in [
                (entry::GAIN_IN, &delta.gain_in),
                (entry::GAIN_OUT, &delta.gain_out),
                (entry::BIAS, &delta.bias),
            ] {
                words[at as usize] = vector.as_ref().map_or(0, |v| push_floats(&mut tables, v));
            }
            let code = |t: &Option<DeltaTable>| t.as_ref().map_or(0, |t| format_code(t.format()));
            words[entry::FORMATS as usize] = code(&delta.a) | (code(&delta.b) << FORMAT_BITS);
        }
        (entries, tables)
    }
}

fn push_floats(tables: &mut Vec<u32>, values: &[f32]) -> u32 {
    let at = tables.len() as u32 + 1;
    tables.extend(values.iter().map(|v| v.to_bits()));
    at
}

fn push_bytes(tables: &mut Vec<u32>, bytes: &[u8]) -> u32 {
    let at = tables.len() as u32 + 1;
    let (words, rest) = bytes.as_chunks::<4>();
    tables.extend(words.iter().map(|w| u32::from_le_bytes(*w)));
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        tables.push(u32::from_le_bytes(last));
    }
    at
}
