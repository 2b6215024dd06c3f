//! Weights on the device: where each kernel finds the rows it reads.
//!
//! The parts of a contraction lie in one buffer, so that a kernel binds one whatever it multiplies with. What
//! exceeds the device's binding limit is cut by rows into chunks, one launch each. Bytes go from the file's mapping as
//! they are stored, when [`Residence`](super::residence::Residence) brings them; nothing is decoded on the host but
//! vectors.

use super::kernels::codes::{grid_points, uses_grid};
use super::kernels::decode::PADDING;
use super::residence::{ChunkId, Contents};
use crate::declared::declared;
use crate::plan::Plan;
use crate::{Error, Result};
use rusty_backend::target::ADDRESSABLE;
use rusty_backend::{DeviceBuffer, GpuDevice, Owner};
use rusty_graph::{WeightDecl, WeightId};
use rusty_loader::{Format, ModelFile, WeightView};
use std::collections::HashMap;

/// Rows `first..end` of some weights of equal row count, one weight after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Span {
    pub weights: Vec<WeightId>,
    pub first: u32,
    pub end: u32,
}

/// Spans in one buffer.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub id: ChunkId,
    /// For each span, the byte at which row `first` of each of its weights starts.
    pub offsets: Vec<Vec<u32>>,
}

/// Chunks end at multiples of this, or of a part of it where so many rows do not fit: whole tiles of most contraction kernels.
const CHUNK_ROWS: u64 = 64;
/// Alignment of a weight in its buffer.
const ALIGN: u64 = 16;

/// Finds weights and cuts them into chunks, each set once.
pub(super) struct WeightStore<'a> {
    plan: &'a Plan,
    /// None where all chunks are known.
    file: Option<&'a dyn ModelFile>,
    device: &'a dyn GpuDevice,
    chunks: Chunks,
    contents: Vec<Contents>,
}

/// Chunks by what they hold.
pub(super) type Chunks = HashMap<Vec<Span>, Chunk>;

impl<'a> WeightStore<'a> {
    pub fn new(plan: &'a Plan, file: &'a dyn ModelFile, device: &'a dyn GpuDevice) -> Self {
        Self {
            file: Some(file),
            ..Self::known(plan, device, Chunks::new())
        }
    }

    /// A store of chunks that were cut before for a plan of the same weights.
    pub fn known(plan: &'a Plan, device: &'a dyn GpuDevice, chunks: Chunks) -> Self {
        Self {
            plan,
            file: None,
            device,
            chunks,
            contents: Vec::new(),
        }
    }

    /// The chunks, and what those that were not known hold, by their numbers.
    pub fn into_chunks(self) -> (Chunks, Vec<Contents>) {
        (self.chunks, self.contents)
    }

    /// Cuts groups of weights (each of equal row counts) into spans that fit a binding: everything in one
    /// chunk where it fits, else each group by rows.
    pub fn cut(&self, groups: &[Vec<WeightId>]) -> Vec<Vec<Option<Span>>> {
        let whole = |g: &Vec<WeightId>| Span {
            weights: g.clone(),
            first: 0,
            end: rows(self.decl(g[0])),
        };
        let limit = self.limit();
        let all: Vec<Span> = groups.iter().map(whole).collect();
        if self.span_bytes(&all) <= limit {
            return vec![all.into_iter().map(Some).collect()];
        }
        let mut chunks = Vec::new();
        for (at, span) in all.iter().enumerate() {
            let row: u64 = span.weights.iter().map(|w| row_bytes(self.decl(*w))).sum();
            let slack = (ALIGN + PADDING as u64) * span.weights.len() as u64;
            let fitting = whole_tiles(limit.saturating_sub(slack) / row);
            for first in (0..span.end).step_by(fitting as usize) {
                let mut chunk = vec![None; groups.len()];
                chunk[at] = Some(Span {
                    weights: span.weights.clone(),
                    first,
                    end: span.end.min(first.saturating_add(fitting)),
                });
                chunks.push(chunk);
            }
        }
        chunks
    }

