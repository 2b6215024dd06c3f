//! Errors of wgpu as typed errors: scopes around calls, what no scope caught, and the loss of the device.

use crate::{Error, Result};
use pollster::block_on;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use wgpu::ErrorFilter;

/// What happened to a device outside of a scope.
#[derive(Debug, Default)]
pub(super) struct Faults {
    lost: OnceLock<String>,
    stray: Mutex<Option<String>>,
}

impl Faults {
    /// Watches `device` for loss and for errors that no scope caught.
    pub(super) fn watch(device: &wgpu::Device) -> Arc<Self> {
        let faults = Arc::new(Self::default());
        let on_loss = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| {
            // Only the first reason matters: later ones follow from it.
            let _ = on_loss.lost.set(format!("{reason:?}: {message}"));
        });
        let on_error = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error| {
            tracing::error!("{error}");
            let mut stray = on_error
                .stray
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            stray.get_or_insert_with(|| error.to_string());
        }));
        faults
    }

    /// The error of a lost device, or one that nobody has heard of yet.
    pub(super) fn check(&self, device: &str) -> Result<()> {
        if let Some(reason) = self.lost.get() {
            return Err(Error::Lost {
                device: device.into(),
                reason: reason.clone(),
            });
        }
        let mut stray = self.stray.lock().unwrap_or_else(PoisonError::into_inner);
        match stray.take() {
            None => Ok(()),
            Some(reason) => Err(Error::Driver {
                device: device.into(),
                call: "an earlier call".into(),
                reason,
            }),
        }
    }
}

/// Whether an error is that a device has no memory left.
pub(super) fn is_full(error: &wgpu::Error) -> bool {
    matches!(error, wgpu::Error::OutOfMemory { .. })
}

/// Runs `call` and returns its value or the first error that wgpu raised in it on this thread.
pub(super) fn guarded<T>(
    device: &wgpu::Device,
    call: impl FnOnce() -> T,
) -> Result<T, wgpu::Error> {
    let memory = device.push_error_scope(ErrorFilter::OutOfMemory);
    let internal = device.push_error_scope(ErrorFilter::Internal);
    let validation = device.push_error_scope(ErrorFilter::Validation);
    let value = call();
    let validation = block_on(validation.pop());
    let internal = block_on(internal.pop());
    let memory = block_on(memory.pop());
    match memory.or(internal).or(validation) {
        None => Ok(value),
        Some(error) => Err(error),
    }
}
