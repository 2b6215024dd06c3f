//! WGSL to compute pipelines, once per key. Kept on disk are the [modules] that texts are parsed to, and the driver's own cache where there
//! is one.
//!
//! Limits: what a module is translated to for an API (SPIR-V, for one) is not kept: to hand wgpu a translation of our own is to go without
//! its checks and to know each API's language here, for a twentieth of what parsing takes. What wgpu refuses in a module it tells without
//! the place in the text.

use super::faults::{guarded, is_full};
use super::modules;
use crate::memory::{Accounts, Owner};
use crate::{BindingAccess, Error, KernelText, Language, Pipeline, Result};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A compiled kernel.
#[derive(Debug)]
pub(super) struct WgpuPipeline {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

/// Pipelines of a device by key.
#[derive(Debug)]
pub(super) struct Pipelines {
    by_key: Mutex<HashMap<String, Pipeline>>,
    driver_cache: Option<(wgpu::PipelineCache, String)>,
}

impl Pipelines {
    /// `cache` names the file that the driver's cache is kept in.
    pub(super) fn new(device: &wgpu::Device, cache: Option<String>) -> Self {
        let driver_cache = cache.map(|name| {
            let kept = crate::cache::load(&name);
            let wanted = wgpu::PipelineCacheDescriptor {
                label: Some("rusty"),
                data: kept.as_deref(),
                fallback: true,
            };
            // SAFETY: the data was written by `keep` from `get_data`; wgpu checks its header and the driver its
            // own, and both fall back to an empty cache.
            let cache = unsafe { device.create_pipeline_cache(&wanted) };
            (cache, name)
        });
        Self {
            by_key: Mutex::default(),
            driver_cache,
        }
    }

    /// The pipeline of `text`; name and accounts of the device are for errors.
    pub(super) fn get(
        &self,
        device: &wgpu::Device,
        (device_name, accounts): (&str, &Accounts),
        text: &KernelText,
    ) -> Result<Pipeline> {
        if let Some(known) = self.lock().get(&text.key) {
            return Ok(known.clone());
        }
        let refuse = |log: String| Error::Kernel {
            device: device_name.into(),
            entry: text.entry.clone(),
            log,
        };
        if text.language != Language::Wgsl {
            return Err(refuse(format!("the text is {:?}, not WGSL", text.language)));
        }
        let module = modules::module(&text.source).map_err(refuse)?;
        // The lock is not held while compiling, so that many threads can.
        let compiled = self.compile(device, text, module);
        // A device that is full refuses no kernel: another one would find no more room.
        let compiled = compiled.map_err(|error| match is_full(&error) {
            true => accounts.refuse(Owner::Other, 0),
            false => refuse(error.to_string()),
        })?;
        let pipeline = Pipeline::new(Box::new(compiled), text);
        if !text.key.is_empty() {
            self.lock().insert(text.key.clone(), pipeline.clone());
        }
        Ok(pipeline)
    }

    fn compile(
        &self,
        device: &wgpu::Device,
        text: &KernelText,
        module: naga::Module,
    ) -> Result<WgpuPipeline, wgpu::Error> {
        let label = Some(text.entry.as_str());
        let module = guarded(device, || {
            let descriptor = wgpu::ShaderModuleDescriptor {
                label,
                source: wgpu::ShaderSource::Naga(Cow::Owned(module)),
            };
            // SAFETY: texts come from the compiler of this project, whose kernels keep their indices inside the
            // bindings and whose loops end.
            unsafe {
                device.create_shader_module_trusted(
                    descriptor,
                    wgpu::ShaderRuntimeChecks::unchecked(),
                )
            }
        })?;
        guarded(device, || {
            let layout = layout(device, text);
            let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label,
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label,
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some(&text.entry),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: self.driver_cache.as_ref().map(|(cache, _)| cache),
            });
            WgpuPipeline { pipeline, layout }
        })
    }

    /// Writes the driver's cache to its file.
    pub(super) fn keep(&self) {
        if let Some((cache, name)) = &self.driver_cache
            && let Some(data) = cache.get_data()
        {
            crate::cache::store(name, &data);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Pipeline>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn layout(device: &wgpu::Device, text: &KernelText) -> wgpu::BindGroupLayout {
    let info = text.info.then_some(&BindingAccess::Read);
    let entries: Vec<_> = (0..)
        .zip(text.bindings.iter().chain(info))
        .map(|(binding, access)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage {
                    read_only: *access == BindingAccess::Read,
                },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some(&text.entry),
        entries: &entries,
    })
}
