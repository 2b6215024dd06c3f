//! How fast this machine reads memory.

use std::hint::black_box;
use std::time::Instant;

const BYTES: usize = 1 << 30;
/// What a thread reads before it takes the next piece: neighbouring pieces at a time, as decoding does.
const PIECE: usize = 1 << 20;

/// Bytes per second that `threads` threads read together, the best of some passes.
pub fn read(threads: usize) -> f64 {
    let data = vec![1u64; BYTES / 8];
    let pass = |_| {
        let start = Instant::now();
        let total: u64 = std::thread::scope(|scope| {
            let sum = |thread: usize| {
                let pieces = data.chunks(PIECE / 8).skip(thread).step_by(threads);
                pieces
                    .map(|piece| piece.iter().fold(0u64, |a, b| a.wrapping_add(*b)))
                    .sum::<u64>()
            };
            let all: Vec<_> = (0..threads).map(|t| scope.spawn(move || sum(t))).collect();
            all.into_iter().map(|t| t.join().expect("a sum")).sum()
        });
        assert_eq!(black_box(total), (BYTES / 8) as u64);
        BYTES as f64 / start.elapsed().as_secs_f64()
    };
    (0..5).map(pass).fold(0.0, f64::max)
}
