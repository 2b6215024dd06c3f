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
    /// On GPUs: contractions in single precision in tiles of 16 rows.
    GemmTiled16,
    /// The same in tiles of 32 rows.
    GemmTiled32,
    /// The same in tiles of 64 rows.
    GemmTiled64,
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
    /// On matrix units: products with experts of many rows, each with all of its rows.
    ExpertsMatrix,
    /// The same in single precision.
    ExpertsGrouped,
    /// On GPUs: all that takes whole rows, sums by planes.
    RowsPlane,
    /// The same, sums in shared memory.
    RowsShared,
}

/// What an implementation runs, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// On CPUs: anything.
    Cpu,
    /// On GPUs: contractions.
    Contraction(Way),
    /// Attention.
    Attention,
    /// The choice of experts.
    Route,
    /// Products with experts.
    Experts(ExpertWay),
    /// All that takes whole rows; whether sums are by planes.
    Rows { planes: bool },
}

/// How a contraction runs on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Teams of units make a few lanes of a row each.
    Vector(Sums),
    /// They do so for several rows at once.
    Rows(Sums),
    /// Tiles in single precision, of so many rows by lanes.
    Tile { rows: u32, lanes: u32 },
    /// Tiles on matrix units, of so many rows by lanes.
    Matrix { rows: u32, lanes: u32 },
}

impl Way {
    /// Whether these are matrix-vector products.
    pub(crate) fn is_of_vectors(self) -> bool {
        matches!(self, Way::Vector(_) | Way::Rows(_))
    }

    /// Whether a launch before packs the inputs: not for the smallest tiles, of which there are few, that a launch more would hold up.
    pub(crate) fn packs(self) -> bool {
        matches!(self, Way::Matrix { rows, .. } if rows != 32)
    }
}

/// How products with experts run on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertWay {
    /// Of few rows, as matrix-vector products.
    Few(Sums),
    /// Of many, in tiles in single precision.
    Tiles,
    /// Of many, in tiles on matrix units.
    Matrix,
}

/// How the products of a matrix with vectors are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sums {
    /// Products of bytes, by planes where there are some.
    Bytes,
    /// Products of floats, by planes.
    Planes,
    /// The same, in shared memory.
    Shared,
}

impl Implementation {
    /// What it runs, and how.
    pub(crate) fn work(self) -> Work {
        let matrix = |rows, lanes| Work::Contraction(Way::Matrix { rows, lanes });
        let tile = |rows, lanes| Work::Contraction(Way::Tile { rows, lanes });
        let few = |sums| Work::Experts(ExpertWay::Few(sums));
        match self {
            Implementation::CpuContract
            | Implementation::CpuAttention
            | Implementation::CpuExperts
            | Implementation::CpuRows => Work::Cpu,
            Implementation::GemvBytes => Work::Contraction(Way::Vector(Sums::Bytes)),
            Implementation::GemvPlane => Work::Contraction(Way::Vector(Sums::Planes)),
            Implementation::GemvShared => Work::Contraction(Way::Vector(Sums::Shared)),
            Implementation::GemvRowsBytes => Work::Contraction(Way::Rows(Sums::Bytes)),
            Implementation::GemvRowsPlane => Work::Contraction(Way::Rows(Sums::Planes)),
            Implementation::GemvRowsShared => Work::Contraction(Way::Rows(Sums::Shared)),
            Implementation::GemmMatrix32 => matrix(32, 32),
            Implementation::GemmMatrix64 => matrix(64, 64),
            Implementation::GemmMatrix128 => matrix(128, 128),
            Implementation::GemmTiled16 => tile(16, 32),
            Implementation::GemmTiled32 => tile(32, 64),
            Implementation::GemmTiled64 => tile(64, 64),
            Implementation::AttentionFlash => Work::Attention,
            Implementation::Route => Work::Route,
            Implementation::ExpertsBytes => few(Sums::Bytes),
            Implementation::ExpertsPlane => few(Sums::Planes),
            Implementation::ExpertsShared => few(Sums::Shared),
            Implementation::ExpertsMatrix => Work::Experts(ExpertWay::Matrix),
            Implementation::ExpertsGrouped => Work::Experts(ExpertWay::Tiles),
            Implementation::RowsPlane => Work::Rows { planes: true },
            Implementation::RowsShared => Work::Rows { planes: false },
        }
    }

    /// Whether it is a matrix-vector product of a contraction.
    pub(crate) fn is_of_vectors(self) -> bool {
        matches!(self.work(), Work::Contraction(way) if way.is_of_vectors())
    }

    /// Whether a launch before packs the inputs of a contraction.
    pub(crate) fn packs(self) -> bool {
        matches!(self.work(), Work::Contraction(way) if way.packs())
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
            Implementation::GemmTiled16 => "gemm_tiled_16",
            Implementation::GemmTiled32 => "gemm_tiled_32",
            Implementation::GemmTiled64 => "gemm_tiled_64",
            Implementation::AttentionFlash => "attention_flash",
            Implementation::Route => "route",
            Implementation::ExpertsBytes => "experts_bytes",
            Implementation::ExpertsPlane => "experts_plane",
            Implementation::ExpertsShared => "experts_shared",
            Implementation::ExpertsMatrix => "experts_matrix",
            Implementation::ExpertsGrouped => "experts_grouped",
            Implementation::RowsPlane => "rows_plane",
            Implementation::RowsShared => "rows_shared",
        }
    }
}
