//! Kernels of rows that come from tables, and of those that want an output.

use crate::gpu_specs::given;
use rusty_compiler::gpu::kernels::body::{Place, Program, Source};
use rusty_compiler::gpu::kernels::env::header;
use rusty_compiler::gpu::kernels::reduce::Team;
use rusty_compiler::gpu::kernels::rows::{Origin, RowsConfig};
use rusty_compiler::gpu::kernels::sink::{Store, Target as Sink};
use rusty_compiler::gpu::text::{KernelSpec, Kind};
use rusty_compiler::plan::{F32, Inst};
use rusty_loader::Format;

/// Rows of a table; `changed`: as adapters change them.
pub(crate) fn gathered(team: Team, format: Format, changed: bool) -> KernelSpec {
    let origin = Origin::Gather {
        format,
        row_bytes: format.row_bytes(512) as u32,
        arg: 0,
        changed,
    };
    rows_of(
        (team, header::ROWS),
        origin,
        given(vec![Inst::Result(0)], vec![]),
        4,
    )
}

/// Rows that want an output, normed.
pub(crate) fn selected(team: Team) -> KernelSpec {
    let norm = Program {
        insts: vec![
            Inst::Result(0),
            Inst::RmsNorm {
                x: 0,
                weight: 0,
                eps: F32::new(1e-6),
                group: 512,
            },
        ],
        places: vec![Place::Vectors { arg: 1 }],
        source: Source::Given,
        segment: 512,
    };
    let origin = Origin::Select { arg: 0, width: 512 };
    rows_of((team, header::SELECTED), origin, norm, 3)
}

/// Rows of an origin through a program; the last of the scalars says where results go.
pub(crate) fn rows_of(
    (team, rows): (Team, usize),
    origin: Origin,
    program: Program,
    scalars: usize,
) -> KernelSpec {
    let tail = Store {
        width: 512,
        program: Program {
            source: RowsConfig::source(origin),
            ..program
        },
        target: Sink::Arena { arg: scalars - 1 },
    };
    KernelSpec {
        kind: Kind::Rows(RowsConfig {
            units: team.units,
            team,
            rows,
            origin,
            tails: vec![tail],
        }),
        scalars,
    }
}
