//! How the output columns of a contraction are cut into strips, which threads draw.

use super::panel::GROUP;

/// Strips of a kernel per thread, where they are not widest: each ends a stream that memory was asked for ahead of, so few are
/// faster, as long as threads end together.
const PIECES: usize = 4;
/// Widest strip. Strips are whole blocks of 32 lanes, which keys and values may be stored in.
pub(super) const STRIP: usize = 256;

/// What is cut together.
#[derive(Clone, Copy)]
pub(super) struct Width {
    /// Columns of each part.
    pub(super) columns: usize,
    pub(super) parts: usize,
}

/// A way to cut.
pub(super) struct Cut {
    /// Columns of a strip but the last of a bundle.
    pub(super) columns: usize,
    bundles: Vec<Width>,
    /// Strips of all bundles, and their products.
    pub(super) strips: usize,
    pub(super) products: usize,
}

impl Cut {
    /// Of bundles of so many columns.
    pub(super) fn new(bundles: &[Width], threads: usize) -> Self {
        let all: usize = bundles.iter().map(|b| b.columns).sum();
        let columns = (all / (threads * PIECES)).next_multiple_of(GROUP);
        let columns = columns.clamp(GROUP, STRIP);
        let strips = |b: &Width| b.columns.div_ceil(columns);
        Self {
            columns,
            strips: bundles.iter().map(strips).sum(),
            products: bundles.iter().map(|b| strips(b) * b.parts).sum(),
            bundles: bundles.to_vec(),
        }
    }

    /// The bundle of a strip, its first column there and how many it has.
    pub(super) fn locate(&self, mut strip: usize) -> (usize, usize, usize) {
        for (i, bundle) in self.bundles.iter().enumerate() {
            let strips = bundle.columns.div_ceil(self.columns);
            if strip < strips {
                let first = strip * self.columns;
                return (i, first, self.columns.min(bundle.columns - first));
            }
            strip -= strips;
        }
        unreachable!("strips are counted over all bundles")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_cover_every_column_once() {
        for widths in [
            vec![32],
            vec![2048, 1024, 1024],
            vec![151_936],
            vec![100, 7],
        ] {
            let bundles: Vec<Width> = (widths.iter())
                .map(|&columns| Width { columns, parts: 2 })
                .collect();
            for threads in [1, 2, 8] {
                let cut = Cut::new(&bundles, threads);
                let mut covered: Vec<usize> = vec![0; widths.len()];
                for strip in 0..cut.strips {
                    let (bundle, first, columns) = cut.locate(strip);
                    assert_eq!(covered[bundle], first, "{widths:?} {threads}");
                    covered[bundle] = first + columns;
                }
                assert_eq!(covered, widths, "{threads} threads");
                assert_eq!(cut.products, 2 * cut.strips, "{widths:?} {threads}");
            }
        }
    }
}
