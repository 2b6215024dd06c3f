//! How fast this machine reads memory.

use rusty_loader::PageBuffer;
use std::hint::black_box;
use std::time::Instant;

const BYTES: usize = 1 << 30;
/// Bytes of a stream, and so from one to the next of those that a thread reads side by side.
const STREAM: usize = 1 << 20;
/// Bytes of a stream that are read before it is the next one's turn.
const TURN: usize = 128;
const PASSES: usize = 5;

/// Bytes per second that `threads` threads read together, the best of some passes: of one stream per thread, and of
/// several, since it depends on the machine which of them its cores read ahead best. Pages are huge where the system has
/// such, as those of weights are.
///
/// # Panics
/// Where the system has no memory for it.
pub fn read(threads: usize) -> f64 {
    let patterns: [fn(&[u8], usize) -> f64; 3] = [pass::<1>, pass::<4>, pass::<8>];
    let mut data = PageBuffer::new(BYTES, "bandwidth").expect("memory");
    data.fill(1);
    let passes = patterns.iter().cycle().take(patterns.len() * PASSES);
    passes.map(|pass| pass(&data, threads)).fold(0.0, f64::max)
}

/// The same, at a glance: what memory gives for a few hundredths of a second.
///
/// # Panics
/// Where the system has no memory for it.
pub fn glance(threads: usize) -> f64 {
    let mut data = PageBuffer::new(BYTES / 4, "bandwidth").expect("memory");
    data.fill(1);
    pass::<1>(&data, threads).max(pass::<4>(&data, threads))
}

/// Bytes per second of a pass in which each thread reads `N` streams at a time: threads take neighbouring ones in turn, as
/// decoding does.
fn pass<const N: usize>(data: &[u8], threads: usize) -> f64 {
    let start = Instant::now();
    let total = std::thread::scope(|scope| {
        let share = |thread: usize| {
            let pieces = data.chunks(N * STREAM).skip(thread).step_by(threads);
            pieces.map(sum::<N>).fold(0, u64::wrapping_add)
        };
        let all: Vec<_> = (0..threads)
            .map(|t| scope.spawn(move || share(t)))
            .collect();
        let sums = all.into_iter().map(|t| t.join().expect("a sum"));
        sums.fold(0, u64::wrapping_add)
    });
    let seconds = start.elapsed().as_secs_f64();
    let word = u64::from_ne_bytes([1; 8]);
    assert_eq!(black_box(total), word.wrapping_mul(data.len() as u64 / 8));
    data.len() as f64 / seconds
}

/// The sum of the words of `N` streams, which lie one after another and are read side by side.
fn sum<const N: usize>(piece: &[u8]) -> u64 {
    let streams: [&[[u8; TURN]]; N] =
        std::array::from_fn(|i| piece[i * STREAM..][..STREAM].as_chunks::<TURN>().0);
    let mut sums = [0u64; TURN / 8];
    for at in 0..STREAM / TURN {
        for stream in &streams {
            let words = stream[at].as_chunks::<8>().0;
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
            }
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}
