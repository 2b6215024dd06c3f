//! Contractions of each format and way, for [the list of kernels](crate::gpu_specs).

use crate::gpu_specs::{given, norm_program};
use rusty_compiler::gpu::kernels::body::{Place, Program, Source};
use rusty_compiler::gpu::kernels::contract::{ContractConfig, PartConfig, UnitConfig};
use rusty_compiler::gpu::kernels::delta::Adapters;
use rusty_compiler::gpu::kernels::depth_shares::DepthShares;
use rusty_compiler::gpu::kernels::env::header;
use rusty_compiler::gpu::kernels::experts::scalar;
use rusty_compiler::gpu::kernels::gemm::GemmConfig;
use rusty_compiler::gpu::kernels::matrix::{self, MatrixConfig};
use rusty_compiler::gpu::kernels::matrix_product::MatrixTile;
use rusty_compiler::gpu::kernels::packed_inputs::{PackConfig, PackedInputs};
use rusty_compiler::gpu::kernels::reduce::Team;
use rusty_compiler::gpu::kernels::sink::{Store, Target as Sink};
use rusty_compiler::gpu::kernels::tile::TileShape;
use rusty_compiler::gpu::text::{KernelSpec, Kind};
use rusty_compiler::plan::byte_codes::ByteCodes;
use rusty_compiler::plan::{F32, Inst};
use rusty_graph::{BinaryOp, UnaryOp};
use rusty_loader::Format;
use rusty_loader::formats::{
    ALL, FP8_G128, INT4_G128, IQ2_XS, NF4_G64, NVFP4, OF_CHECKPOINTS, Q4_0, Q4_K, Q6_K, Q8_0, TQ1_0,
};

/// Formats that are listed with each kernel: one for each way in which codes, scales and levels lie.
fn of_all_kinds() -> [Format; 13] {
    [
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
    ]
}

/// Whether kernels of a format are listed with tiles of every shape, and such as ask for weights ahead. In others, which differ from
/// these in how elements are decoded, they are with one.
pub(crate) fn in_all_tiles(format: Format) -> bool {
    match format {
        Format::F32 | Format::F16 | Format::Bf16 => true,
        Format::Blocks(codec) => *codec == Q4_0,
    }
}

/// Whether kernels of a format are listed with adapters, which meet weights as products: those and one whose blocks have minima.
fn meets_adapters(format: Format) -> bool {
    in_all_tiles(format) || format == Format::Blocks(&Q4_K)
}

/// All shapes of tiles, or one of them in turn.
fn some_of<T>(shapes: [T; 3], turn: usize, format: Format) -> impl Iterator<Item = T> {
    let shapes = shapes.into_iter().enumerate();
    let listed = move |i: usize| in_all_tiles(format) || i == turn % 3;
    shapes
        .filter(move |(i, _)| listed(*i))
        .map(|(_, shape)| shape)
}

/// Few and many rows, with and without adapters; `wide` as in [`specs`](crate::gpu_specs::specs).
pub(crate) fn contractions(team: Team, adapters: Adapters, wide: bool) -> Vec<KernelSpec> {
    let mut out = vec![];
    for (at, format) in of_all_kinds().into_iter().enumerate() {
        let variants = [None, Some(adapters)].into_iter();
        for adapters in variants.filter(|a| a.is_none() || meets_adapters(format)) {
            let contract = gated(team, format, adapters, wide);
            out.extend(match in_all_tiles(format) {
                true => or_ahead(&contract),
                false => of_few_rows(&contract).into_iter().map(gemv).collect(),
            });
            if team.plane > 0 && format != Format::F32 {
                let tiles = some_of([(32, 32), (64, 64), (128, 128)], at, format);
                out.extend(tiles.map(|tile| on_matrix_units(&contract, tile)));
            }
            if team.plane > 0 && [Format::F16, Format::Bf16].contains(&format) {
                out.push(packs(&contract));
            }
            let tiles = [TileShape::SMALL, TileShape::MIDDLE, TileShape::TALL];
            out.extend(in_tiles(&contract, some_of(tiles, at, format)));
        }
    }
    for format in [Format::Bf16, Format::Blocks(&Q8_0)] {
        for adapters in [None, Some(adapters)] {
            let residual = behind_residual(gated(team, format, adapters, wide));
            // Rows that are multiplied together find it made.
            let alone = |s: &KernelSpec| matches!(&s.kind, Kind::Gemv(c) if c.cube_rows == 1);
            out.extend(or_ahead(&residual).into_iter().filter(alone));
        }
    }
    let siblings = siblings(team, wide);
    out.extend(or_ahead(&siblings));
    if team.plane > 0 {
        out.extend([(64, 64), (128, 128)].map(|tile| on_matrix_units(&siblings, tile)));
    }
    out
}

