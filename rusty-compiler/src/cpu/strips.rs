//! How the output columns of a contraction are cut into strips, which threads draw.

use super::panel::GROUP;

/// Strips of a kernel per thread, where they are not widest: each ends a stream that memory was asked for ahead of, so few are
/// faster, as long as threads end together.
const PIECES: usize = 4;
/// Widest strip of any number of rows. Strips are whole blocks of 32 lanes, which keys and values may be stored in.
pub(super) const STRIP: usize = 256;
/// [`PIECES`] of one row where cores read long runs of memory on their own: they do so only some KiB behind a run's
/// beginning.
const LONG_PIECES: usize = 2;
/// Widest strip of those.
pub(super) const LONG_STRIP: usize = 2048;

/// A way to cut.
pub(super) struct Cut {
    /// Columns of a strip but the last of a bundle.
    pub(super) columns: usize,
    /// Whether nothing is asked for, because cores read its weights ahead on their own.
    pub(super) unasked: bool,
    /// The number of strips of each bundle.
    bundles: Vec<usize>,
    /// Strips of all bundles.
    pub(super) strips: usize,
}

impl Cut {
    /// Of bundles of so many columns, for any number of rows.
    pub(super) fn new(widths: &[usize], threads: usize) -> Self {
        Self::of(widths, threads * PIECES, STRIP)
    }

    /// For one row, into long runs of which nothing is asked for.
    pub(super) fn long(widths: &[usize], threads: usize) -> Self {
        let long = Self::of(widths, threads * LONG_PIECES, LONG_STRIP);
        Self {
            unasked: true,
            ..long
        }
    }

    fn of(widths: &[usize], pieces: usize, widest: usize) -> Self {
        let all: usize = widths.iter().sum();
        let columns = (all / pieces).next_multiple_of(GROUP).clamp(GROUP, widest);
        let bundles: Vec<usize> = widths.iter().map(|w| w.div_ceil(columns)).collect();
        Self {
            columns,
            unasked: false,
            strips: bundles.iter().sum(),
            bundles,
        }
    }

    /// The bundle of a strip, and its first column there.
    pub(super) fn locate(&self, mut strip: usize) -> (usize, usize) {
        for (bundle, &strips) in self.bundles.iter().enumerate() {
            if strip < strips {
                return (bundle, strip * self.columns);
            }
            strip -= strips;
        }
        unreachable!("strips are counted over all bundles")
    }

    /// Products of all strips, where bundles have so many parts.
    pub(super) fn products(&self, parts: impl Iterator<Item = usize>) -> usize {
        let products = self.bundles.iter().zip(parts);
        products.map(|(strips, parts)| strips * parts).sum()
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
            for threads in [1, 2, 8] {
                for cut in [Cut::new(&widths, threads), Cut::long(&widths, threads)] {
                    let mut covered: Vec<usize> = vec![0; widths.len()];
                    for strip in 0..cut.strips {
                        let (bundle, first) = cut.locate(strip);
                        assert_eq!(covered[bundle], first, "{widths:?} {threads}");
                        covered[bundle] = widths[bundle].min(first + cut.columns);
                    }
                    assert_eq!(covered, widths, "{threads} threads");
                }
            }
        }
    }
}
