//! Tables of adapters: small matrices in a stored format, read in place from a buffer or a mapped file.

use crate::interleaving::Factor;
use rusty_loader::formats::Format;
use rusty_loader::{SharedBytes, formats};

/// Outputs of a panel of `B`, and elements of a block of the block formats that tables may have.
pub const PANEL: usize = 32;

/// Bytes with a scale per block.
const INT8: Format = Format::Blocks(&formats::Q8_0);

/// A matrix in one of the formats that adapter kernels read: F32, F16, BF16, Q8_0 and Q4_0. Rows follow each other,
/// except those of factors in Q8_0, see [`crate::interleaving`].
#[derive(Clone, Debug)]
pub struct DeltaTable {
    format: Format,
    factor: Option<Factor>,
    rows: usize,
    columns: usize,
    bytes: SharedBytes,
}

impl DeltaTable {
    /// Formats of tables.
    pub const FORMATS: [Format; 5] = [
        Format::F32,
        Format::F16,
        Format::Bf16,
        INT8,
        Format::Blocks(&formats::Q4_0),
    ];

    /// Stored bytes of a table; none where a row is no whole number of blocks, rows are no whole number of panels, or
    /// the bytes are more than can be counted.
    pub fn stored_bytes(
        format: Format,
        factor: Option<Factor>,
        rows: usize,
        columns: usize,
    ) -> Option<usize> {
        if !columns.is_multiple_of(format.block_len()) {
            return None;
        }
        match factor.filter(|_| format == INT8) {
            Some(factor) => factor.bytes(rows, columns),
            None => {
                let blocks = columns / format.block_len();
                let row = blocks.checked_mul(format.block_bytes())?;
                rows.checked_mul(row)
            }
        }
    }

    /// A table over bytes; `factor` tells how those in Q8_0 lie. None where the format is not one of tables', a row is no whole number of blocks, or
    /// there are not as many bytes as it takes.
    pub fn new(
        format: Format,
        factor: Option<Factor>,
        rows: usize,
        columns: usize,
        bytes: SharedBytes,
    ) -> Option<Self> {
        let length = Self::stored_bytes(format, factor, rows, columns);
        let fits = Self::FORMATS.contains(&format) && length == Some(bytes.len());
        fits.then_some(Self {
            format,
            factor,
            rows,
            columns,
            bytes,
        })
    }

    /// Encodes values, row by row; none where [`DeltaTable::new`] gives none or the lengths do not agree.
    pub fn encode(
        format: Format,
        factor: Option<Factor>,
        rows: usize,
        columns: usize,
        values: &[f32],
    ) -> Option<Self> {
        let length = Self::stored_bytes(format, factor, rows, columns)?;
        if values.len() != rows.checked_mul(columns)? {
            return None;
        }
        let mut bytes = vec![0; length];
        let encoder = format.encoder()?;
        match factor.filter(|_| format == INT8) {
            _ if values.is_empty() => {}
            Some(factor) => factor.encode(&encoder, columns, values, &mut bytes),
            None => encoder.rows(values, &mut bytes),
        }
        Self::new(format, factor, rows, columns, SharedBytes::from_vec(bytes))
    }

    /// `A [rank, k]`; none as for [`DeltaTable::encode`].
    pub fn ranks(format: Format, rank: usize, k: usize, values: &[f32]) -> Option<Self> {
        Self::encode(format, Some(Factor::A), rank, k, values)
    }

    /// `B [n, rank]` in panels: row `(c / 32) * rank + r` holds elements `[c, r]` of 32 outputs `c`, zeros behind
    /// the last. Kernels that own some outputs read them in one stream, and neighbouring lanes read
    /// neighbouring elements.
    pub fn panels(
        format: Format,
        n: usize,
        rank: usize,
        value: impl Fn(usize, usize) -> f32,
    ) -> Option<Self> {
        let rows = n.div_ceil(PANEL) * rank;
        let mut values = vec![0.0; rows * PANEL];
        for (row, lanes) in values.chunks_exact_mut(PANEL).enumerate() {
            let (first, r) = (row / rank * PANEL, row % rank);
            for (lane, v) in lanes.iter_mut().enumerate().take(n - first.min(n)) {
                *v = value(first + lane, r);
            }
        }
        Self::encode(format, Some(Factor::B { rank }), rows, PANEL, &values)
    }

    /// The same table over other bytes, which hold what these do.
    pub fn moved(&self, bytes: SharedBytes) -> Option<Self> {
        Self::new(self.format, self.factor, self.rows, self.columns, bytes)
    }

