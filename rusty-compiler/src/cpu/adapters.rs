//! Adapter slots on the CPU: tables in the order the kernels read them, and the two small products.
//!
//! For a row whose slot acts at a site, `u = scale * (A x)` is computed once before the tiles, split over
//! threads by rank, and `B u` is added to the tile while it is hot. `B` is kept in panels of sixteen outputs
//! so that this needs no sum over lanes. Rows of BASE take part in neither.

use super::float::{self, Extent, FloatKind, FloatRows};
use super::memory::Buffer;
use super::quantize::InputRows;
use super::simd::{LANES, Level, Vector, per_isa};
use crate::slots::{DeltaTable, SiteDelta, SlotData, SlotId};
use crate::{Error, Result};
use rusty_graph::{Site, SiteId};
use std::sync::Arc;

/// A site's tables.
pub(super) struct Delta {
    pub(super) rank: usize,
    k: usize,
    a: DeltaTable,
    /// `[n / 16, rank, 16]`.
    b: Buffer,
    b_kind: FloatKind,
    scale: Arc<[f32]>,
    pub(super) gain_in: Option<Arc<[f32]>>,
    gain_out: Option<Arc<[f32]>>,
    bias: Option<Arc<[f32]>>,
}

struct Slot {
    sites: Vec<(SiteId, Delta)>,
    bytes: usize,
}

/// All slots; index 0 is BASE.
pub(super) struct SlotTable {
    slots: Vec<Option<Slot>>,
}

impl SlotTable {
    /// Empty slots `1 ..= slots`.
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots: (0..=slots).map(|_| None).collect(),
        }
    }

    /// Fills a slot.
    pub(super) fn attach(&mut self, slot: SlotId, data: &SlotData, sites: &[Site]) -> Result<()> {
        let place = self.place(slot)?;
        let mut deltas = Vec::with_capacity(data.sites.len());
        for (id, delta) in &data.sites {
            let site = sites.get(id.index()).ok_or_else(|| Error::Slot {
                adapter: data.name.clone(),
                site: id.to_string(),
                reason: format!("the plan has {} sites", sites.len()),
            })?;
            check(delta, site).map_err(|reason| Error::Slot {
                adapter: data.name.clone(),
                site: site.name.clone(),
                reason,
            })?;
            deltas.push((*id, Delta::new(delta, site)));
        }
        deltas.sort_by_key(|(id, _)| *id);
        let panels: usize = deltas.iter().map(|(_, d)| d.b.bytes()).sum();
        let bytes = data.bytes() + panels;
        self.slots[place] = Some(Slot {
            sites: deltas,
            bytes,
        });
        Ok(())
    }

    /// Empties a slot.
    pub(super) fn detach(&mut self, slot: SlotId) -> Result<()> {
        let place = self.place(slot)?;
        self.slots[place] = None;
        Ok(())
    }

    /// Whether any row names a filled slot.
    pub(super) fn active(&self, rows: &[SlotId]) -> bool {
        rows.iter()
            .any(|s| *s != SlotId::BASE && self.slots[s.0 as usize].is_some())
    }

    /// What a slot does at a site.
    pub(super) fn delta(&self, slot: SlotId, site: Option<SiteId>) -> Option<&Delta> {
        let sites = &self.slots.get(slot.0 as usize)?.as_ref()?.sites;
        let site = site?;
        let at = sites.binary_search_by_key(&site, |(s, _)| *s).ok()?;
        Some(&sites[at].1)
    }

    /// Largest rank in any slot.
    pub(super) fn largest_rank(&self) -> usize {
        self.deltas().map(|d| d.rank).max().unwrap_or(0)
    }

    /// Whether any slot scales an input.
    pub(super) fn gains_inputs(&self) -> bool {
        self.deltas().any(|d| d.gain_in.is_some())
    }

    /// Bytes of all tables.
    pub(super) fn bytes(&self) -> usize {
        self.slots.iter().flatten().map(|s| s.bytes).sum()
    }

    fn deltas(&self) -> impl Iterator<Item = &Delta> {
        let slots = self.slots.iter().flatten();
        slots.flat_map(|s| s.sites.iter().map(|(_, d)| d))
    }

    fn place(&self, slot: SlotId) -> Result<usize> {
        if slot == SlotId::BASE || slot.0 as usize >= self.slots.len() {
            let last = self.slots.len() - 1;
            return Err(Error::Step(format!(
                "adapter slot {}; slots 1 to {last} can be filled",
                slot.0
            )));
        }
        Ok(slot.0 as usize)
    }
}

fn check(d: &SiteDelta, site: &Site) -> Result<(), String> {
    let (rank, k, n) = (d.rank as usize, site.k as usize, site.n as usize);
    let vector = |v: &Option<Arc<[f32]>>| v.as_ref().map(|v| v.len());
    let lengths = [
        ("A", Some(d.a.len()), rank * k),
        ("B", Some(d.b.len()), n * rank),
        ("scale", Some(d.scale.len()), rank),
        ("input gain", vector(&d.gain_in), k),
        ("output gain", vector(&d.gain_out), n),
        ("bias", vector(&d.bias), n),
    ];
    match lengths
        .iter()
        .find(|(_, have, want)| have.is_some_and(|h| h != *want))
    {
        None => Ok(()),
        Some((name, have, want)) => Err(format!(
            "{name} has {} values, not {want} (rank {rank}, {k} -> {n})",
            have.unwrap_or(0)
        )),
    }
}

