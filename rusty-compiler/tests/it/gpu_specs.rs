//! One kernel of each kind, format and shape by which device texts differ.

use crate::gpu_contractions::{contractions, in_other_formats, of_expert};
use crate::softmax::softmax_program;
use rusty_compiler::gpu::kernels::attention::AttentionConfig;
use rusty_compiler::gpu::kernels::attention_shape::AttentionShape;
use rusty_compiler::gpu::kernels::body::{Place, Program, Source};
use rusty_compiler::gpu::kernels::choose::ChooseConfig;
use rusty_compiler::gpu::kernels::contract::UnitConfig;
use rusty_compiler::gpu::kernels::delta::Adapters;
use rusty_compiler::gpu::kernels::env::header;
use rusty_compiler::gpu::kernels::experts::{ExpertsConfig, FewExpertsConfig, scalar};
use rusty_compiler::gpu::kernels::grouped::SumConfig;
use rusty_compiler::gpu::kernels::matrix_attention::MatrixAttentionConfig;
use rusty_compiler::gpu::kernels::page_words::PageWords;
use rusty_compiler::gpu::kernels::reduce::Team;
use rusty_compiler::gpu::kernels::route::RouteConfig;
use rusty_compiler::gpu::kernels::row_attention::RowAttentionConfig;
use rusty_compiler::gpu::kernels::rows::{Origin, RowsConfig};
use rusty_compiler::gpu::kernels::shrink::ShrinkConfig;
use rusty_compiler::gpu::kernels::sink::{Store, Target as Sink};
use rusty_compiler::gpu::text::{KernelSpec, Kind};
use rusty_compiler::plan::{F32, Inst};
use rusty_graph::{GroupScore, RopeLayout, RouteGroups, RouteScore};
use rusty_loader::Format;
use rusty_loader::formats::{IQ2_XS, NVFP4, Q4_K, TQ1_0};

pub(crate) fn norm_program() -> Program {
    Program {
        insts: vec![
            Inst::Load(0),
            Inst::RmsNorm {
                x: 0,
                weight: 1,
                eps: F32::new(1e-6),
                group: 512,
            },
        ],
        places: vec![
            Place::Arena { arg: 0, width: 512 },
            Place::Vectors { arg: 1 },
        ],
        source: Source::None,
        segment: 512,
    }
}

pub(crate) fn given(insts: Vec<Inst>, places: Vec<Place>) -> Program {
    Program {
        insts,
        places,
        source: Source::Given,
        segment: 256,
    }
}

