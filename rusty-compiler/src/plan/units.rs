//! Parts of a contraction that belong together, because some tail reads them together: gate and up.

use super::{Anchor, Inst, Kernel, Tail};

/// Parts and tails that belong together, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The parts, ascending.
    pub parts: Vec<usize>,
    /// The tails that read them, ascending.
    pub tails: Vec<usize>,
}

impl Kernel {
    /// The units of a contraction, each of whose parts is in exactly one; none for other kernels.
    pub fn units(&self) -> Vec<Unit> {
        let Anchor::Contract { parts, .. } = &self.anchor else {
            return Vec::new();
        };
        let mut of_part: Vec<usize> = (0..parts.len()).collect();
        let reads: Vec<Vec<usize>> = self.tails.iter().map(results).collect();
        for read in &reads {
            let Some(first) = read.first() else { continue };
            let target = of_part[*first];
            for other in read {
                let old = of_part[*other];
                of_part
                    .iter_mut()
                    .filter(|u| **u == old)
                    .for_each(|u| *u = target);
            }
        }
        let mut names = of_part.clone();
        names.sort_unstable();
        names.dedup();
        let unit = |name: usize| Unit {
            parts: (0..parts.len()).filter(|p| of_part[*p] == name).collect(),
            tails: (0..self.tails.len())
                .filter(|t| reads[*t].first().is_some_and(|p| of_part[*p] == name))
                .collect(),
        };
        names.into_iter().map(unit).collect()
    }
}

/// Results that a tail reads.
fn results(tail: &Tail) -> Vec<usize> {
    let read = |i: &Inst| match i {
        Inst::Result(r) => Some(*r as usize),
        _ => None,
    };
    tail.body.insts.iter().filter_map(read).collect()
}