    /// The chunk of these spans; `stays` where it is not to be streamed.
    pub fn chunk(&mut self, spans: &[Span], stays: bool) -> Result<Chunk> {
        if let Some(chunk) = self.chunks.get(spans) {
            if let Some(contents) = self.contents.get_mut(chunk.id.0 as usize) {
                contents.stays |= stays;
            }
            return Ok(chunk.clone());
        }
        let mut at = 0;
        let mut offsets = Vec::new();
        let mut pieces = Vec::new();
        for span in spans {
            let mut starts = Vec::new();
            for weight in &span.weights {
                let view = self.view(*weight)?;
                let row = view.row_bytes();
                let rows = span.first as usize * row..span.end as usize * row;
                let bytes = view.bytes.slice(rows);
                let bytes = bytes.ok_or_else(|| self.missing(*weight, "has not all rows"))?;
                starts.push(at as u32);
                let end = at + bytes.len() as u64;
                pieces.push((at, bytes));
                at = end.next_multiple_of(ALIGN);
            }
            offsets.push(starts);
        }
        let id = ChunkId(self.contents.len() as u32);
        self.contents.push(Contents {
            label: self.decl(spans[0].weights[0]).name.clone(),
            bytes: self.span_bytes(spans),
            pieces,
            stays,
        });
        let chunk = Chunk { id, offsets };
        self.chunks.insert(spans.to_vec(), chunk.clone());
        Ok(chunk)
    }

    /// All vectors of the plan in single precision in one buffer, with the word at which each starts. The points of
    /// grids go before them where a format needs some.
    pub fn vectors(
        &mut self,
        vectors: &[WeightId],
    ) -> Result<(DeviceBuffer, HashMap<WeightId, u32>)> {
        let grids = self.plan.weights.iter().any(|w| match w.format {
            Format::Blocks(codec) => uses_grid(codec),
            _ => false,
        });
        let mut data: Vec<f32> = grid_points().filter(|_| grids).collect();
        let mut places = HashMap::new();
        for id in vectors {
            let view = self.view(*id)?;
            places.insert(*id, data.len() as u32);
            let start = data.len();
            data.resize(start + view.row_len(), 0.0);
            view.format.decode_row(&view.bytes, &mut data[start..]);
        }
        data.resize(data.len().max(64), 0.0);
        let bytes: &[u8] = bytemuck::cast_slice(&data);
        let buffer = self
            .device
            .alloc(bytes.len() as u64, Owner::Weights, "vectors")?;
        self.device.write(&buffer, 0, bytes)?;
        Ok((buffer, places))
    }

    fn limit(&self) -> u64 {
        self.device.target().max_binding_bytes.min(ADDRESSABLE)
    }

    fn decl(&self, id: WeightId) -> &'a WeightDecl {
        &self.plan.weights[id.index()]
    }

    fn span_bytes(&self, spans: &[Span]) -> u64 {
        let one = |s: &Span| -> u64 {
            let rows = u64::from(s.end - s.first);
            s.weights
                .iter()
                .map(|w| (rows * row_bytes(self.decl(*w))).next_multiple_of(ALIGN))
                .sum()
        };
        spans.iter().map(one).sum::<u64>() + PADDING as u64
    }

    /// The stored tensor, checked against its declaration.
    fn view(&self, id: WeightId) -> Result<WeightView> {
        match self.file {
            Some(file) => declared(file, self.decl(id)),
            None => Err(self.missing(id, "was not cut so before")),
        }
    }

    fn missing(&self, id: WeightId, reason: &str) -> Error {
        Error::Weight {
            model: self.file.map_or(String::new(), |f| f.label().into()),
            tensor: self.decl(id).name.clone(),
            reason: reason.into(),
        }
    }
}

/// Rows of a chunk where so many fit: whole tiles, or half of one, a quarter and so on. Of many experts a row of each counts, so
/// that a tile may be too much; one row that does not fit is for the launch to refuse.
fn whole_tiles(rows: u64) -> u32 {
    let whole = match rows / CHUNK_ROWS {
        0 => 1u64 << rows.max(1).ilog2(),
        tiles => tiles * CHUNK_ROWS,
    };
    u32::try_from(whole).unwrap_or(u32::MAX)
}

fn rows(decl: &WeightDecl) -> u32 {
    decl.shape.iter().rev().skip(1).product()
}

/// Stored bytes of a row.
pub(super) fn row_bytes(decl: &WeightDecl) -> u64 {
    decl.format
        .row_bytes(decl.shape.last().copied().unwrap_or(1) as usize) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_tiles_or_parts_of_one() {
        let chunks = [0, 1, 3, 31, 63, 64, 127, 1000].map(whole_tiles);
        assert_eq!(chunks, [1, 1, 2, 16, 32, 64, 64, 960]);
    }
}