/// One kernel of each kind, format and shape that texts differ by; `plane` is 0 where units have no plane operations,
/// `wide` says whether words are read as vectors and matrices are multiplied by an instruction.
pub(crate) fn specs(plane: u32, wide: bool) -> Vec<KernelSpec> {
    let team = Team { units: 128, plane };
    let adapters = Adapters {
        parts: 2,
        arg: 12,
        rows: header::ROWS,
    };
    let mut out = vec![];
    out.extend(contractions(team, adapters, wide));
    out.push(KernelSpec {
        kind: Kind::Shrink(ShrinkConfig {
            team,
            k: 512,
            prologue: norm_program(),
            adapters,
        }),
        scalars: 14,
    });
    let rope = Program {
        insts: vec![
            Inst::Load(0),
            Inst::RmsNorm {
                x: 0,
                weight: 1,
                eps: F32::new(1e-6),
                group: 64,
            },
            Inst::Rope {
                x: 1,
                table: 2,
                head_dim: 64,
                dims: 64,
                layout: RopeLayout::Half,
            },
        ],
        places: vec![
            Place::Arena { arg: 0, width: 256 },
            Place::Vectors { arg: 1 },
            Place::Rope { word: 8 },
        ],
        source: Source::None,
        segment: 64,
    };
    out.push(KernelSpec {
        kind: Kind::Rows(RowsConfig {
            team,
            rows: header::ROWS,
            origin: Origin::Map,
            tails: vec![
                Store {
                    width: 256,
                    program: rope.clone(),
                    target: Sink::Arena { arg: 2 },
                },
                Store {
                    width: 256,
                    program: rope.clone(),
                    target: Sink::Page {
                        half: 0,
                        halves: 2,
                        kv: PageWords::F16,
                    },
                },
                Store {
                    width: 256,
                    program: rope.clone(),
                    target: Sink::Page {
                        half: 1,
                        halves: 2,
                        kv: PageWords::Bf16,
                    },
                },
            ],
        }),
        scalars: 3,
    });
    let of_step = (team, header::ROWS);
    out.push(rows_of(of_step, Origin::Map, softmax_program(), 2));
    let table = Format::Blocks(&Q4_K);
    out.extend([gathered(team, table, false), gathered(team, table, true)]);
    out.push(selected(team));
    let shape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        value_dim: 64,
        of_keys: false,
        shares: 1,
        scale: F32::new(0.125),
        window: Some(17),
        softcap: Some(F32::new(30.0)),
        kv: PageWords::F16,
    };
    let attention = AttentionConfig {
        units: 128,
        rows: 4,
        shape,
        arg: 0,
        unit: UnitConfig {
            parts: vec![0],
            arg: 0,
            tails: vec![Store {
                width: 256,
                program: given(vec![Inst::Result(0)], vec![]),
                target: Sink::Arena { arg: 1 },
            }],
        },
    };
    let of_latents = AttentionShape {
        heads: 16,
        kv_heads: 1,
        head_dim: 576,
        value_dim: 512,
        of_keys: true,
        shares: 4,
        window: None,
        softcap: None,
        kv: PageWords::Bf16,
        ..shape
    };
    let latent = AttentionConfig {
        rows: 1,
        shape: of_latents,
        ..attention.clone()
    };
    let in_codes = |bits| AttentionConfig {
        shape: AttentionShape {
            kv: PageWords::Codes(bits),
            ..shape
        },
        ..attention.clone()
    };
    let (in_8, in_4) = (in_codes(8), in_codes(4));
    for (config, query) in [
        (in_8, rope.clone()),
        (in_4, rope.clone()),
        (attention, rope),
        (
            latent,
            given(
                vec![Inst::Load(0)],
                vec![Place::Arena {
                    arg: 0,
                    width: 9216,
                }],
            ),
        ),
    ] {
        if plane > 0 {
            let store = Store {
                width: 128,
                program: query.clone(),
                target: Sink::Page {
                    half: 0,
                    halves: 2,
                    kv: config.shape.kv,
                },
            };
            out.push(KernelSpec {
                kind: Kind::RowAttention(RowAttentionConfig {
                    team,
                    shape: config.shape,
                    stores: if config.shape.of_keys {
                        vec![]
                    } else {
                        vec![store]
                    },
                    query,
                    splits: 2,
                    unit: config.unit.clone(),
                }),
                scalars: 3,
            });
        }
        let native = wide;
        for (queries, kv) in [(32, PageWords::Bf16), (64, PageWords::F16)] {
            let config = MatrixAttentionConfig {
                queries,
                shape: AttentionShape { kv, ..config.shape },
                arg: config.arg,
                unit: config.unit.clone(),
                native,
            };
            if plane > 0 && config.is_whole() && !config.shape.of_keys {
                out.push(KernelSpec {
                    kind: Kind::MatrixAttention(config),
                    scalars: 2,
                });
            }
        }
        out.push(KernelSpec {
            kind: Kind::Attention(config),
            scalars: 2,
        });
    }
    for (score, normalize, score_of_groups, bias) in [
        (RouteScore::Softmax, true, None, None),
        (RouteScore::Softmax, false, Some(GroupScore::Best), None),
        (
            RouteScore::Sigmoid,
            true,
            Some(GroupScore::BestTwo),
            Some(2),
        ),
    ] {
        out.push(KernelSpec {
            kind: Kind::Route(RouteConfig {
                rows: header::ROWS,
                experts: 64,
                used: 6,
                score,
                groups: score_of_groups.map(|score| RouteGroups {
                    count: 8,
                    used: 4,
                    score,
                }),
                normalize,
                scale: F32::new(1.5),
                arg: 0,
                bias,
            }),
            scalars: 3,
        });
    }
    for (routed, combine, format) in [
        (true, false, Format::Bf16),
        (true, true, Format::Blocks(&Q4_K)),
        (false, false, Format::Bf16),
    ] {
        let config = ExpertsConfig {
            rows: header::ROWS,
            k: 256,
            n: 128,
            used: 6,
            routed,
            combine,
            format,
            row_bytes: format.row_bytes(256) as u32,
        };
        let few = FewExpertsConfig {
            experts: config,
            product: of_expert(team, config.k, format, wide),
        };
        for kind in [Kind::Experts(few), Kind::Grouped(config)] {
            let scalars = scalar::COUNT;
            out.push(KernelSpec { kind, scalars });
        }
    }
    out.push(KernelSpec {
        kind: Kind::SumProducts(SumConfig {
            rows: header::ROWS,
            n: 128,
            used: 6,
            arg: 0,
        }),
        scalars: 3,
    });
    out.push(KernelSpec {
        kind: Kind::Choose(ChooseConfig {
            units: 128,
            rows: header::SELECTED,
            width: 1000,
            arg: 0,
        }),
        scalars: 1,
    });
    out
}

/// What [`specs`] has in other formats: every one that weights may have, and tables whose codes are no plain bits.
pub(crate) fn in_further_formats(plane: u32, wide: bool) -> Vec<KernelSpec> {
    let team = Team { units: 128, plane };
    let tables = [
        Format::Bf16,
        Format::Blocks(&IQ2_XS),
        Format::Blocks(&TQ1_0),
        Format::Blocks(&NVFP4),
    ];
    let tables = tables.map(|format| gathered(team, format, false));
    in_other_formats(team, wide).chain(tables).collect()
}

/// Rows of a table; `changed`: as adapters change them.
fn gathered(team: Team, format: Format, changed: bool) -> KernelSpec {
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
fn selected(team: Team) -> KernelSpec {
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
fn rows_of(
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
            team,
            rows,
            origin,
            tails: vec![tail],
        }),
        scalars,
    }
}
