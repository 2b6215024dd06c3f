//! Reads of a buffer's words that stay where a kernel states them, and that read as many at once as it states. Compilers move reads
//! towards their first use, one by one, and behind waits for other launches: then each is waited for on its own. CUDA alone has them.

use cubecl::prelude::*;

/// Words that are read at once: the most of 4, 2 and 1 that `count` is whole times of.
pub const fn at_once(count: usize) -> usize {
    match count % 4 {
        0 => 4,
        2 => 2,
        _ => 1,
    }
}

/// Reads words from `at` on, whole times [`at_once()`], into `to` from `place` on; `at` is a multiple of as many.
#[cube]
pub fn read_words(
    words: &[u32],
    at: u32,
    to: &mut Array<u32>,
    #[comptime] place: usize,
    #[comptime] count: usize,
) {
    let step = comptime!(at_once(count));
    #[unroll]
    for i in 0..comptime!(count / step) {
        let first = comptime!(i * step);
        // SAFETY: the address of words that the caller has.
        let address =
            unsafe { words[(at + comptime!(first as u32)) as usize..].as_ptr_unchecked() };
        if comptime!(step == 4) {
            let read: Vector<u32, Const<4>>;
            gpu_asm!(
                "ld.global.v4.u32 {d}, [{a}];",
                d = out(_) read, a = in(_) address,
                options(nomem),
            );
            #[unroll]
            for j in 0..step {
                to[comptime!(place + first + j)] = read.extract(j);
            }
        } else if comptime!(step == 2) {
            let read: Vector<u32, Const<2>>;
            gpu_asm!(
                "ld.global.v2.u32 {d}, [{a}];",
                d = out(_) read, a = in(_) address,
                options(nomem),
            );
            #[unroll]
            for j in 0..step {
                to[comptime!(place + first + j)] = read.extract(j);
            }
        } else {
            let read: u32;
            gpu_asm!(
                "ld.global.u32 {d}, [{a}];",
                d = out(_) read, a = in(_) address,
                options(nomem),
            );
            to[comptime!(place + first)] = read;
        }
    }
}

/// Reads a word before what the kernel does next, whatever that is.
#[cube]
pub fn read_now(words: &[u32], at: u32) -> u32 {
    // SAFETY: the address of a word that the caller has.
    let address = unsafe { words[at as usize..].as_ptr_unchecked() };
    let read: u32;
    gpu_asm!(
        "ld.volatile.global.u32 {d}, [{a}];",
        d = out(_) read, a = in(_) address,
        options(nomem),
    );
    read
}
