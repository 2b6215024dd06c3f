//! Host to device through a bounded ring of mapped buffers.

use super::queue::Queue;
use crate::Result;
use crate::memory::{Accounts, Charge, Owner};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use wgpu::{BufferUsages, MapMode};

/// Bytes of one piece of the ring.
const PIECE: u64 = 8 << 20;
/// Pieces of the ring: one is filled while the others travel.
const PIECES: usize = 4;
/// Writes up to this go through wgpu's own staging; larger ones through the ring.
pub(super) const SMALL: usize = 256 << 10;

/// The upload ring; made on the first large write.
#[derive(Debug, Default)]
pub(super) struct Ring {
    pieces: Vec<Piece>,
    next: usize,
    _charge: Option<Charge>,
}

#[derive(Debug)]
struct Piece {
    buffer: wgpu::Buffer,
    /// The submission that last read it, and word of its being mapped again; `None` while mapped.
    travelling: Option<(wgpu::SubmissionIndex, Receiver<Mapped>)>,
}

/// Word of a buffer's being mapped, or why it is not.
pub(super) type Mapped = Result<(), wgpu::BufferAsyncError>;

impl Ring {
    /// Copies `data` to `offset` of `to`; both are multiples of 4.
    pub(super) fn write(
        &mut self,
        (device, queue): (&wgpu::Device, &Queue),
        accounts: &Arc<Accounts>,
        to: &wgpu::Buffer,
        offset: u64,
        data: &[u8],
    ) -> Result<(), String> {
        self.make(device, accounts).map_err(|e| e.to_string())?;
        let written = self.through_pieces((device, queue), to, offset, data);
        if written.is_err() {
            // Some may be mapped, or on their way to be, and could not be copied from again.
            self.pieces.clear();
            self._charge = None;
        }
        written
    }

    fn through_pieces(
        &mut self,
        (device, queue): (&wgpu::Device, &Queue),
        to: &wgpu::Buffer,
        mut offset: u64,
        data: &[u8],
    ) -> Result<(), String> {
        for chunk in data.chunks(PIECE as usize) {
            let piece = &mut self.pieces[self.next];
            self.next = (self.next + 1) % PIECES;
            piece.arrive(device)?;
            let bytes = chunk.len() as u64;
            piece
                .buffer
                .get_mapped_range_mut(..bytes)
                .map_err(|e| e.to_string())?
                .copy_from_slice(chunk);
            piece.buffer.unmap();
            let mut encoder = device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&piece.buffer, 0, to, offset, bytes);
            let submission = queue.submit([encoder.finish()]);
            piece.depart(submission);
            offset += bytes;
        }
        Ok(())
    }

    fn make(&mut self, device: &wgpu::Device, accounts: &Arc<Accounts>) -> Result<()> {
        if !self.pieces.is_empty() {
            return Ok(());
        }
        self._charge = Some(accounts.charge(Owner::Staging, PIECE * PIECES as u64)?);
        self.pieces = (0..PIECES)
            .map(|_| Piece {
                buffer: device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("upload ring"),
                    size: PIECE,
                    usage: BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC,
                    mapped_at_creation: true,
                }),
                travelling: None,
            })
            .collect();
        Ok(())
    }
}

impl Piece {
    /// Waits until it is mapped.
    fn arrive(&mut self, device: &wgpu::Device) -> Result<(), String> {
        match self.travelling.take() {
            None => Ok(()),
            Some((submission, word)) => wait(device, submission, &word),
        }
    }

    fn depart(&mut self, submission: wgpu::SubmissionIndex) {
        let (tell, word) = channel();
        self.buffer.map_async(MapMode::Write, .., move |mapped| {
            // Nobody listens where the ring is gone.
            let _ = tell.send(mapped);
        });
        self.travelling = Some((submission, word));
    }
}

/// Waits for a submission and for the word that a buffer is mapped.
pub(super) fn wait(
    device: &wgpu::Device,
    submission: wgpu::SubmissionIndex,
    word: &Receiver<Mapped>,
) -> Result<(), String> {
    device
        .poll(wgpu::PollType::Wait {
            submission_index: Some(submission),
            timeout: None,
        })
        .map_err(|e| e.to_string())?;
    // Another thread's poll may be about to give the word.
    match word.recv() {
        Ok(mapped) => mapped.map_err(|e| e.to_string()),
        Err(gone) => Err(gone.to_string()),
    }
}
