//! Tables of adapters: small matrices in a stored format, read in place from a buffer or a mapped file.

use rusty_loader::formats::Format;
use rusty_loader::{SharedBytes, formats};

/// Outputs of a panel of `B`, and elements of a block of the block formats that tables may have.
pub const PANEL: usize = 32;

/// A row-major matrix in one of the formats that adapter kernels read: F32, F16, BF16, Q8_0 and Q4_0.
#[derive(Clone, Debug)]
pub struct DeltaTable {
    format: Format,
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
        Format::Blocks(&formats::Q8_0),
        Format::Blocks(&formats::Q4_0),
    ];

    /// A table over bytes; none where the format is not one of tables', a row is no whole number of blocks, or
    /// there are not as many bytes as it takes.
    pub fn new(format: Format, rows: usize, columns: usize, bytes: SharedBytes) -> Option<Self> {
        let whole = columns.is_multiple_of(format.block_len());
        let length = rows.checked_mul(format.row_bytes(columns));
        let fits = Self::FORMATS.contains(&format) && whole && length == Some(bytes.len());
        fits.then_some(Self {
            format,
            rows,
            columns,
            bytes,
        })
    }

    /// Encodes values, row by row; none where [`DeltaTable::new`] gives none or the lengths do not agree.
    pub fn encode(format: Format, rows: usize, columns: usize, values: &[f32]) -> Option<Self> {
        if values.len() != rows.checked_mul(columns)? || !columns.is_multiple_of(format.block_len())
        {
            return None;
        }
        let mut bytes = vec![0; rows * format.row_bytes(columns)];
        let encoder = format.encoder()?;
        if !values.is_empty() {
            encoder.rows(values, &mut bytes);
        }
        Self::new(format, rows, columns, SharedBytes::from_vec(bytes))
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
        Self::encode(format, rows, PANEL, &values)
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

    /// Stored bytes of a row.
    pub fn row_bytes(&self) -> usize {
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

    /// Decodes row `row`.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let size = self.row_bytes();
        self.format
            .decode_row(&self.bytes[row * size..(row + 1) * size], out);
    }

    /// All values, row by row.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.columns];
        self.format.decode_row(&self.bytes, &mut values);
        values
    }

    /// Decodes row `c` of the matrix `[n, rank]` whose panels this table holds.
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
        Self::encode(format, self.rows, self.columns, &self.values())
            .unwrap_or_else(|| self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_hold_the_matrix_and_zeros_behind_it() {
        let value = |c: usize, r: usize| (c * 10 + r) as f32;
        let table = DeltaTable::panels(Format::F32, 40, 3, value).expect("table");
        assert_eq!((table.rows(), table.columns()), (6, 32));
        let mut row = [0.0; 3];
        for c in 0..40 {
            table.read_panel_row(c, 3, &mut row);
            assert_eq!(row, [value(c, 0), value(c, 1), value(c, 2)]);
        }
        table.read_panel_row(63, 3, &mut row);
        assert_eq!(row, [0.0; 3]);
    }

    #[test]
    fn tables_of_every_format_hold_their_values() {
        let values: Vec<f32> = (0..128)
            .map(|i| ((i * 37 % 64) as f32 - 32.0) / 16.0)
            .collect();
        for format in DeltaTable::FORMATS {
            let table = DeltaTable::encode(format, 2, 64, &values).expect("table");
            let step = match format.name() {
                "q8_0" => 0.02,
                "q4_0" => 0.3,
                _ => 0.0,
            };
            for (a, b) in table.values().iter().zip(&values) {
                assert!((a - b).abs() <= step, "{}: {a} {b}", format.name());
            }
        }
        assert!(DeltaTable::encode(DeltaTable::FORMATS[3], 1, 48, &[0.0; 48]).is_none());
    }
}
