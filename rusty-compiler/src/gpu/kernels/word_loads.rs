//! Reads of a buffer's words that stay where a kernel states them, and that read as many at once as it states. Compilers move reads
//! towards their first use, one by one, and behind waits for other launches: then each is waited for on its own. CUDA alone has them. Reads of four
//! words that may be moved are vectors (`decode_chunks`).

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
        let from = at + comptime!(first as u32);
        let place = comptime!(place + first);
        if comptime!(step == 4) {
            read_vector::<Const<4>>(words, from, to, place, step);
        } else if comptime!(step == 2) {
            read_vector::<Const<2>>(words, from, to, place, step);
        } else {
            to[place] = read_word(words, from, "");
        }
    }
}

/// Reads `count` words at once.
#[cube]
fn read_vector<N: Size>(
    words: &[u32],
    at: u32,
    to: &mut Array<u32>,
    #[comptime] place: usize,
    #[comptime] count: usize,
) {
    // SAFETY: the address of words that the caller has.
    let address = unsafe { words[at as usize..].as_ptr_unchecked() };
    let read: Vector<u32, N>;
    gpu_asm!(
        "ld.global.v{count}.u32 {d}, [{a}];",
        d = out(_) read, a = in(_) address,
        options(nomem),
    );
    #[unroll]
    for i in 0..count {
        to[comptime!(place + i)] = read.extract(i);
    }
}

/// Reads a word before what the kernel does next, whatever that is.
#[cube]
pub fn read_now(words: &[u32], at: u32) -> u32 {
    read_word(words, at, ".volatile")
}

/// Reads a word by an instruction that is `how`.
#[cube]
fn read_word(words: &[u32], at: u32, #[comptime] how: &'static str) -> u32 {
    // SAFETY: the address of a word that the caller has.
    let address = unsafe { words[at as usize..].as_ptr_unchecked() };
    let read: u32;
    gpu_asm!(
        "ld{how}.global.u32 {d}, [{a}];",
        d = out(_) read, a = in(_) address,
        options(nomem),
    );
    read
}
