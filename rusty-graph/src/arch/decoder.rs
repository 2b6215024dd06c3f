//! The dense pre-norm decoder that several architectures share: RMS norm, rotary grouped-query attention,
//! gated feed-forward. Biases are added where the file has them.

use crate::builder::GraphBuilder;
use crate::{AttentionSpec, BinaryOp, Error, Graph, Result, RopeId, RopeSpec, UnaryOp, ValueId};
use rusty_loader::ModelFile;
use rusty_loader::meta::keys;

/// What distinguishes the members of the family.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traits {
    /// RMS norms over each head of queries and keys (Qwen3).
    pub head_norms: bool,
    /// Attention is limited to the file's sliding window, where it names one (Mistral).
    pub sliding_window: bool,
}

struct Sizes {
    layers: u32,
    width: u32,
    inner: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    eps: f32,
    window: Option<u32>,
}

/// Builds the decoder.
pub(super) fn build(file: &dyn ModelFile, traits: Traits) -> Result<Graph> {
    let sizes = Sizes::read(file, traits)?;
    let vocab = required(file, keys::VOCAB_SIZE)?;
    let context = required(file, keys::CONTEXT_LENGTH)?;
    let mut b = GraphBuilder::new(file, context, vocab);
    let rope = b.rope_spec(RopeSpec::from_model(file, sizes.head_dim)?);
    let table = b.weight("token_embd.weight", &[vocab, sizes.width])?;
    let mut x = b.embed("embedding", table);
    for layer in 0..sizes.layers {
        x = block(&mut b, &sizes, traits, layer, rope, x)?;
    }
    let last = b.select_rows("selected", x);
    let hidden = b.rms_norm("output_norm", last, sizes.width, sizes.eps)?;
    let logits = if b.has("output.weight") && !is_tied(file) {
        b.linear("output", hidden, vocab)?
    } else {
        b.matmul("output", hidden, table, vocab)
    };
    Ok(b.finish(logits, hidden))
}

fn block(
    b: &mut GraphBuilder<'_>,
    sizes: &Sizes,
    traits: Traits,
    layer: u32,
    rope: RopeId,
    x: ValueId,
) -> Result<ValueId> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let normed = b.rms_norm(&name("attn_norm"), x, sizes.width, sizes.eps)?;
    let mut q = b.linear(&name("attn_q"), normed, sizes.heads * sizes.head_dim)?;
    let mut k = b.linear(&name("attn_k"), normed, sizes.kv_heads * sizes.head_dim)?;
    let v = b.linear(&name("attn_v"), normed, sizes.kv_heads * sizes.head_dim)?;
    if traits.head_norms {
        q = b.rms_norm(&name("attn_q_norm"), q, sizes.head_dim, sizes.eps)?;
        k = b.rms_norm(&name("attn_k_norm"), k, sizes.head_dim, sizes.eps)?;
    }
    let q = b.rope(&name("q_rope"), q, rope, sizes.head_dim);
    let k = b.rope(&name("k_rope"), k, rope, sizes.head_dim);
    let spec = AttentionSpec {
        layer,
        heads: sizes.heads,
        kv_heads: sizes.kv_heads,
        head_dim: sizes.head_dim,
        scale: 1.0 / (sizes.head_dim as f32).sqrt(),
        window: sizes.window,
        softcap: None,
    };
    let attended = b.attention(&name("attention"), q, k, v, spec);
    let projected = b.linear(&name("attn_output"), attended, sizes.width)?;
    let x = b.binary(&name("attn_residual"), BinaryOp::Add, x, projected);
    let normed = b.rms_norm(&name("ffn_norm"), x, sizes.width, sizes.eps)?;
    let gate = b.linear(&name("ffn_gate"), normed, sizes.inner)?;
    let up = b.linear(&name("ffn_up"), normed, sizes.inner)?;
    let gate = b.unary(&name("ffn_act"), UnaryOp::Silu, gate);
    let inner = b.binary(&name("ffn_gated"), BinaryOp::Mul, gate, up);
    let down = b.linear(&name("ffn_down"), inner, sizes.width)?;
    Ok(b.binary(&name("ffn_residual"), BinaryOp::Add, x, down))
}

impl Sizes {
    fn read(file: &dyn ModelFile, traits: Traits) -> Result<Self> {
        let width = required(file, keys::EMBEDDING_LENGTH)?;
        let heads = required(file, keys::HEAD_COUNT)?;
        let kv_heads = optional(file, keys::HEAD_COUNT_KV)?.unwrap_or(heads);
        if kv_heads > heads || heads % kv_heads != 0 {
            let reason = format!("is {kv_heads}, which does not divide the {heads} query heads");
            return Err(bad(file, keys::HEAD_COUNT_KV, reason));
        }
        let head_dim = optional(file, keys::KEY_LENGTH)?.unwrap_or(width / heads);
        if head_dim == 0 || head_dim % 2 != 0 || head_dim > 1024 {
            return Err(bad(
                file,
                keys::KEY_LENGTH,
                format!("gives heads of {head_dim} lanes"),
            ));
        }
        let eps = file
            .meta(keys::RMS_EPSILON)
            .and_then(|m| m.as_f64())
            .unwrap_or(1e-6) as f32;
        let window = if traits.sliding_window {
            optional(file, keys::SLIDING_WINDOW)?
        } else {
            None
        };
        let layers = required(file, keys::BLOCK_COUNT)?;
        let inner = required(file, keys::FEED_FORWARD_LENGTH)?;
        Ok(Self {
            layers,
            width,
            inner,
            heads,
            kv_heads,
            head_dim,
            eps,
            window,
        })
    }
}

fn is_tied(file: &dyn ModelFile) -> bool {
    file.meta(keys::TIE_WORD_EMBEDDINGS)
        .and_then(|m| m.as_bool())
        .unwrap_or(false)
}

/// A positive integer below 2^31, which every size of a network is.
fn optional(file: &dyn ModelFile, key: &str) -> Result<Option<u32>> {
    let Some(meta) = file.meta(key) else {
        return Ok(None);
    };
    match meta.as_u64() {
        Some(v) if (1..1 << 31).contains(&v) => Ok(Some(v as u32)),
        _ => Err(bad(file, key, format!("is {meta:?}, not a positive size"))),
    }
}

fn required(file: &dyn ModelFile, key: &str) -> Result<u32> {
    optional(file, key)?.ok_or_else(|| bad(file, key, "is missing".into()))
}

fn bad(file: &dyn ModelFile, key: &str, reason: String) -> Error {
    Error::Meta {
        model: file.label().to_string(),
        key: key.into(),
        reason,
    }
}
