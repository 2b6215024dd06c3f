//! What runs a plan kernel: code of one kind of device, chosen by rules over a target's facts.

/// An implementation of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Implementation {
    /// On CPUs: contractions.
    CpuContract,
    /// On CPUs: attention.
    CpuAttention,
    /// On CPUs: the choice of experts, and products with them.
    CpuExperts,
    /// On CPUs: all that takes whole rows.
    CpuRows,
    /// On GPUs: contractions of one row, products of bytes.
    GemvBytes,
    /// The same of floats, sums by planes.
    GemvPlane,
    /// The same, sums in shared memory.
    GemvShared,
    /// On GPUs: contractions of a few rows, several of which share what is read of weights, products of bytes.
    GemvRowsBytes,
    /// The same of floats, sums by planes.
    GemvRowsPlane,
    /// The same, sums in shared memory.
    GemvRowsShared,
    /// On matrix units: contractions in tiles of 32 rows.
    GemmMatrix32,
    /// The same in tiles of 64 rows.
    GemmMatrix64,
    /// The same in tiles of 128 rows.
    GemmMatrix128,
    /// On GPUs: contractions of many rows in single precision.
    GemmTiled,
    /// On GPUs: attention.
    AttentionFlash,
    /// On GPUs: the choice of experts.
    Route,
    /// On GPUs: products with experts of few rows, of bytes.
    ExpertsBytes,
    /// The same of floats, sums by planes.
    ExpertsPlane,
    /// The same, sums in shared memory.
    ExpertsShared,
    /// On GPUs: products with experts of many rows, each with all of its rows.
    ExpertsGrouped,
    /// On GPUs: all that takes whole rows, sums by planes.
    RowsPlane,
    /// The same, sums in shared memory.
    RowsShared,
}

impl Implementation {
    /// Whether it is a matrix-vector product of a contraction.
    pub(crate) const fn is_gemv(self) -> bool {
        matches!(
            self,
            Implementation::GemvBytes
                | Implementation::GemvPlane
                | Implementation::GemvShared
                | Implementation::GemvRowsBytes
                | Implementation::GemvRowsPlane
                | Implementation::GemvRowsShared
        )
    }

    /// Its name: `cpu_contract`, `gemv_plane`.
    pub const fn name(self) -> &'static str {
        match self {
            Implementation::CpuContract => "cpu_contract",
            Implementation::CpuAttention => "cpu_attention",
            Implementation::CpuExperts => "cpu_experts",
            Implementation::CpuRows => "cpu_rows",
            Implementation::GemvBytes => "gemv_bytes",
            Implementation::GemvPlane => "gemv_plane",
            Implementation::GemvShared => "gemv_shared",
            Implementation::GemvRowsBytes => "gemv_rows_bytes",
            Implementation::GemvRowsPlane => "gemv_rows_plane",
            Implementation::GemvRowsShared => "gemv_rows_shared",
            Implementation::GemmMatrix32 => "gemm_matrix_32",
            Implementation::GemmMatrix64 => "gemm_matrix_64",
            Implementation::GemmMatrix128 => "gemm_matrix_128",
            Implementation::GemmTiled => "gemm_tiled",
            Implementation::AttentionFlash => "attention_flash",
            Implementation::Route => "route",
            Implementation::ExpertsBytes => "experts_bytes",
            Implementation::ExpertsPlane => "experts_plane",
            Implementation::ExpertsShared => "experts_shared",
            Implementation::ExpertsGrouped => "experts_grouped",
            Implementation::RowsPlane => "rows_plane",
            Implementation::RowsShared => "rows_shared",
        }
    }
}
