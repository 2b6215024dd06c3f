//! Shapes of AMX's eight tile registers (Intel SDM, LDTILECFG), a thread's own.
//!
//! No compiled code uses them, so what is in them stays from one block of assembly to the next.

use std::arch::asm;

/// Bytes of a register's row.
pub(super) const ROW: usize = 64;

/// Rows of a register, and their bytes.
pub(super) type Shape = (usize, usize);

/// What `ldtilecfg` loads: palette 1, then bytes of a row and rows of each register.
#[repr(C, align(64))]
pub(super) struct Config {
    palette: [u8; 16],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Registers of these shapes.
    pub(super) const fn new(shapes: [Shape; 8]) -> Self {
        let mut config = Config {
            palette: [0; 16],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.palette[0] = 1;
        let mut i = 0;
        while i < 8 {
            let (rows, bytes) = shapes[i];
            config.rows[i] = rows as u8;
            config.row_bytes[i] = bytes as u16;
            i += 1;
        }
        config
    }

    /// Gives this thread's registers these shapes.
    ///
    /// # Safety
    /// The process may use AMX.
    pub(super) unsafe fn set_up(&'static self) {
        // SAFETY: the configuration is valid and 64 bytes long.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) };
    }
}

/// Gives this thread's registers up.
///
/// # Safety
/// The process may use AMX.
pub(super) unsafe fn release() {
    // SAFETY: no compiled code uses tile registers.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}
