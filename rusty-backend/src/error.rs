//! What a device can refuse, naming what was asked and what there is.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A device error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such device.
    #[error("device '{asked}' is not available: {reason}; available: {available}")]
    Absent {
        /// What was asked for.
        asked: String,
        /// Why it cannot be had.
        reason: String,
        /// What there is.
        available: String,
    },
    /// The word names no device.
    #[error("'{0}' is no device; use auto, cpu, vulkan, metal, dx12, cuda or cuda:N")]
    Unknown(String),
    /// Memory ran out.
    #[error(
        "{device}: out of memory: {owner} asked for {}, {used} of {limit} bytes in use",
        amount(.asked)
    )]
    OutOfMemory {
        /// Device name.
        device: String,
        /// Weights, KV, adapters, arena, ..., or the driver's call that found none.
        owner: String,
        /// Bytes asked for; 0 where the driver does not tell.
        asked: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes there are.
        limit: u64,
    },
    /// The device is gone.
    #[error("{device}: lost ({reason}); open it again")]
    Lost {
        /// Device name.
        device: String,
        /// The driver's reason.
        reason: String,
    },
    /// A folder is no package of kernels.
    #[error("{folder}: no package of kernels ({reason}); `rusty compile` writes one")]
    Package {
        /// The folder.
        folder: String,
        /// What is wrong.
        reason: String,
    },
    /// A kernel's text was refused.
    #[error("{device}: kernel {entry} does not compile:\n{log}")]
    Kernel {
        /// Device name.
        device: String,
        /// Entry point.
        entry: String,
        /// The compiler's words.
        log: String,
    },
    /// The driver refused a call.
    #[error("{device}: {call} failed: {reason}")]
    Driver {
        /// Device name.
        device: String,
        /// What was tried.
        call: String,
        /// The driver's reason.
        reason: String,
    },
    /// More than one buffer or binding may hold on this device.
    #[error("{device}: {what} wants {asked} bytes, which may be {limit} at most; split it")]
    TooLarge {
        /// Device name.
        device: String,
        /// The buffer, or the launch and its binding.
        what: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes there may be.
        limit: u64,
    },
    /// A range leaves its buffer, or is not made of 4-byte words.
    #[error(
        "buffer {buffer} has {bytes} bytes; {len} bytes from {offset} leave it or are no whole words"
    )]
    Range {
        /// The buffer's label.
        buffer: String,
        /// Its length in bytes.
        bytes: u64,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// What was fetched is to go to places of other lengths.
    #[error("ranges of {fetched:?} bytes were fetched; there is room for {room:?}")]
    Received {
        /// Bytes of each range.
        fetched: Vec<usize>,
        /// Bytes of each place.
        room: Vec<usize>,
    },
    /// A launch does not fit its kernel.
    #[error("launch {label} of kernel {entry}: {reason}")]
    Launch {
        /// The launch's name.
        label: String,
        /// Entry point.
        entry: String,
        /// What is wrong.
        reason: String,
    },
    /// A thing of another device was handed in.
    #[error("{what} belongs to another device; bring it over through host memory")]
    Foreign {
        /// What it is.
        what: String,
    },
}

/// What was asked for, in words.
fn amount(asked: &u64) -> String {
    match asked {
        0 => "more".into(),
        bytes => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    fn full(asked: u64) -> String {
        let error = Error::OutOfMemory {
            device: "gpu".into(),
            owner: "capture a recording".into(),
            asked,
            used: 9,
            limit: 10,
        };
        error.to_string()
    }

    #[test]
    fn what_is_asked_for_is_said_where_it_is_known() {
        let said = "gpu: out of memory: capture a recording asked for";
        assert_eq!(full(2), format!("{said} 2 bytes, 9 of 10 bytes in use"));
        assert_eq!(full(0), format!("{said} more, 9 of 10 bytes in use"));
    }
}
