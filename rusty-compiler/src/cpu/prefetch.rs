//! Asking for memory ahead of its use.
//!
//! Tables of adapters are many short runs of bytes (a strip's panels are one to four KiB), each too short for the
//! hardware to notice the stream before it ends.

/// Bytes that memory is fetched in.
const LINE: usize = 64;

/// Asks for bytes to be brought into the second-level cache. A hint: nothing waits for it.
#[inline]
pub(super) fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: part of the baseline instruction set; prefetches read nothing that a program can see.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pldl2keep, [{}]", in(reg) line.as_ptr(), options(nostack, readonly, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}
