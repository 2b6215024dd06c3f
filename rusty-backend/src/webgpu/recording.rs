//! Recordings: bind groups made once, encoded into one compute pass per submission.

use super::faults::{guarded, is_full};
use super::pipelines::WgpuPipeline;
use crate::memory::{Accounts, Owner};
use crate::{BufferSlice, Error, Launch, Result, Target};
use std::num::NonZeroU64;

/// Launches with their bind groups.
#[derive(Debug)]
pub(super) struct WgpuRecording {
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    pipeline: wgpu::ComputePipeline,
    operands: wgpu::BindGroup,
    groups: [u32; 3],
}

impl WgpuRecording {
    /// Checks `launches` and builds their bind groups over their buffers and one buffer of info blocks.
    pub(super) fn new(
        device: &wgpu::Device,
        target: &Target,
        accounts: &Accounts,
        launches: &[Launch],
    ) -> Result<Self> {
        for launch in launches {
            check(target, launch)?;
        }
        let align = target.binding_align.max(8);
        let (blocks, offsets) = pack_info(launches, align);
        let info = match blocks.is_empty() {
            true => None,
            false => Some(info_buffer(device, target, accounts, &blocks)?),
        };
        let mut steps = Vec::with_capacity(launches.len());
        for (launch, offset) in launches.iter().zip(offsets) {
            let block = info.as_ref().map(|buffer| (buffer, offset));
            let step = guarded(device, || Step::new(device, launch, block))
                .map_err(|error| refusal(accounts, launch, error))??;
            steps.push(step);
        }
        let recording = Self { steps };
        if let Err(error) = guarded(device, || recording.encode(device)) {
            return Err(recording.blame(device, accounts, launches, error));
        }
        Ok(recording)
    }

    /// One compute pass with every launch.
    pub(super) fn encode(&self, device: &wgpu::Device) -> wgpu::CommandBuffer {
        encode(device, &self.steps)
    }

    /// The same pass among other commands.
    pub(super) fn encode_into(&self, encoder: &mut wgpu::CommandEncoder) {
        pass(encoder, &self.steps);
    }

    /// Finds the launch that wgpu refuses.
    fn blame(
        &self,
        device: &wgpu::Device,
        accounts: &Accounts,
        launches: &[Launch],
        error: wgpu::Error,
    ) -> Error {
        for (step, launch) in self.steps.iter().zip(launches) {
            let alone = guarded(device, || encode(device, std::slice::from_ref(step)));
            if let Err(error) = alone {
                return refusal(accounts, launch, error);
            }
        }
        match launches.first() {
            Some(_) if is_full(&error) => accounts.refuse(Owner::Other, 0),
            Some(first) => refused(first, format!("(or a later launch) {error}")),
            None => Error::Driver {
                device: String::new(),
                call: "record".into(),
                reason: error.to_string(),
            },
        }
    }
}

impl Step {
    fn new(
        device: &wgpu::Device,
        launch: &Launch,
        info: Option<(&wgpu::Buffer, u64)>,
    ) -> Result<Self> {
        let own = launch.pipeline.raw::<WgpuPipeline>()?;
        let mut entries = Vec::with_capacity(launch.buffers.len() + 1);
        for slice in &launch.buffers {
            entries.push(entry(entries.len(), slice.buffer.raw()?, slice));
        }
        if let Some((buffer, offset)) = info.filter(|_| launch.pipeline.info()) {
            entries.push(wgpu::BindGroupEntry {
                binding: entries.len() as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset,
                    size: NonZeroU64::new(launch.info.len() as u64 * 8),
                }),
            });
        }
        Ok(Self {
            pipeline: own.pipeline.clone(),
            operands: device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(&launch.label),
                layout: &own.layout,
                entries: &entries,
            }),
            groups: launch.groups,
        })
    }
}

fn entry<'a>(
    index: usize,
    buffer: &'a wgpu::Buffer,
    slice: &BufferSlice,
) -> wgpu::BindGroupEntry<'a> {
    wgpu::BindGroupEntry {
        binding: index as u32,
        resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer,
            offset: slice.offset,
            size: NonZeroU64::new(slice.len),
        }),
    }
}

fn encode(device: &wgpu::Device, steps: &[Step]) -> wgpu::CommandBuffer {
    let mut encoder = device.create_command_encoder(&Default::default());
    pass(&mut encoder, steps);
    encoder.finish()
}

fn pass(encoder: &mut wgpu::CommandEncoder, steps: &[Step]) {
    let mut pass = encoder.begin_compute_pass(&Default::default());
    let mut current = None;
    for step in steps {
        if current != Some(&step.pipeline) {
            pass.set_pipeline(&step.pipeline);
            current = Some(&step.pipeline);
        }
        pass.set_bind_group(0, &step.operands, &[]);
        let [x, y, z] = step.groups;
        pass.dispatch_workgroups(x, y, z);
    }
}

fn check(target: &Target, launch: &Launch) -> Result<()> {
    launch.check(target)?;
    launch.pipeline.raw::<WgpuPipeline>()?;
    for slice in &launch.buffers {
        slice.buffer.raw::<wgpu::Buffer>()?;
    }
    Ok(())
}

/// What wgpu says of a launch; a device that is full refuses none.
fn refusal(accounts: &Accounts, launch: &Launch, error: wgpu::Error) -> Error {
    match is_full(&error) {
        true => accounts.refuse(Owner::Other, 0),
        false => refused(launch, error.to_string()),
    }
}

fn refused(launch: &Launch, reason: String) -> Error {
    Error::Launch {
        label: launch.label.clone(),
        entry: launch.pipeline.entry().into(),
        reason,
    }
}

/// All info blocks one after another at multiples of `align`, with their offsets in bytes.
fn pack_info(launches: &[Launch], align: u64) -> (Vec<u64>, Vec<u64>) {
    let step = align.div_ceil(8) as usize;
    let mut blocks = Vec::new();
    let mut offsets = Vec::with_capacity(launches.len());
    for launch in launches {
        blocks.resize(blocks.len().next_multiple_of(step), 0);
        offsets.push(blocks.len() as u64 * 8);
        blocks.extend_from_slice(&launch.info);
    }
    (blocks, offsets)
}

/// A buffer of info blocks; wgpu's own way to a buffer with contents panics where there is no memory.
fn info_buffer(
    device: &wgpu::Device,
    target: &Target,
    accounts: &Accounts,
    blocks: &[u64],
) -> Result<wgpu::Buffer> {
    let bytes: &[u8] = bytemuck::cast_slice(blocks);
    let failed = |reason: String| Error::Driver {
        device: target.name.clone(),
        call: "alloc info blocks".into(),
        reason,
    };
    let made = guarded(device, || {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("info blocks"),
            size: bytes.len() as u64,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: true,
        })
    });
    let buffer = made.map_err(|error| match is_full(&error) {
        true => accounts.refuse(Owner::Other, bytes.len() as u64),
        false => failed(error.to_string()),
    })?;
    buffer
        .get_mapped_range_mut(..)
        .map_err(|error| failed(error.to_string()))?
        .copy_from_slice(bytes);
    buffer.unmap();
    Ok(buffer)
}
