//! How fast this machine multiplies, from registers alone.

use rusty_backend::Isa;
use std::hint::black_box;
use std::time::Instant;

/// Passes of a loop, and the additions in flight in each.
const PASSES: usize = 1 << 22;
const CHAINS: usize = 12;

/// Operations per second of all threads together.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    /// On single precision.
    pub floats: f64,
    /// On BF16, as floats where there is no instruction for it.
    pub brains: f64,
    /// On bytes.
    pub bytes: f64,
}

/// The peaks of `threads` threads with the instructions of an instruction set that this machine has. None for what is no such.
pub fn measure(threads: usize, isa: Isa) -> Option<Peak> {
    #[cfg(target_arch = "x86_64")]
    match isa {
        Isa::Avx512 { vnni, bf16, amx } => {
            assert!(is_x86_feature_detected!("avx512f"));
            // SAFETY: the feature was found; so were the others that the set is said to have, by whoever detected it.
            let floats = rate(threads, 16 * 2, || unsafe { avx512::floats() });
            let brains = match (amx, bf16) {
                // SAFETY: as above; the process may use tile registers.
                (true, _) => rate(threads, 16 * 16 * 32 * 2, || unsafe { amx::brains() }),
                // SAFETY: as above.
                (_, true) => rate(threads, 32 * 2, || unsafe { avx512::brains() }),
                _ => floats,
            };
            let bytes = match (amx, vnni) {
                // SAFETY: as above.
                (true, _) => rate(threads, 16 * 16 * 64 * 2, || unsafe { amx::bytes() }),
                // SAFETY: as above.
                (_, true) => rate(threads, 64 * 2, || unsafe { avx512::bytes() }),
                // Summed in words, as AVX2 does it, which there always is, too.
                // SAFETY: as above.
                _ => rate(threads, 32 * 2, || unsafe { avx2::bytes() }),
            };
            return Some(Peak {
                floats,
                brains,
                bytes,
            });
        }
        Isa::Avx2 { vnni } => {
            assert!(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"));
            // SAFETY: the features were found, and AVX-VNNI by whoever detected the set.
            let floats = rate(threads, 8 * 2, || unsafe { avx2::floats() });
            return Some(Peak {
                floats,
                brains: floats,
                bytes: match vnni {
                    // SAFETY: as above.
                    true => rate(threads, 32 * 2, || unsafe { avx2::bytes_at_once() }),
                    // Summed in words.
                    // SAFETY: as above.
                    false => rate(threads, 32 * 2, || unsafe { avx2::bytes() }),
                },
            });
        }
        Isa::Scalar | Isa::Neon { .. } => {}
    }
    let _ = (threads, isa, rate as fn(usize, usize, fn()) -> f64);
    None
}

/// The best of some rounds of a loop whose step takes `ops` operations: lanes times the pairs in a lane, a multiplication and
/// an addition each.
fn rate<F: Fn() + Sync>(threads: usize, ops: usize, work: F) -> f64 {
    let round = |_| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(&work);
            }
        });
        (threads * PASSES * CHAINS * ops) as f64 / start.elapsed().as_secs_f64()
    };
    (0..5).map(round).fold(0.0, f64::max)
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{CHAINS, PASSES, black_box};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub(super) fn floats() {
        let (a, b) = (
            _mm512_set1_ps(black_box(0.5)),
            _mm512_set1_ps(black_box(0.25)),
        );
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..PASSES {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(a, b, *sum);
            }
        }
        for sum in sums {
            black_box(_mm512_reduce_add_ps(sum));
        }
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn brains() {
        let (a, b) = (
            _mm512_set1_ps(black_box(0.5)),
            _mm512_set1_ps(black_box(0.25)),
        );
        let (a, b) = (_mm512_cvtne2ps_pbh(a, a), _mm512_cvtne2ps_pbh(b, b));
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..PASSES {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, a, b);
            }
        }
        for sum in sums {
            black_box(_mm512_reduce_add_ps(sum));
        }
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn bytes() {
        let (a, b) = (
            _mm512_set1_epi8(black_box(3)),
            _mm512_set1_epi8(black_box(5)),
        );
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..PASSES {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        for sum in sums {
            black_box(_mm512_reduce_add_epi32(sum));
        }
    }
}

/// AMX's tile registers (Intel SDM, TDPBF16PS and TDPBUSD): products of sixteen rows by sixteen columns. No compiled code uses them.
#[cfg(target_arch = "x86_64")]
mod amx {
    use super::{CHAINS, PASSES};
    use std::arch::asm;

    /// What `ldtilecfg` loads: palette 1, and eight registers of sixteen rows of 64 bytes.
    #[repr(C, align(64))]
    struct Shapes {
        palette: [u8; 16],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    const fn shapes() -> Shapes {
        let mut shapes = Shapes {
            palette: [0; 16],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        shapes.palette[0] = 1;
        let mut i = 0;
        while i < 8 {
            shapes.row_bytes[i] = 64;
            shapes.rows[i] = 16;
            i += 1;
        }
        shapes
    }

    static SHAPES: Shapes = shapes();

    /// As many products as the other loops make additions, by four registers of sums.
    macro_rules! products {
        ($name:ident, $instruction:literal) => {
            /// # Safety
            /// The process may use AMX.
            pub(super) unsafe fn $name() {
                // SAFETY: the shapes are valid and 64 bytes long. Cleared registers are multiplied; all are given up in the end.
                unsafe {
                    asm!(
                        "ldtilecfg [{shapes}]",
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        "tilezero tmm4",
                        "tilezero tmm5",
                        "2:",
                        concat!($instruction, " tmm0, tmm4, tmm5"),
                        concat!($instruction, " tmm1, tmm4, tmm5"),
                        concat!($instruction, " tmm2, tmm4, tmm5"),
                        concat!($instruction, " tmm3, tmm4, tmm5"),
                        "dec {passes}",
                        "jnz 2b",
                        "tilerelease",
                        shapes = in(reg) &SHAPES,
                        passes = inout(reg) PASSES * CHAINS / 4 => _,
                        options(nostack, readonly),
                    );
                }
            }
        };
    }

    products!(brains, "tdpbf16ps");
    products!(bytes, "tdpbusd");
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{CHAINS, PASSES, black_box};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn floats() {
        let (a, b) = (
            _mm256_set1_ps(black_box(0.5)),
            _mm256_set1_ps(black_box(0.25)),
        );
        let mut sums = [_mm256_setzero_ps(); CHAINS];
        for _ in 0..PASSES {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(a, b, *sum);
            }
        }
        for sum in sums {
            black_box(_mm256_cvtss_f32(sum));
        }
    }

    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) fn bytes_at_once() {
        let (a, b) = (
            _mm256_set1_epi8(black_box(5)),
            _mm256_set1_epi8(black_box(3)),
        );
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..PASSES {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
            }
        }
        for sum in sums {
            black_box(_mm256_extract_epi32::<0>(sum));
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn bytes() {
        let a = _mm256_set1_epi8(black_box(5));
        let mut sums = [_mm256_set1_epi8(black_box(3)); CHAINS];
        for _ in 0..PASSES {
            for sum in &mut sums {
                // Products of what does not change would be made once.
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(a, *sum));
            }
        }
        for sum in sums {
            black_box(_mm256_extract_epi32::<0>(sum));
        }
    }
}
