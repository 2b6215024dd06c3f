use rusty_compiler::KvFormat;
use rusty_compiler::gpu::kernels::attention::AttentionConfig;
use rusty_compiler::gpu::kernels::body::{Place, Program, Source};
use rusty_compiler::gpu::kernels::choose::ChooseConfig;
use rusty_compiler::gpu::kernels::contract::{ContractConfig, PartConfig, UnitConfig};
use rusty_compiler::gpu::kernels::delta::{Adapters, ShrinkConfig};
use rusty_compiler::gpu::kernels::env::header;
use rusty_compiler::gpu::kernels::reduce::Team;
use rusty_compiler::gpu::kernels::rows::{Origin, RowsConfig};
use rusty_compiler::gpu::kernels::sink::{Store, Target};
use rusty_compiler::gpu::text::{KernelSpec, Kind};
use rusty_compiler::plan::{F32, Inst};
use rusty_graph::{BinaryOp, RopeLayout, UnaryOp};
use rusty_loader::Format;
use rusty_loader::formats::{Q4_0, Q4_K, Q6_K, Q8_0};

fn norm_program() -> Program {
    Program {
        insts: vec![
            Inst::Load(0),
            Inst::RmsNorm {
                x: 0,
                weight: 1,
                eps: F32::new(1e-6),
                group: 256,
            },
        ],
        places: vec![
            Place::Arena { arg: 0, width: 256 },
            Place::Vectors { arg: 1 },
        ],
        source: Source::None,
        segment: 256,
    }
}

fn given(insts: Vec<Inst>, places: Vec<Place>) -> Program {
    Program {
        insts,
        places,
        source: Source::Given,
        segment: 256,
    }
}

fn specs(plane: u32) -> Vec<KernelSpec> {
    let team = Team { units: 128, plane };
    let adapters = Adapters {
        parts: 2,
        arg: 12,
        rows: header::ROWS,
    };
    let mut out = vec![];
    for format in [
        Format::F32,
        Format::F16,
        Format::Bf16,
        Format::Blocks(&Q4_0),
        Format::Blocks(&Q8_0),
        Format::Blocks(&Q4_K),
        Format::Blocks(&Q6_K),
    ] {
        for a in [None, Some(adapters)] {
            let part = |arg| PartConfig {
                format,
                row_bytes: format.row_bytes(256) as u32,
                arg,
            };
            let c = ContractConfig {
                team,
                rows: header::ROWS,
                k: 256,
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
                        target: Target::Arena { arg: 7 },
                    }],
                }],
                adapters: a,
                lanes: 2,
            };
            out.push(KernelSpec {
                kind: Kind::Gemv(c.clone()),
                scalars: 14,
            });
            out.push(KernelSpec {
                kind: Kind::Gemm(c),
                scalars: 14,
            });
        }
    }
    out.push(KernelSpec {
        kind: Kind::Shrink(ShrinkConfig {
            team,
            k: 256,
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
                    target: Target::Arena { arg: 2 },
                },
                Store {
                    width: 256,
                    program: rope,
                    target: Target::Page {
                        half: 0,
                        kv: KvFormat::F16,
                    },
                },
            ],
        }),
        scalars: 3,
    });
    out.push(KernelSpec {
        kind: Kind::Attention(AttentionConfig {
            units: 128,
            rows: 4,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            scale: F32::new(0.125),
            window: Some(17),
            softcap: Some(F32::new(30.0)),
            kv: KvFormat::F16,
            arg: 0,
            unit: UnitConfig {
                parts: vec![0],
                arg: 0,
                tails: vec![Store {
                    width: 256,
                    program: given(vec![Inst::Result(0)], vec![]),
                    target: Target::Arena { arg: 1 },
                }],
            },
        }),
        scalars: 2,
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

#[test]
fn texts() {
    let dir = std::env::var("DUMP").ok();
    for (name, ext) in [("llvmpipe", "wgsl"), ("h200", "cu"), ("m3", "metal")] {
        for plane in [false, true] {
            let mut target = rusty_backend::Target::named(name).unwrap();
            target.plane_ops = plane;
            if name == "m3" {
                target.language = rusty_backend::Language::Msl;
            }
            for (i, spec) in specs(if plane { target.plane_size } else { 0 })
                .iter()
                .enumerate()
            {
                let t = std::time::Instant::now();
                let text = spec
                    .text(&target)
                    .unwrap_or_else(|e| panic!("{} {name}: {e}", spec.name()));
                println!(
                    "{name} {plane} {} {} bytes {:?}",
                    spec.name(),
                    text.source.len(),
                    t.elapsed()
                );
                if let Some(d) = &dir {
                    std::fs::write(
                        format!("{d}/{i}_{}_{plane}.{ext}", spec.name()),
                        text.source,
                    )
                    .unwrap();
                }
            }
        }
    }
}
