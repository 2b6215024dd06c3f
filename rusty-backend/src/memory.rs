//! Memory of a device, accounted by owner: a request beyond the limit is refused before the driver sees it.

use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// Model weights.
    Weights,
    /// The paged key-value cache.
    Kv,
    /// Adapter slot tables.
    Adapters,
    /// Intermediates of a step.
    Arena,
    /// Upload rings and read-back buffers, which lie in the host's memory.
    Staging,
    /// Everything else: step inputs, tables, tests.
    Other,
}

impl Owner {
    /// Every owner, in display order.
    pub const ALL: [Owner; 6] = [
        Owner::Weights,
        Owner::Kv,
        Owner::Adapters,
        Owner::Arena,
        Owner::Staging,
        Owner::Other,
    ];

    /// Its word in listings and errors.
    pub fn word(self) -> &'static str {
        match self {
            Owner::Weights => "weights",
            Owner::Kv => "kv",
            Owner::Adapters => "adapters",
            Owner::Arena => "arena",
            Owner::Staging => "staging",
            Owner::Other => "other",
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The book of one device's memory; shared by all its buffers.
#[derive(Debug)]
pub struct Accounts {
    device: String,
    limit: u64,
    used: [AtomicU64; Owner::ALL.len()],
    total: AtomicU64,
    peak: AtomicU64,
}

/// Bytes in use, by owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of each owner that has any, in display order.
    pub by_owner: Vec<(Owner, u64)>,
    /// Their sum but for what is staged.
    pub total: u64,
    /// The largest sum there was.
    pub peak: u64,
    /// Bytes there may be; `u64::MAX` where the driver does not tell.
    pub limit: u64,
}

impl Accounts {
    /// An empty book for `device` with `limit` bytes; 0 means that the limit is not known.
    pub fn new(device: impl Into<String>, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            device: device.into(),
            limit: if limit == 0 { u64::MAX } else { limit },
            used: Default::default(),
            total: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        })
    }

    /// Books `bytes` for `owner` until the charge is dropped. What is staged is not the device's: it is told, but not
    /// summed.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the device's limit would be passed.
    pub fn charge(self: &Arc<Self>, owner: Owner, bytes: u64) -> Result<Charge> {
        if owner != Owner::Staging {
            let booked = self
                .total
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |total| {
                    total.checked_add(bytes).filter(|sum| *sum <= self.limit)
                });
            let before = booked.map_err(|used| self.refusal(owner, bytes, used))?;
            self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        }
        self.used[owner as usize].fetch_add(bytes, Ordering::Relaxed);
        Ok(Charge {
            accounts: Arc::clone(self),
            owner,
            bytes,
        })
    }

    /// The error for `bytes` that could not be had.
    pub fn refuse(&self, owner: Owner, bytes: u64) -> Error {
        self.refusal(owner, bytes, self.total.load(Ordering::Relaxed))
    }

    fn refusal(&self, owner: Owner, asked: u64, used: u64) -> Error {
        Error::OutOfMemory {
            device: self.device.clone(),
            owner: owner.word().into(),
            asked,
            used,
            limit: self.limit,
        }
    }

    /// What is in use now.
    pub fn usage(&self) -> Usage {
        let by_owner = Owner::ALL
            .into_iter()
            .map(|owner| (owner, self.used[owner as usize].load(Ordering::Relaxed)))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        Usage {
            by_owner,
            total: self.total.load(Ordering::Relaxed),
            peak: self.peak.load(Ordering::Relaxed),
            limit: self.limit,
        }
    }
}

/// Booked bytes; dropping it returns them.
#[derive(Debug)]
pub struct Charge {
    accounts: Arc<Accounts>,
    owner: Owner,
    bytes: u64,
}

impl Charge {
    /// Who it is booked for.
    pub fn owner(&self) -> Owner {
        self.owner
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.accounts.used[self.owner as usize].fetch_sub(self.bytes, Ordering::Relaxed);
        if self.owner != Owner::Staging {
            self.accounts.total.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}