    /// How values are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether kernels that expect this factor read the table's bytes where they are.
    pub fn lies_as(&self, factor: Factor) -> bool {
        self.format != INT8 || self.factor == Some(factor)
    }

    /// Stored bytes of a row, which follow each other but where the table is a factor in Q8_0.
    pub(crate) fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.columns)
    }

    /// The stored bytes.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Number of stored bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Decodes row `row` into `out`, `[columns]`.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        if let Some(factor) = self.factor.filter(|_| self.format == INT8) {
            return factor.read_row(&self.bytes, row, out);
        }
        let size = self.row_bytes();
        let stored = &self.bytes[row * size..(row + 1) * size];
        self.format.decode_row(stored, out);
    }

    /// All values, row by row.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.columns];
        for (row, values) in values.chunks_exact_mut(self.columns.max(1)).enumerate() {
            self.read_row(row, values);
        }
        values
    }

    /// Decodes row `c` of the matrix `[n, rank]` whose panels this table holds into `out`, `[rank]`.
    pub fn read_panel_row(&self, c: usize, rank: usize, out: &mut [f32]) {
        let mut lanes = [0.0; PANEL];
        for (r, out) in out.iter_mut().enumerate().take(rank) {
            self.read_row(c / PANEL * rank + r, &mut lanes);
            *out = lanes[c % PANEL];
        }
    }

    /// The same values in another format; the table itself where its rows are no whole blocks of that.
    pub fn converted(&self, format: Format) -> Self {
        if self.format == format {
            return self.clone();
        }
        Self::encode(format, self.factor, self.rows, self.columns, &self.values())
            .unwrap_or_else(|| self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_hold_the_matrix_and_zeros_behind_it() {
        let value = |c: usize, r: usize| (c * 10 + r) as f32;
        for format in [Format::F32, INT8] {
            let table = DeltaTable::panels(format, 40, 3, value).expect("table");
            assert_eq!((table.rows(), table.columns()), (6, 32));
            let mut row = [0.0; 3];
            for c in 0..40 {
                table.read_panel_row(c, 3, &mut row);
                let want = [value(c, 0), value(c, 1), value(c, 2)];
                let step = if format == INT8 { 2.0 } else { 0.0 };
                assert!(row.iter().zip(want).all(|(a, b)| (a - b).abs() <= step));
            }
            table.read_panel_row(63, 3, &mut row);
            assert_eq!(row, [0.0; 3]);
        }
    }

    #[test]
    fn tables_of_every_format_hold_their_values() {
        let values: Vec<f32> = (0..128)
            .map(|i| ((i * 37 % 64) as f32 - 32.0) / 16.0)
            .collect();
        for format in DeltaTable::FORMATS {
            for factor in [None, Some(Factor::A), Some(Factor::B { rank: 1 })] {
                let columns = if factor.is_some_and(|f| f != Factor::A) {
                    32
                } else {
                    64
                };
                let rows = values.len() / columns;
                let table = DeltaTable::encode(format, factor, rows, columns, &values);
                let table = table.expect("table");
                let step = match format.name() {
                    "q8_0" => 0.02,
                    "q4_0" => 0.3,
                    _ => 0.0,
                };
                for (a, b) in table.values().iter().zip(&values) {
                    assert!((a - b).abs() <= step, "{}: {a} {b}", format.name());
                }
            }
        }
        assert!(DeltaTable::encode(INT8, None, 1, 48, &[0.0; 48]).is_none());
    }

    #[test]
    fn bytes_of_many_ranks_hold_their_values() {
        for rank in [5, 16, 33, 37, 70] {
            // Small ranks beside large ones.
            let value =
                |c: usize, r: usize| ((c * 7 + r * 5) % 23) as f32 * 10f32.powi(r as i32 % 7 - 3);
            let table = DeltaTable::panels(INT8, 64, rank, value).expect("table");
            let mut row = vec![0.0; rank];
            for c in 0..64 {
                table.read_panel_row(c, rank, &mut row);
                for (r, have) in row.iter().enumerate() {
                    let step = 22.0 * 10f32.powi(r as i32 % 7 - 3) / 127.0;
                    let want = value(c, r);
                    assert!(
                        (have - want).abs() <= step,
                        "{rank} {c} {r}: {have}, not {want}"
                    );
                }
            }
        }
    }

    #[test]
    fn tables_without_rows_are_no_bytes() {
        for rank in [0, 16, usize::MAX] {
            let factor = Some(Factor::B { rank });
            assert_eq!(DeltaTable::stored_bytes(INT8, factor, 0, PANEL), Some(0));
        }
    }
}
