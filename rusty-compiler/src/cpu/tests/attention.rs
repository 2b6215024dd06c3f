//! Attention over pages.

use super::{Noise, levels};
use crate::PAGE_TOKENS;
use crate::cpu::attention::partial::{self, MAX_QUERIES, Partial};
use crate::cpu::attention::{self, Block, SCORE_WORDS};
use crate::cpu::kv::{self, KvHalf, KvPool};
use crate::cpu::memory::Buffer;
use crate::cpu::quantize::Inputs;
use crate::cpu::simd::Level;
use crate::rotation::rotate_all;
use crate::step::KvFormat;
use half::{bf16, f16};
use rusty_graph::{AttentionSpec, AttentionValues, KvLayer};
use rusty_loader::{Codec, Format, formats};

struct Case {
    spec: AttentionSpec,
    length: usize,
    first: usize,
    format: KvFormat,
    /// Tasks among which the query heads of a key head are shared.
    shares: usize,
}

#[test]
fn attention_matches_a_plain_softmax() {
    let spec = |heads, kv_heads, head_dim, window, softcap| AttentionSpec {
        layer: 0,
        heads,
        kv_heads,
        head_dim,
        values: AttentionValues::Own,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window,
        softcap,
    };
    let case = |spec, length, first, format| Case {
        spec,
        length,
        first,
        format,
        shares: 1,
    };
    let latent = |heads, head_dim, lanes| AttentionSpec {
        values: AttentionValues::OfKeys(lanes),
        ..spec(heads, 1, head_dim, None, None)
    };
    let shared = |spec, length, first, format| Case {
        shares: 2,
        ..case(spec, length, first, format)
    };
    let cases = [
        case(latent(6, 48, 32), 70, 66, KvFormat::F32),
        shared(latent(4, 44, 20), 300, 297, KvFormat::F16),
        shared(spec(4, 1, 32, None, None), 40, 38, KvFormat::F32),
        case(spec(4, 2, 32, None, None), 1, 0, KvFormat::F32),
        case(spec(6, 2, 20, None, Some(5.0)), 70, 61, KvFormat::F32),
        case(spec(8, 1, 64, Some(33), None), 200, 197, KvFormat::F16),
        case(spec(4, 4, 80, Some(5), None), 90, 70, KvFormat::F32),
        case(spec(4, 2, 16, None, None), 2100, 2097, KvFormat::F16),
        case(spec(4, 2, 48, None, None), 150, 146, KvFormat::Bf16),
        case(spec(8, 2, 64, None, None), 70, 63, KvFormat::Q8_0),
        case(
            spec(4, 4, 96, Some(40), Some(5.0)),
            200,
            197,
            KvFormat::Q8_0,
        ),
        shared(spec(8, 1, 32, None, None), 1, 0, KvFormat::Q8_0),
        case(spec(8, 2, 64, None, None), 70, 63, KvFormat::Q4_0),
        shared(spec(4, 1, 128, None, None), 1100, 1097, KvFormat::Q4_0),
    ];
    for case in &cases {
        for level in levels() {
            check_attention(level, case);
        }
    }
}

