//! Exponentials of many numbers in double precision, in loops that compilers make vectors of: one call for each number takes
//! longer for a large vocabulary than a step of a small model on a GPU.

/// Numbers that are summed together.
const RUN: usize = 64;
/// What is less has an exponential near the least normal number: taken to be 0.
const LEAST: f64 = -700.0;
/// Added to a small number, it leaves that rounded in the lowest bits.
const ROUNDING: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
/// ln 2 in two parts, the first of which has 32 bits: its product with a whole number of few bits is exact (Cody and Waite, Software
/// Manual for the Elementary Functions, 1980).
const LN_2: [f64; 2] = [
    f64::from_bits(0x3fe6_2e42_fee0_0000),
    f64::from_bits(0x3dea_39ef_3579_3c76),
];
/// 1 over the factorials of 12 to 0: what is left out is below 2^-52 for numbers up to half of ln 2.
const SERIES: [f64; 13] = [
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// `e^x` for `x` up to 0, to a few units in the last place; 0 of what is no number.
#[inline(always)]
fn exponential(x: f64) -> f64 {
    let turns = x * std::f64::consts::LOG2_E + ROUNDING;
    let n = turns - ROUNDING;
    let rest = x - n * LN_2[0] - n * LN_2[1];
    let mut sum = 0.0;
    for factor in SERIES {
        sum = sum * rest + factor;
    }
    // The lowest bits of what was rounded go to the exponent.
    let value = f64::from_bits(sum.to_bits().wrapping_add(turns.to_bits() << 52));
    if x > LEAST { value } else { 0.0 }
}

/// How many times as likely as one with the logit `most`, the largest, is each of some logits.
pub(super) fn relative(logits: &[f32], most: f32) -> Vec<f64> {
    let of = |l: &f32| exponential(f64::from(*l) - f64::from(most));
    logits.iter().map(of).collect()
}

/// The sum of some numbers, in lanes.
pub(super) fn sum(values: &[f64]) -> f64 {
    let (chunks, rest) = values.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += value;
        }
    }
    sums.iter().chain(rest).sum()
}

/// The place at which the sum of what is there and before exceeds `upto`; none where rounding leaves some of that behind the last.
pub(super) fn place_of(values: &[f64], upto: f64) -> Option<usize> {
    let mut left = upto;
    for (run, first) in values.chunks(RUN).zip((0..).step_by(RUN)) {
        let all = sum(run);
        if left >= all {
            left -= all;
            continue;
        }
        for (value, place) in run.iter().zip(first..) {
            left -= value;
            if left < 0.0 {
                return Some(place);
            }
        }
        left = left.max(0.0);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exponentials_are_as_near_as_rounding_allows(x in -699.9f64..=0.0, small in -1e-3f64..=0.0) {
            for x in [x, small] {
                let want = x.exp();
                prop_assert!((exponential(x) - want).abs() <= 4.0 * f64::EPSILON * want, "{x}: {}", exponential(x));
            }
        }

        #[test]
        fn places_are_where_sums_exceed(values in prop::collection::vec(0u32..9, 1..400), share in 0.0f64..1.0) {
            // Whole numbers, whose sums are exact.
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let all: f64 = values.iter().sum();
            prop_assert_eq!(sum(&values), all);
            let upto = all * share;
            let mut before = 0.0;
            let want = values.iter().position(|value| {
                before += value;
                before > upto
            });
            prop_assert_eq!(place_of(&values, upto), want);
        }
    }

    #[test]
    fn ends_are_exact() {
        assert_eq!(exponential(0.0), 1.0);
        for none in [-701.0, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(exponential(none), 0.0, "{none}");
        }
    }
}
