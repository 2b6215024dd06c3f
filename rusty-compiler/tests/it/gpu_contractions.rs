//! Contractions of each format and way, for [the list of kernels](crate::gpu_specs).

use crate::gpu_specs::{given, norm_program};
use rusty_compiler::gpu::kernels::body::{Place, Program, Source};
use rusty_compiler::gpu::kernels::byte_codes::ByteCodes;
use rusty_compiler::gpu::kernels::contract::{ContractConfig, PartConfig, UnitConfig};
use rusty_compiler::gpu::kernels::delta::Adapters;
use rusty_compiler::gpu::kernels::env::header;
use rusty_compiler::gpu::kernels::matrix::MatrixConfig;
use rusty_compiler::gpu::kernels::matrix_product::MatrixTile;
use rusty_compiler::gpu::kernels::reduce::Team;
use rusty_compiler::gpu::kernels::sink::{Store, Target as Sink};
use rusty_compiler::gpu::text::{KernelSpec, Kind};
use rusty_compiler::plan::Inst;
use rusty_graph::{BinaryOp, UnaryOp};
use rusty_loader::Format;
use rusty_loader::formats::{
    FP8_G128, INT4_G128, IQ2_XS, NF4_G64, NVFP4, Q4_0, Q4_K, Q6_K, Q8_0, TQ1_0,
};

/// Few and many rows, with and without adapters; `wide` as in [`specs`](crate::gpu_specs::specs).
pub(crate) fn contractions(team: Team, adapters: Adapters, wide: bool) -> Vec<KernelSpec> {
    let plane = team.plane;
    let mut out = vec![];
    for format in [
        Format::F32,
        Format::F16,
        Format::Bf16,
        Format::Blocks(&Q4_0),
        Format::Blocks(&Q8_0),
        Format::Blocks(&Q4_K),
        Format::Blocks(&Q6_K),
        Format::Blocks(&IQ2_XS),
        Format::Blocks(&TQ1_0),
        Format::Blocks(&NVFP4),
        Format::Blocks(&INT4_G128),
        Format::Blocks(&FP8_G128),
        Format::Blocks(&NF4_G64),
    ] {
        for a in [None, Some(adapters)] {
            let part = |arg| PartConfig {
                format,
                row_bytes: format.row_bytes(512) as u32,
                arg,
            };
            let c = ContractConfig {
                team,
                rows: header::ROWS,
                k: 512,
                prologue: norm_program(),
                parts: vec![part(2), part(3)],
                units: vec![UnitConfig {
                    parts: vec![0, 1],
                    arg: 4,
                    tails: vec![Store {
                        width: 512,
                        program: given(
                            vec![
                                Inst::Result(0),
                                Inst::Unary(UnaryOp::Silu, 0),
                                Inst::Result(1),
                                Inst::Binary(BinaryOp::Mul, 1, 2),
                            ],
                            vec![],
                        ),
                        target: Sink::Arena { arg: 7 },
                    }],
                }],
                adapters: a,
                lanes: 2,
                wide,
                bytes: false,
            };
            for bytes in [false, true] {
                if !bytes || ByteCodes::serve(format) {
                    let contract = ContractConfig { bytes, ..c.clone() };
                    out.push(KernelSpec {
                        kind: Kind::Gemv(contract),
                        scalars: 14,
                    });
                }
            }
            for (rows, lanes) in [(32, 32), (64, 64), (128, 64)] {
                if plane > 0 && format != Format::F32 {
                    let contract = c.clone();
                    let tile = MatrixTile { rows, lanes };
                    out.push(KernelSpec {
                        kind: Kind::Matrix(MatrixConfig {
                            contract,
                            tile,
                            native: wide,
                        }),
                        scalars: 14,
                    });
                }
            }
            out.push(KernelSpec {
                kind: Kind::Gemm(c),
                scalars: 14,
            });
        }
    }
    // Queries, keys and values: units share a cube's memory.
    let apart = |first: usize| UnitConfig {
        parts: vec![first],
        arg: 3 + 3 * first,
        tails: vec![Store {
            width: 512,
            program: given(vec![Inst::Result(first as u16)], vec![]),
            target: Sink::Arena { arg: 12 },
        }],
    };
    let format = Format::Blocks(&Q8_0);
    let siblings = ContractConfig {
        team,
        rows: header::ROWS,
        k: 4096,
        prologue: Program {
            insts: vec![Inst::Load(0)],
            places: vec![Place::Arena {
                arg: 13,
                width: 4096,
            }],
            source: Source::None,
            segment: 512,
        },
        parts: (0..3)
            .map(|arg| PartConfig {
                format,
                row_bytes: format.row_bytes(4096) as u32,
                arg,
            })
            .collect(),
        units: (0..3).map(apart).collect(),
        adapters: None,
        lanes: 2,
        wide,
        bytes: false,
    };
    out.push(KernelSpec {
        kind: Kind::Gemv(siblings.clone()),
        scalars: 14,
    });
    if plane > 0 {
        out.push(KernelSpec {
            kind: Kind::Matrix(MatrixConfig {
                contract: siblings,
                tile: MatrixTile {
                    rows: 64,
                    lanes: 64,
                },
                native: wide,
            }),
            scalars: 14,
        });
    }
    out
}