fn check_attention(level: Level, case: &Case) {
    let s = case.spec;
    let (heads, kv_heads, d) = (s.heads as usize, s.kv_heads as usize, s.head_dim as usize);
    let mut noise = Noise(5);
    let width = kv_heads * d;
    let rounded = |v: Vec<f32>| match case.format {
        KvFormat::F32 => v,
        KvFormat::F16 => v.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
        KvFormat::Bf16 => v.iter().map(|v| bf16::from_f32(*v).to_f32()).collect(),
        KvFormat::Q8_0 => in_blocks(&formats::Q8_0, &v),
        KvFormat::Q4_0 => in_blocks(&formats::Q4_0, &v),
    };
    // What queries in bytes may cost.
    let limit = match case.format.block_lanes() {
        1 => 2e-5,
        _ => 4e-3,
    };
    let keys = rounded(noise.floats(case.length * width));
    let values = match s.values {
        AttentionValues::Own => rounded(noise.floats(case.length * width)),
        AttentionValues::OfKeys(_) => keys.clone(),
    };
    let rows = case.length - case.first;
    let q = noise.floats(rows * heads * d);
    let used = case.length.div_ceil(PAGE_TOKENS);
    let layers = [KvLayer {
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        values: s.values,
    }];
    let pool = KvPool::new(&layers, used as u32 + 3, case.format);
    // Pages in an odd order.
    let pages: Vec<u32> = (0..used).map(|p| (used - 1 - p) as u32 + 2).collect();
    for t in 0..case.length {
        let stored = match s.values {
            AttentionValues::Own => 2,
            AttentionValues::OfKeys(_) => 1,
        };
        let halves = [(KvHalf::Keys, &keys), (KvHalf::Values, &values)];
        for (half, from) in halves.into_iter().take(stored) {
            let place = pool.place(0, half, pages[t / PAGE_TOKENS], t % PAGE_TOKENS);
            // Two ranges that cut a head, but no block.
            let cut = match case.format.block_lanes() {
                1 => width / 2 - 1,
                lanes => width / 2 / lanes as usize * lanes as usize,
            };
            for (first, count) in [(0, cut), (cut, width - cut)] {
                let from = from[t * width + first..].as_ptr();
                // SAFETY: the lanes are inside the layer.
                unsafe { kv::store(level, place, first, count, from) };
            }
        }
    }
    let group = heads / kv_heads / case.shares;
    let inputs = Inputs::new(MAX_QUERIES, d, 1, false);
    let lanes = s.value_dim() as usize;
    let forms = pool.layer(0).shape.blocks.map(|b| b.forms);
    let forms = forms.unwrap_or_default();
    for share in 0..heads / group {
        let kv_head = share / case.shares;
        let block = Block {
            spec: s,
            layer: pool.layer(0),
            head: share * group,
            group,
            q: q.as_ptr(),
            rows,
            position: case.first,
            pages: &pages,
            quantized: inputs.rows(d, forms),
        };
        let padded = block.layer.shape.result;
        let memory = Buffer::words(SCORE_WORDS + 2 * Partial::words(padded));
        let partial = |i: usize| Partial {
            at: memory
                .floats()
                .wrapping_add(SCORE_WORDS + i * Partial::words(padded)),
            padded,
        };
        let attended = |block: Block<'_>| {
            let mut out = vec![0f32; block.queries() * lanes];
            // SAFETY: all memory is whole and this thread's.
            unsafe {
                partial(0).clear(block.queries());
                attention::quantize_queries(level, block);
                for span in block.spans() {
                    attention::attend(level, block, span, memory.floats(), partial(1));
                    partial::merge(partial(0), partial(1), block.queries());
                }
                attention::finish(&block, partial(0), out.as_mut_ptr());
            }
            out
        };
        let out = attended(block);
        for row in 0..rows {
            let alone = Block {
                q: q[row * heads * d..].as_ptr(),
                rows: 1,
                position: case.first + row,
                ..block
            };
            assert_eq!(
                attended(alone),
                out[row * group * lanes..][..group * lanes],
                "{level:?} {s:?} {:?} row {row} alone",
                case.format
            );
            for h in 0..group {
                let q = &q[(row * heads + share * group + h) * d..][..d];
                let want = plain(&s, q, &keys, &values, case.first + row, kv_head);
                let have = &out[(row * group + h) * lanes..][..lanes];
                for (i, (w, v)) in want.iter().zip(have).enumerate() {
                    let error = (w - f64::from(*v)).abs();
                    assert!(
                        error < limit,
                        "{level:?} {s:?} row {row} head {h} lane {i}: {error}"
                    );
                }
            }
        }
    }
}

/// What a block format keeps of values when their blocks are rotated.
fn in_blocks(codec: &'static Codec, values: &[f32]) -> Vec<f32> {
    let format = Format::Blocks(codec);
    let mut bytes = vec![0; format.row_bytes(values.len())];
    let mut out = values.to_vec();
    rotate_all(&mut out);
    format.encoder().expect("one").rows(&out, &mut bytes);
    format.decode_row(&bytes, &mut out);
    rotate_all(&mut out);
    out
}

/// Attention of one query in double precision.
fn plain(
    s: &AttentionSpec,
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    position: usize,
    kv_head: usize,
) -> Vec<f64> {
    let d = s.head_dim as usize;
    let width = s.kv_heads as usize * d;
    let from = s
        .window
        .map_or(0, |w| (position + 1).saturating_sub(w as usize));
    let score = |t: usize| {
        let k = &keys[t * width + kv_head * d..][..d];
        let dot: f64 = q
            .iter()
            .zip(k)
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum();
        let scaled = dot * f64::from(s.scale);
        s.softcap
            .map_or(scaled, |c| f64::from(c) * (scaled / f64::from(c)).tanh())
    };
    let scores: Vec<f64> = (from..=position).map(score).collect();
    let top = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; d];
    for (i, w) in weights.iter().enumerate() {
        let v = &values[(from + i) * width + kv_head * d..][..d];
        out.iter_mut()
            .zip(v)
            .for_each(|(o, v)| *o += w / sum * f64::from(*v));
    }
    out
}
