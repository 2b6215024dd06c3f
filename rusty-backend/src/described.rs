//! A GPU that is only described: it takes buffers and kernels, holds and runs nothing. What a program would have compiled on
//! a machine that is not at hand is collected so.

use crate::memory::{Accounts, Owner, Usage};
use crate::{
    DeviceBuffer, Error, Fetch, GpuDevice, KernelText, Launch, Pending, Pipeline, Recording,
    Result, Target,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A described device and the texts that it was given.
#[derive(Debug)]
pub struct DescribedDevice {
    target: Target,
    accounts: Arc<Accounts>,
    texts: Mutex<BTreeMap<String, KernelText>>,
}

impl DescribedDevice {
    /// A device of these facts, with all the memory there could be.
    pub fn new(target: Target) -> Self {
        Self {
            accounts: Accounts::new(&target.name, u64::MAX),
            target,
            texts: Mutex::default(),
        }
    }

    /// Texts of all pipelines so far, each once, by their keys.
    pub fn texts(&self) -> Vec<KernelText> {
        let texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.values().cloned().collect()
    }

    fn absent<T>(&self) -> Result<T> {
        Err(Error::Absent {
            asked: self.target.name.clone(),
            reason: "it is described, not present".into(),
            available: String::new(),
        })
    }
}

impl GpuDevice for DescribedDevice {
    fn target(&self) -> &Target {
        &self.target
    }

    fn alloc(&self, bytes: u64, owner: Owner, label: &str) -> Result<DeviceBuffer> {
        let charge = self.accounts.charge(owner, bytes)?;
        Ok(DeviceBuffer::new(Box::new(()), bytes, label, charge))
    }

    fn write(&self, buffer: &DeviceBuffer, offset: u64, data: &[u8]) -> Result<()> {
        buffer.check_transfer(offset, data.len() as u64)
    }

    fn pipeline(&self, text: &KernelText) -> Result<Pipeline> {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.insert(text.key.clone(), text.clone());
        Ok(Pipeline::new(Box::new(()), text))
    }

    fn record(&self, launches: &[Launch]) -> Result<Recording> {
        launches.iter().try_for_each(|l| l.check(&self.target))?;
        Ok(Recording::new(Box::new(()), launches))
    }

    fn submit(&self, _: &Recording) -> Result<()> {
        self.absent()
    }

    fn fetch(&self, _: Option<&Recording>, _: &[Fetch<'_>]) -> Result<Pending> {
        self.absent()
    }

    fn receive(&self, _: Pending, _: &mut [&mut [u8]]) -> Result<()> {
        self.absent()
    }

    fn copy(&self, _: &DeviceBuffer, _: u64, _: &DeviceBuffer, _: u64, _: u64) -> Result<()> {
        self.absent()
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn submissions(&self) -> u64 {
        0
    }

    fn usage(&self) -> Usage {
        self.accounts.usage()
    }
}
