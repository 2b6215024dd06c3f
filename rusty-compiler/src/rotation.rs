//! Rotations of blocks of lanes before they are stored in few bits.
//!
//! A Hadamard transform spreads a large lane over its block, so that the block's step follows what most lanes are
//! (QuaRot, arXiv 2404.00456). It is orthonormal and its own inverse: products of rotated queries and keys are those of
//! the plain ones, and sums of rotated values are rotated back once.

/// Lanes of a block.
const GROUP: usize = 32;

/// Rotates a block in place.
#[inline(always)]
pub(crate) fn rotate(lanes: &mut [f32; GROUP]) {
    let mut step = 1;
    while step < GROUP {
        for first in (0..GROUP).step_by(2 * step) {
            for i in first..first + step {
                let (a, b) = (lanes[i], lanes[i + step]);
                lanes[i] = a + b;
                lanes[i + step] = a - b;
            }
        }
        step *= 2;
    }
    let norm = 1.0 / (GROUP as f32).sqrt();
    lanes.iter_mut().for_each(|l| *l *= norm);
}

/// Rotates whole blocks.
#[inline(always)]
pub(crate) fn rotate_all(lanes: &mut [f32]) {
    lanes.as_chunks_mut().0.iter_mut().for_each(rotate);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_keep_products_and_undo_themselves() {
        let mut a: [f32; GROUP] = std::array::from_fn(|i| ((i * 37 + 11) % 19) as f32 - 9.0);
        let mut b: [f32; GROUP] = std::array::from_fn(|i| ((i * 23 + 5) % 17) as f32 - 8.0);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let (plain, before) = (dot(&a, &b), a);
        rotate(&mut a);
        rotate(&mut b);
        assert!((dot(&a, &b) - plain).abs() < 1e-3);
        rotate_all(&mut a);
        for (a, b) in a.iter().zip(before) {
            assert!((a - b).abs() < 1e-5);
        }
        let mut one = [0.0; GROUP];
        one[7] = 1.0;
        rotate(&mut one);
        assert!(one.iter().all(|l| (l.abs() - 0.176_776_7).abs() < 1e-6));
    }
}
