//! Whether stored weights can be what they claim: finite values on a sample of each tensor.
//!
//! A whole check would read the whole file; a sample spread evenly over each tensor finds what happens in
//! practice (a download of zeros or noise, a wrong offset, a diverged training) for a few pages per tensor.

use std::path::Path;

use rayon::prelude::*;

use crate::{Error, ModelFile, Result, WeightView};

/// Places looked at in each tensor.
pub const SAMPLES: usize = 8;
/// Elements decoded at each place, at least.
const RUN: usize = 64;

impl WeightView {
    /// Whether all values at `samples` places, spread evenly from the first block to the last, are finite.
    pub fn sample_is_finite(&self, samples: usize) -> bool {
        let blocks = self.bytes.len() / self.format.block_bytes();
        let run = RUN.div_ceil(self.format.block_len()).min(blocks);
        let places = samples.clamp(1, blocks.max(1));
        let mut values = vec![0.0; run * self.format.block_len()];
        (0..places).all(|i| {
            let first = (blocks - run) * i / (places - 1).max(1);
            let start = first * self.format.block_bytes();
            let end = start + run * self.format.block_bytes();
            self.format.decode_row(&self.bytes[start..end], &mut values);
            values.iter().all(|v| v.is_finite())
        })
    }
}

/// Checks a sample of every tensor of a model, in parallel.
///
/// # Errors
/// [`Error::Malformed`] naming the first tensor (in the file's order) with values that are not finite.
pub fn verify(file: &dyn ModelFile) -> Result<()> {
    let names = file.tensor_names();
    let broken = names.par_iter().find_first(|name| {
        let view = file.tensor(name);
        // What is made by a rule was never stored, and a look at it would make all of it.
        let stored = view.filter(|view| view.bytes.pattern().is_none());
        stored.is_some_and(|view| !view.sample_is_finite(SAMPLES))
    });
    match broken {
        None => Ok(()),
        Some(name) => Err(Error::malformed(
            Path::new(file.label()),
            format!("tensor '{name}' holds values that are not finite; the file is damaged"),
        )),
    }
}