/// Few rows in every other block format that there is.
pub(crate) fn in_other_formats(team: Team, wide: bool) -> impl Iterator<Item = KernelSpec> {
    let listed = of_all_kinds();
    let all = ALL.iter().chain(OF_CHECKPOINTS).copied();
    let others = all.map(Format::Blocks).filter(move |f| !listed.contains(f));
    let few = move |format| of_few_rows(&gated(team, format, None, wide));
    others.flat_map(few).map(gemv)
}

/// Products of floats, and of bytes where the format allows them, of one row and of several; with adapters, those of some formats
/// also make the first factor.
fn of_few_rows(contract: &ContractConfig) -> Vec<ContractConfig> {
    let serves = contract.parts.iter().all(|p| ByteCodes::serve(p.format));
    let shrinks = contract.adapters.is_some()
        && [Format::Bf16, Format::Blocks(&Q4_0)].contains(&contract.parts[0].format);
    let mut out = vec![];
    for bytes in [false, true].into_iter().filter(|bytes| !bytes || serves) {
        for cube_rows in [1, if bytes { 4 } else { 2 }] {
            for shrinks in [false, true].into_iter().filter(|own| !own || shrinks) {
                out.push(ContractConfig {
                    bytes,
                    cube_rows,
                    shrinks,
                    ..contract.clone()
                });
            }
        }
    }
    out
}

/// Those, and where the language can say so those that ask for weights ahead: tuning may find any faster so.
fn or_ahead(contract: &ContractConfig) -> Vec<KernelSpec> {
    let all = of_few_rows(contract);
    let asks = |c: &&ContractConfig| c.wide && (c.shrinks || c.adapters.is_none());
    let ahead: Vec<_> = all
        .iter()
        .filter(asks)
        .cloned()
        .map(|c| ContractConfig { ahead: true, ..c })
        .collect();
    all.into_iter().chain(ahead).map(gemv).collect()
}

fn gemv(contract: ContractConfig) -> KernelSpec {
    spec(Kind::Gemv(contract))
}

fn spec(kind: Kind) -> KernelSpec {
    KernelSpec { kind, scalars: 14 }
}

/// Shared memory as GPUs that have matrix units have it.
const SHARED_BYTES: u32 = 160 << 10;

fn on_matrix_units(contract: &ContractConfig, (rows, lanes): (u32, u32)) -> KernelSpec {
    let config = MatrixConfig {
        contract: contract.clone(),
        tile: MatrixTile::of_products(rows, lanes, contract.most_parts() as u32),
        shares: (rows != 32).then_some(DepthShares {
            count: 15,
            left: 16,
        }),
        packed: (rows != 32).then(|| packed(contract)),
        stages: 1,
        native: contract.wide,
    };
    let kind = Kind::Matrix(config.with_stages(SHARED_BYTES));
    KernelSpec { kind, scalars: 17 }
}

fn packed(contract: &ContractConfig) -> PackedInputs {
    PackedInputs {
        arg: 14,
        k: contract.k,
        parts: contract.adapters.map_or(1, |adapters| adapters.parts),
        halves: matrix::halves(&contract.parts, contract.wide),
    }
}

/// What makes the inputs of the larger tiles.
fn packs(contract: &ContractConfig) -> KernelSpec {
    let kind = Kind::Pack(PackConfig {
        team: contract.team,
        contract: contract.clone(),
        inputs: packed(contract),
    });
    KernelSpec { kind, scalars: 15 }
}

/// Tiles of some shapes in single precision, and with weights in half precision where their format allows it.
fn in_tiles(contract: &ContractConfig, shapes: impl Iterator<Item = TileShape>) -> Vec<KernelSpec> {
    let allowed = contract
        .parts
        .iter()
        .all(|p| GemmConfig::has_halves(p.format));
    let mut out = vec![];
    for tile in shapes {
        for halves in [false, true]
            .into_iter()
            .filter(|halves| !halves || allowed)
        {
            out.push(spec(Kind::Gemm(GemmConfig {
                contract: contract.clone(),
                tile,
                halves,
            })));
        }
    }
    out
}