fn kind(table: &DeltaTable) -> FloatKind {
    match table {
        DeltaTable::F32(_) => FloatKind::F32,
        DeltaTable::F16(_) => FloatKind::F16,
    }
}

impl Delta {
    fn new(d: &SiteDelta, site: &Site) -> Self {
        let (rank, n) = (d.rank as usize, site.n as usize);
        let b_kind = kind(&d.b);
        let b = Buffer::new(n.next_multiple_of(LANES) * rank * b_kind.bytes());
        for c in 0..n {
            for r in 0..rank {
                let to = (c / LANES * rank + r) * LANES + c % LANES;
                // SAFETY: inside the buffer, which nobody else uses yet.
                unsafe {
                    match &d.b {
                        DeltaTable::F32(v) => *b.floats().add(to) = v[c * rank + r],
                        DeltaTable::F16(v) => {
                            *b.ptr().cast::<u16>().add(to) = v[c * rank + r].to_bits();
                        }
                    }
                }
            }
        }
        Self {
            rank,
            k: site.k as usize,
            a: d.a.clone(),
            b,
            b_kind,
            scale: d.scale.clone(),
            gain_in: d.gain_in.clone(),
            gain_out: d.gain_out.clone(),
            bias: d.bias.clone(),
        }
    }

    /// `u[row * stride + r] = scale[r] * (A[r] . x[first + row])` for ranks `from .. to`.
    ///
    /// # Safety
    /// The rows' single-precision inputs are filled; this thread owns those ranks of `u`.
    pub(super) unsafe fn reduce(
        &self,
        level: Level,
        x: InputRows,
        (first, rows): (usize, usize),
        (from, to): (usize, usize),
        u: *mut f32,
        stride: usize,
    ) {
        if from >= to {
            return;
        }
        let kind = kind(&self.a);
        let at: *const u8 = match &self.a {
            DeltaTable::F32(v) => v.as_ptr().cast(),
            DeltaTable::F16(v) => v.as_ptr().cast(),
        };
        let extent = Extent {
            first,
            rows,
            columns: to - from,
            out: u.wrapping_add(from),
            stride,
        };
        // SAFETY: the caller's duty; `A` has `rank` rows of `k`.
        unsafe {
            let a = FloatRows {
                kind,
                at: at.add(from * self.k * kind.bytes()),
                k: self.k,
            };
            float::multiply(level, a, x, extent);
            for row in 0..rows {
                for r in from..to {
                    *u.add(row * stride + r) *= self.scale[r];
                }
            }
        }
    }

    /// Adds the delta to columns `first ..` of a row: `y = gain_out * (y + B u) + bias`.
    ///
    /// # Safety
    /// `first` is a multiple of 16; `y` holds `count` columns rounded up to 16; `u` holds `rank` values.
    pub(super) unsafe fn expand(
        &self,
        level: Level,
        u: *const f32,
        first: usize,
        count: usize,
        y: *mut f32,
    ) {
        let vector = |v: &Option<Arc<[f32]>>| v.as_ref().map_or(std::ptr::null(), |v| v.as_ptr());
        let columns = Columns {
            b: self.b.ptr(),
            kind: self.b_kind,
            rank: self.rank,
            gain: vector(&self.gain_out),
            bias: vector(&self.bias),
            first,
            count,
        };
        // SAFETY: the caller's duty.
        unsafe { expand(level, columns, u, y) }
    }
}

#[derive(Clone, Copy)]
struct Columns {
    b: *const u8,
    kind: FloatKind,
    rank: usize,
    gain: *const f32,
    bias: *const f32,
    first: usize,
    count: usize,
}

per_isa! {
    fn expand(columns: Columns, u: *const f32, y: *mut f32) = expand_with
}

#[inline(always)]
unsafe fn expand_with<V: Vector>(c: Columns, u: *const f32, y: *mut f32) {
    // SAFETY: the caller's duty.
    unsafe {
        for i in (0..c.count).step_by(LANES) {
            let n = (c.count - i).min(LANES);
            let mut sum = V::load(y.add(i));
            let panel = (c.first + i) / LANES * c.rank * LANES;
            for r in 0..c.rank {
                let at = panel + r * LANES;
                let b = match c.kind {
                    FloatKind::F32 => V::load(c.b.cast::<f32>().add(at)),
                    _ => V::load_f16(c.b.cast::<u16>().add(at)),
                };
                sum = V::fma(b, V::splat(*u.add(r)), sum);
            }
            if !c.gain.is_null() {
                sum = V::mul(sum, lanes::<V>(c.gain.add(c.first + i), n));
            }
            if !c.bias.is_null() {
                sum = V::add(sum, lanes::<V>(c.bias.add(c.first + i), n));
            }
            V::store(y.add(i), sum);
        }
    }
}

#[inline(always)]
unsafe fn lanes<V: Vector>(p: *const f32, n: usize) -> V::F {
    // SAFETY: the caller's duty.
    unsafe {
        if n == LANES {
            V::load(p)
        } else {
            V::load_part(p, n)
        }
    }
}
