//! AMX, the tile registers of Intel's servers: whether this process may use them.
//!
//! Linux hands the eight KiB of tile registers only to processes that ask (kernel documentation, "Using XSTATE features in
//! user space applications"). Asking once is for all threads.

/// Whether products of bytes and of brain floats in tiles can be used; asks the system on first use.
#[cfg(target_os = "linux")]
pub(crate) fn granted() -> bool {
    use std::arch::x86_64::__cpuid_count;
    use std::sync::OnceLock;

    /// `AMX-BF16`, `AMX-TILE` and `AMX-INT8` in `edx` of leaf 7 (Intel SDM, CPUID).
    const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    /// `arch_prctl`, its request for a state, and the tiles' state.
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;

    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        if __cpuid_count(7, 0).edx & FEATURES != FEATURES {
            return false;
        }
        let refused: isize;
        // SAFETY: the call takes two numbers and changes what this process may use. Kernels that do not know it, or do not
        // save tiles, refuse.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => refused,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        refused == 0
    })
}

/// Other systems do not have them.
#[cfg(not(target_os = "linux"))]
pub(crate) fn granted() -> bool {
    false
}