/// A tail that reads gate and up.
pub(crate) const GATED: [Inst; 4] = [
    Inst::Result(0),
    Inst::Unary(UnaryOp::Silu, 0),
    Inst::Result(1),
    Inst::Binary(BinaryOp::Mul, 1, 2),
];

/// The products with an expert, of some parts.
pub(crate) fn of_expert(
    team: Team,
    (k, parts): (u32, usize),
    format: Format,
    wide: bool,
) -> ContractConfig {
    let part = |p| PartConfig {
        format,
        row_bytes: format.row_bytes(k as usize) as u32,
        arg: scalar::rows(p),
    };
    ContractConfig {
        team,
        first: None,
        rows: header::ROWS,
        k,
        prologue: Program {
            insts: vec![Inst::Load(0)],
            places: vec![Place::Arena {
                arg: scalar::X,
                width: k,
            }],
            source: Source::None,
            segment: k,
        },
        parts: (0..parts).map(part).collect(),
        units: vec![UnitConfig {
            parts: (0..parts).collect(),
            tails: vec![],
            arg: scalar::FIRST,
        }],
        adapters: None,
        lanes: 2,
        cube_rows: 1,
        wide,
        bytes: ByteCodes::serve(format),
        shrinks: false,
        ahead: false,
    }
}

/// Gate and up behind a norm: one tail reads both.
fn gated(team: Team, format: Format, adapters: Option<Adapters>, wide: bool) -> ContractConfig {
    let part = |arg| PartConfig {
        format,
        row_bytes: format.row_bytes(512) as u32,
        arg,
    };
    ContractConfig {
        team,
        first: None,
        rows: header::ROWS,
        k: 512,
        prologue: norm_program(),
        parts: vec![part(2), part(3)],
        units: vec![UnitConfig {
            parts: vec![0, 1],
            arg: 4,
            tails: vec![Store {
                width: 512,
                program: given(GATED.to_vec(), vec![]),
                target: Sink::Arena { arg: 7 },
            }],
        }],
        adapters,
        lanes: 2,
        cube_rows: 1,
        wide,
        bytes: false,
        shrinks: false,
        ahead: false,
    }
}

/// The same of what another norm adds to.
fn behind_residual(contract: ContractConfig) -> ContractConfig {
    let norm = norm_program();
    let sum = [Inst::Load(2), Inst::Binary(BinaryOp::Add, 1, 2)];
    let places = [Place::Arena { arg: 8, width: 512 }];
    let first = Program {
        insts: norm.insts.iter().copied().chain(sum).collect(),
        places: norm.places.iter().copied().chain(places).collect(),
        ..norm
    };
    let last = Inst::RmsNorm {
        x: 3,
        weight: 1,
        eps: F32::new(1e-6),
        group: 512,
    };
    let prologue = Program {
        insts: first.insts.iter().copied().chain([last]).collect(),
        ..first.clone()
    };
    ContractConfig {
        prologue,
        first: Some(Store {
            width: 512,
            program: first,
            target: Sink::Arena { arg: 9 },
        }),
        ..contract
    }
}

/// Queries, keys and values: units share a cube's memory, and the first two of them, which are stored alike, code.
fn siblings(team: Team, wide: bool) -> ContractConfig {
    let apart = |first: usize| UnitConfig {
        parts: vec![first],
        arg: 3 + 3 * first,
        tails: vec![Store {
            width: 512,
            program: given(vec![Inst::Result(first as u16)], vec![]),
            target: Sink::Arena { arg: 12 },
        }],
    };
    let part = |(arg, codec)| PartConfig {
        format: Format::Blocks(codec),
        row_bytes: Format::Blocks(codec).row_bytes(4096) as u32,
        arg,
    };
    ContractConfig {
        team,
        first: None,
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
        parts: [&Q4_0, &Q4_0, &Q8_0]
            .into_iter()
            .enumerate()
            .map(part)
            .collect(),
        units: (0..3).map(apart).collect(),
        adapters: None,
        lanes: 2,
        cube_rows: 1,
        wide,
        bytes: false,
        shrinks: false,
        ahead: false,
    }
}
