//! Scales that give blocks of random bits a mean near 0 and a given deviation.

use crate::formats::{Codec, Steps};

/// Units for random blocks of a format.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    unit: f32,
    min: f32,
}

/// Mean and root mean square.
struct Moments {
    mean: f32,
    rms: f32,
}

impl Moments {
    fn of(values: impl Iterator<Item = f32> + Clone) -> Self {
        let n = values.clone().count().max(1) as f32;
        Self {
            mean: values.clone().sum::<f32>() / n,
            rms: (values.map(|v| v * v).sum::<f32>() / n).sqrt(),
        }
    }

    fn of_steps(steps: Option<Steps>) -> Self {
        let Some(steps) = steps else {
            return Self::of([1.0].into_iter());
        };
        Self::of((0..1u32 << steps.width()).map(|code| steps.number(code) as f32))
    }
}

impl Spread {
    /// For values of about this deviation, where codes are spread evenly.
    pub fn of(codec: &Codec, deviation: f32) -> Self {
        let bits = codec.code_bits();
        let levels = Moments::of((0..=(0xffu8 >> (8 - bits))).map(|c| codec.level(c)));
        let steps = Moments::of_steps(codec.scale.steps);
        // Scales and minima vary apart, so a product's deviation has the mean of the levels in it.
        let unit = deviation / (levels.rms * steps.rms * codec.scale.factor);
        let Some(min) = &codec.min else {
            return Self { unit, min: 0.0 };
        };
        let mean = unit * codec.scale.factor * steps.mean * levels.mean;
        let min = mean / (Moments::of_steps(min.steps).mean * min.factor);
        Self { unit, min }
    }

    /// Overwrites the units of a block of random bits; `random` varies them.
    pub fn set(&self, codec: &Codec, block: &mut [u8], random: u64) {
        // Either sign, so that levels around a bias leave no mean behind.
        let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
        let by = sign * (1.0 + (random >> 1 & 0xff) as f32 / 512.0);
        let groups = codec.block_len / codec.group;
        for g in 0..groups {
            codec.scale.unit.write(block, g, self.unit * by);
            if let Some(min) = &codec.min {
                min.unit.write(block, g, self.min * by);
            }
        }
    }
}
