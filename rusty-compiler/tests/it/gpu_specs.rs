//! One kernel of each kind, format and shape by which device texts differ.

use crate::gpu_attentions::{PIECE, attentions, of_pieces};
use crate::gpu_contractions::{GATED, contractions, in_other_formats, of_expert};
use crate::gpu_rows::{gathered, rows_of, selected};
use crate::softmax::softmax_program;
use rusty_compiler::gpu::kernels::body::{Place, Program, Source};
use rusty_compiler::gpu::kernels::choose::ChooseConfig;
use rusty_compiler::gpu::kernels::delta::Adapters;
use rusty_compiler::gpu::kernels::env::header;
use rusty_compiler::gpu::kernels::expert_results::ExpertResultsConfig;
use rusty_compiler::gpu::kernels::experts::{ExpertsConfig, FewExpertsConfig, Summing, scalar};
use rusty_compiler::gpu::kernels::grouped::{GroupedConfig, Tiles};
use rusty_compiler::gpu::kernels::grouped_matrix;
use rusty_compiler::gpu::kernels::page_words::PageWords;
use rusty_compiler::gpu::kernels::pieces::Piece;
use rusty_compiler::gpu::kernels::random::{RandomConfig, scalar as random};
use rusty_compiler::gpu::kernels::reduce::Team;
use rusty_compiler::gpu::kernels::route::RouteConfig;
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
    out.push(rotated(team, PageWords::Bf16, None));
    let of_step = (team, header::ROWS);
    out.push(rows_of(of_step, Origin::Map, softmax_program(), 2));
    let table = Format::Blocks(&Q4_K);
    out.extend([gathered(team, table, false), gathered(team, table, true)]);
    out.push(selected(team));
    out.extend(attentions(team, rope_program(), wide));
    out.extend(of_pieces(team, &rope_program(), wide));
    out.push(rotated(team, PageWords::Codes(8), Some(PIECE)));
    out.extend(routes());
    out.extend(experts(team, wide));
    out.extend([1, 4].map(|cubes| KernelSpec {
        kind: Kind::Choose(ChooseConfig {
            units: 128,
            rows: header::SELECTED,
            width: 1000,
            cubes,
            args: [0, 1],
        }),
        scalars: 2,
    }));
    out.push(KernelSpec {
        kind: Kind::Random(RandomConfig { units: 128 }),
        scalars: random::COUNT,
    });
    out
}

/// Heads of 64 lanes, normed and rotated.
fn rope_program() -> Program {
    Program {
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
    }
}

/// Heads that are rotated, to the arena and to pages of two formats, or to one of several buffers of them.
fn rotated(team: Team, kv: PageWords, piece: Option<Piece>) -> KernelSpec {
    let page = |half, kv| Sink::Page {
        half,
        halves: 2,
        kv,
        piece,
    };
    let targets = [Sink::Arena { arg: 2 }, page(0, PageWords::F16), page(1, kv)];
    let store = |target| Store {
        width: 256,
        program: rope_program(),
        target,
    };
    KernelSpec {
        kind: Kind::Rows(RowsConfig {
            units: team.units,
            team: match team.plane {
                0 => team,
                _ => team.of_plane(),
            },
            rows: header::ROWS,
            origin: Origin::Map,
            tails: Vec::from(targets.map(store)),
        }),
        scalars: 3 + usize::from(piece.is_some()),
    }
}

/// The choice of experts by each score, with groups and a bias and without.
fn routes() -> impl Iterator<Item = KernelSpec> {
    let (softmax, sigmoid) = (RouteScore::Softmax, RouteScore::Sigmoid);
    let all = [
        (softmax, true, None, None),
        (softmax, false, Some(GroupScore::Best), None),
        (sigmoid, true, Some(GroupScore::BestTwo), Some(2)),
    ];
    all.into_iter()
        .map(|(score, normalize, of_groups, bias)| KernelSpec {
            kind: Kind::Route(RouteConfig {
                rows: header::ROWS,
                experts: 64,
                used: 6,
                score,
                groups: of_groups.map(|score| RouteGroups {
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
        })
}

/// Products with experts, of few rows and of many, and what becomes of them: of gate and up, of products that are summed, and of heads.
fn experts(team: Team, wide: bool) -> Vec<KernelSpec> {
    let mut out = vec![];
    for (routed, combine, parts, format) in [
        (true, false, 2, Format::Bf16),
        (true, true, 1, Format::Blocks(&Q4_K)),
        (false, false, 1, Format::Bf16),
    ] {
        let config = ExpertsConfig {
            rows: header::ROWS,
            k: 256,
            n: 128,
            used: 6,
            routed,
            combine,
            parts,
        };
        let row_bytes = format.row_bytes(256) as u32;
        let few = |sums, tails| {
            let mut product = of_expert(team, (config.k, parts as usize), format, wide);
            if sums == Summing::SideBySide {
                product.lanes = 4;
            }
            Kind::Experts(FewExpertsConfig {
                experts: config,
                product,
                sums,
                tails,
            })
        };
        let results = |adapted| {
            Kind::ExpertResults(ExpertResultsConfig {
                experts: config,
                adapted,
                tails: of_products(&config),
            })
        };
        let on_units = grouped_matrix::config(of_expert(team, (config.k, 1), format, wide), wide);
        let grouped = [
            Tiles::Single { format, row_bytes },
            Tiles::Matrix(Box::new(on_units)),
        ]
        .map(|tiles| {
            Kind::Grouped(GroupedConfig {
                experts: config,
                tiles,
            })
        });
        let tails = of_products(&config);
        match combine {
            true => {
                out.extend([Summing::InTurn, Summing::SideBySide].map(|s| few(s, tails.clone())))
            }
            false => out.push(few(Summing::Nothing, if routed { tails } else { vec![] })),
        }
        out.extend(grouped);
        out.push(results(Some(64)));
        if routed {
            out.push(results(None));
        }
    }
    let scalars = scalar::count(2) + 1;
    out.into_iter()
        .map(|kind| KernelSpec { kind, scalars })
        .collect()
}

/// The tail of products with experts: gate and up's, or the products as they are.
fn of_products(config: &ExpertsConfig) -> Vec<Store> {
    let insts = match config.parts {
        2 => GATED.to_vec(),
        _ => vec![Inst::Result(0)],
    };
    let arg = scalar::count(2);
    vec![Store {
        width: config.part_lanes(),
        program: given(insts, vec![]),
        target: Sink::Arena { arg },
    }]
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
