//! Exponentials of many numbers in double precision, in loops that compilers make vectors of: one call for each number takes
//! longer for a large vocabulary than a step of a small model on a GPU.

/// Logits that are taken together.
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
/// 1 over the factorials of 12 to 0, of even numbers and of odd ones: what is left out is below 2^-52 for numbers up to half of ln 2.
const EVEN: [f64; 7] = [
    1.0 / 479_001_600.0,
    1.0 / 3_628_800.0,
    1.0 / 40_320.0,
    1.0 / 720.0,
    1.0 / 24.0,
    0.5,
    1.0,
];
const ODD: [f64; 6] = [
    1.0 / 39_916_800.0,
    1.0 / 362_880.0,
    1.0 / 5_040.0,
    1.0 / 120.0,
    1.0 / 6.0,
    1.0,
];

/// `e^x` for `x` up to 0, to a few units in the last place; 0 of what is no number.
#[inline(always)]
fn exponential(x: f64) -> f64 {
    let turns = x * std::f64::consts::LOG2_E + ROUNDING;
    let n = turns - ROUNDING;
    let rest = x - n * LN_2[0] - n * LN_2[1];
    // Two chains, neither of which waits for the other.
    let square = rest * rest;
    let even = EVEN.iter().fold(0.0, |sum, factor| sum * square + factor);
    let odd = ODD.iter().fold(0.0, |sum, factor| sum * square + factor);
    let sum = odd * rest + even;
    // The lowest bits of what was rounded go to the exponent.
    let value = f64::from_bits(sum.to_bits().wrapping_add(turns.to_bits() << 52));
    if x > LEAST { value } else { 0.0 }
}

/// How many times as likely as the most likely of some logits others are. Of infinite ones each of the largest is as likely.
#[derive(Clone, Copy)]
pub(super) struct Shares {
    most: f32,
}

impl Shares {
    /// Beside the largest of some logits.
    pub(super) fn beside(most: f32) -> Self {
        Self { most }
    }

    /// That of one.
    pub(super) fn of(self, logit: f32) -> f64 {
        let mut share = [0.0];
        self.write(&[logit], &mut share);
        share[0]
    }

    /// Those of logits, each to its place.
    pub(super) fn write(self, logits: &[f32], shares: &mut [f64]) {
        let both = logits.iter().zip(shares);
        if self.most.is_infinite() {
            both.for_each(|(l, share)| *share = f64::from(u8::from(*l == self.most)));
        } else {
            let most = f64::from(self.most);
            both.for_each(|(l, share)| *share = exponential(f64::from(*l) - most));
        }
    }

    /// The sums of runs of logits.
    fn sums(self, logits: &[f32]) -> Vec<f64> {
        let of_run = |run: &[f32]| {
            let mut shares = [0.0; RUN];
            self.write(run, &mut shares);
            sum(&shares[..run.len()])
        };
        logits.chunks(RUN).map(of_run).collect()
    }

    /// Their sum.
    pub(super) fn total(self, logits: &[f32]) -> f64 {
        sum(&self.sums(logits))
    }

    /// The place at which the shares there and before exceed a part of all; none where rounding leaves some of that behind the last.
    pub(super) fn place_of(self, logits: &[f32], part: f64) -> Option<usize> {
        let sums = self.sums(logits);
        let mut left = part * sum(&sums);
        let mut runs = logits.chunks(RUN).zip(sums).zip((0..).step_by(RUN));
        runs.find_map(|((run, all), first)| {
            if left >= all {
                left -= all;
                return None;
            }
            let place = run.iter().position(|l| {
                left -= self.of(*l);
                left < 0.0
            });
            left = left.max(0.0);
            place.map(|place| first + place)
        })
    }
}

/// The sum of shares that were written, as [`Shares::total`] has it of their logits.
pub(super) fn total(shares: &[f64]) -> f64 {
    let sums: Vec<f64> = shares.chunks(RUN).map(sum).collect();
    sum(&sums)
}

/// The sum of some numbers, in lanes.
fn sum(values: &[f64]) -> f64 {
    let (chunks, rest) = values.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += value;
        }
    }
    sums.iter().chain(rest).sum()
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
        fn places_are_where_sums_exceed(
            logits in prop::collection::vec(prop_oneof![-9f32..9.0, Just(f32::NEG_INFINITY)], 1..400),
            part in 0.0f64..1.0,
        ) {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let shares = Shares::beside(most);
            let each: Vec<f64> = logits.iter().map(|l| shares.of(*l)).collect();
            let all: f64 = each.iter().sum();
            prop_assert!((shares.total(&logits) - all).abs() < 1e-12 * all);
            let place = shares.place_of(&logits, part).expect("a place");
            let before: f64 = each[..place].iter().sum();
            let upto = part * all;
            prop_assert!(each[place] > 0.0);
            prop_assert!(before <= upto + 1e-9 && before + each[place] >= upto - 1e-9);
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
