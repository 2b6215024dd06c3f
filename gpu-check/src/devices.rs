//! The GPUs of this machine.

use serde::{Deserialize, Serialize};

/// A GPU that there is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Present {
    /// The word that chooses it.
    pub choice: String,
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Whether it is more than a program.
    pub hardware: bool,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct All {
    /// CUDA first, then what wgpu reaches.
    pub present: Vec<Present>,
    /// One line per device, also of those that are absent, with the reason.
    pub lines: Vec<String>,
}

/// Looks for GPUs.
pub fn all() -> All {
    let mut found = All::default();
    for device in rusty_backend::discover() {
        let line = match &device.absent {
            Some(reason) => format!("{:<8} absent: {reason}", device.choice),
            None => format!("{:<8} {}", device.choice, device.name),
        };
        found.lines.push(line);
        let known = found.present.iter().any(|d| d.choice == device.choice);
        if device.absent.is_none() && device.choice != "cpu" && !known {
            found.present.push(Present {
                choice: device.choice,
                name: device.name,
                memory_bytes: device.memory_bytes,
                hardware: device.hardware,
            });
        }
    }
    // A software adapter is for machines that have nothing else.
    if found.present.iter().any(|d| d.hardware) {
        found.present.retain(|d| d.hardware);
    }
    found.present.sort_by_key(|d| !d.choice.starts_with("cuda"));
    found
}
