//! Attention of each kind and shape, for [the list of kernels](crate::gpu_specs).

use crate::gpu_specs::given;
use rusty_compiler::gpu::kernels::attention::AttentionConfig;
use rusty_compiler::gpu::kernels::attention_shape::AttentionShape;
use rusty_compiler::gpu::kernels::body::{Place, Program};
use rusty_compiler::gpu::kernels::contract::UnitConfig;
use rusty_compiler::gpu::kernels::matrix_attention::{MatrixAttentionConfig, MatrixAttentionCut};
use rusty_compiler::gpu::kernels::page_words::PageWords;
use rusty_compiler::gpu::kernels::pieces::Piece;
use rusty_compiler::gpu::kernels::reduce::Team;
use rusty_compiler::gpu::kernels::row_attention::RowAttentionConfig;
use rusty_compiler::gpu::kernels::sink::{Store, Target as Sink};
use rusty_compiler::gpu::text::{KernelSpec, Kind};
use rusty_compiler::plan::{F32, Inst};

/// Each shape of single rows, of tiles on matrix units and of other tiles; `rope` makes queries and keys, `wide` as in
/// [`specs`](crate::gpu_specs::specs).
pub(crate) fn attentions(team: Team, rope: Program, wide: bool) -> Vec<KernelSpec> {
    let stored = |kv| tiles(AttentionShape { kv, ..heads() });
    let latent = AttentionConfig {
        rows: 1,
        ..tiles(of_latents())
    };
    let latent_query = given(
        vec![Inst::Load(0)],
        vec![Place::Arena {
            arg: 0,
            width: 9216,
        }],
    );
    let all = [
        (stored(PageWords::Codes(8)), rope.clone()),
        (stored(PageWords::Codes(4)), rope.clone()),
        (stored(PageWords::F32), rope.clone()),
        (stored(PageWords::Bf16), rope.clone()),
        (stored(PageWords::F16), rope),
        (latent, latent_query),
    ];
    let mut out = vec![];
    for (config, query) in all {
        if team.plane > 0 {
            let rows = single_rows(team, &config, query, wide);
            // No GPU under CUDA needs them.
            if config.shape.kv == PageWords::F16 && !wide {
                out.extend(with_scalars(apart(rows.clone())));
            }
            out.extend(with_scalars([Kind::RowAttention(rows)]));
        }
        out.push(KernelSpec {
            kind: Kind::Attention(config),
            scalars: 2,
        });
    }
    if team.plane > 0 {
        out.extend(on_matrix_units(&tiles(heads()), wide));
    }
    out
}

/// Half of [heads], which lie in two buffers.
pub(crate) const PIECE: Piece = Piece {
    heads: 1,
    head_dim: 64,
};

/// What [attentions] has of keys and values in several buffers; the first scalar says with which head one starts.
pub(crate) fn of_pieces(team: Team, rope: &Program, wide: bool) -> Vec<KernelSpec> {
    let mut out = vec![];
    for kv in [PageWords::Codes(8), PageWords::F16] {
        let config = tiles(AttentionShape {
            kv,
            piece: Some(PIECE),
            ..heads()
        });
        if team.plane > 0 {
            let rows = single_rows(team, &config, rope.clone(), wide);
            out.extend(with_scalars([Kind::RowAttention(rows)]));
        }
        if team.plane > 0 && kv == PageWords::F16 {
            out.extend(on_matrix_units(&config, wide));
        }
        out.push(KernelSpec {
            kind: Kind::Attention(config),
            scalars: 2,
        });
    }
    for spec in &mut out {
        spec.scalars += 1;
    }
    out
}

/// Heads with keys and values of their own, a window and a cap.
fn heads() -> AttentionShape {
    AttentionShape {
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
        piece: None,
    }
}

/// Heads whose values are lanes of one row of keys.
fn of_latents() -> AttentionShape {
    AttentionShape {
        heads: 16,
        kv_heads: 1,
        head_dim: 576,
        value_dim: 512,
        of_keys: true,
        shares: 4,
        window: None,
        softcap: None,
        kv: PageWords::Bf16,
        ..heads()
    }
}

fn tiles(shape: AttentionShape) -> AttentionConfig {
    AttentionConfig {
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
    }
}

/// The kernel of single rows, which makes queries and keys itself.
fn single_rows(
    team: Team,
    config: &AttentionConfig,
    query: Program,
    wide: bool,
) -> RowAttentionConfig {
    let store = Store {
        width: 128,
        program: query.clone(),
        target: Sink::Page {
            half: 0,
            halves: 2,
            kv: config.shape.kv,
            piece: config.shape.piece,
        },
    };
    RowAttentionConfig {
        team,
        wide: wide && matches!(config.shape.kv, PageWords::F16 | PageWords::Bf16),
        shape: config.shape,
        stores: match config.shape.of_keys {
            true => vec![],
            false => vec![store],
        },
        query,
        splits: 2,
        meets: true,
        unit: config.unit.clone(),
    }
}

/// Kernels that have the scalars of single rows.
fn with_scalars(kinds: impl IntoIterator<Item = Kind>) -> impl Iterator<Item = KernelSpec> {
    let spec = |kind| KernelSpec { kind, scalars: 3 };
    kinds.into_iter().map(spec)
}

/// The kernel of single rows whose splits a launch behind adds up, and that.
fn apart(config: RowAttentionConfig) -> [Kind; 2] {
    let config = RowAttentionConfig {
        meets: false,
        ..config
    };
    [Kind::RowAttention(config.clone()), Kind::MeetSplits(config)]
}

/// The kernels of tiles on matrix units, where the heads fit.
fn on_matrix_units(config: &AttentionConfig, native: bool) -> Vec<KernelSpec> {
    let mut out = vec![];
    let all = [
        (2, 4, 32, PageWords::Bf16),
        (1, 1, 64, PageWords::F16),
        (1, 2, 32, PageWords::Codes(4)),
        (1, 1, 32, PageWords::Codes(8)),
    ];
    for (below, across, keys, kv) in all {
        let config = MatrixAttentionConfig {
            cut: MatrixAttentionCut {
                below,
                across,
                keys,
            },
            shape: AttentionShape { kv, ..config.shape },
            arg: config.arg,
            unit: config.unit.clone(),
            native,
        };
        if config.is_whole() {
            out.push(KernelSpec {
                kind: Kind::MatrixAttention(config),
                scalars: 2,
            });
        }
    }
    out
}
