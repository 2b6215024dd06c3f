//! The dense decoder that the Llama family shares, as a description that an architecture fills in.
//!
//! Per layer: norm, q/k/v products (with bias, with norm per head), rotation, attention, output product,
//! residual; norm, gated feed-forward, residual. Rows that want logits are selected after the last layer,
//! so the last norm and the head see only those.

use rusty_loader::ModelFile;
use rusty_loader::meta::keys;

use super::Checkpoint;
use crate::{AttentionSpec, Graph, GraphBuilder, Result, RopeId, RopeSpec, UnaryOp, ValueId};

/// When a product has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// Where the file has the tensor.
    IfPresent,
    /// Always; a file without it is incomplete.
    Required,
}

/// A dense decoder, see the module head.
#[derive(Clone, Debug)]
pub struct DenseDecoder {
    /// Blocks.
    pub layers: u32,
    /// Hidden width.
    pub width: u32,
    /// Inner width of the feed-forward.
    pub ffn: u32,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Width of a head; need not be `width / heads`.
    pub head_dim: u32,
    /// Epsilon of all norms.
    pub eps: f32,
    /// Activation of the gate.
    pub act: UnaryOp,
    /// Rotation of queries and keys.
    pub rope: RopeSpec,
    /// Keys a token sees, itself included.
    pub window: Option<u32>,
    /// Whether each head's queries and keys are normed before the rotation.
    pub qk_norm: bool,
    /// Biases of the query, key and value products. Those of the others follow the file.
    pub qkv_bias: Biases,
    /// Trained context in tokens.
    pub context: u32,
    /// Entries of the vocabulary.
    pub vocab: u32,
}

impl DenseDecoder {
    /// Reads what the canonical metadata states; the result is a plain Llama.
    ///
    /// # Errors
    /// [`crate::Error::Meta`] naming the key that is missing or contradicts another.
    pub fn read(file: &dyn ModelFile) -> Result<Self> {
        let model = Checkpoint::new(file);
        let width = model.count(keys::EMBEDDING_LENGTH)?;
        let heads = model.count(keys::HEAD_COUNT)?;
        let kv_heads = model.int_or(keys::HEAD_COUNT_KV, heads)?;
        if kv_heads == 0 || heads % kv_heads != 0 {
            let reason = format!("is {kv_heads}, which does not divide the {heads} query heads");
            return Err(model.meta_error(keys::HEAD_COUNT_KV, reason));
        }
        let head_dim = model.int_or(keys::KEY_LENGTH, width / heads)?;
        if head_dim == 0 || heads.checked_mul(head_dim).is_none() {
            let reason = format!("gives {heads} heads of {head_dim} lanes");
            return Err(model.meta_error(keys::KEY_LENGTH, reason));
        }
        let value_dim = model.int_or(keys::VALUE_LENGTH, head_dim)?;
        if value_dim != head_dim {
            let reason = format!("is {value_dim}, the key length {head_dim}; they must be equal");
            return Err(model.meta_error(keys::VALUE_LENGTH, reason));
        }
        Ok(Self {
            layers: model.count(keys::BLOCK_COUNT)?,
            width,
            ffn: model.count(keys::FEED_FORWARD_LENGTH)?,
            heads,
            kv_heads,
            head_dim,
            eps: epsilon(&model)?,
            act: activation(&model)?,
            rope: RopeSpec::from_model(file, head_dim)?,
            window: None,
            qk_norm: false,
            qkv_bias: Biases::IfPresent,
            context: model.count(keys::CONTEXT_LENGTH)?,
            vocab: vocabulary(&model)?,
        })
    }

    /// For architectures whose checkpoints may state a sliding window that they do not use: a stated one is
    /// refused, not ignored.
    ///
    /// # Errors
    /// [`crate::Error::Meta`] where the file states a window shorter than the context.
    pub fn refuse_window(self, file: &dyn ModelFile) -> Result<Self> {
        let model = Checkpoint::new(file);
        let window = model.int_or(keys::SLIDING_WINDOW, self.context)?;
        if window < self.context {
            let reason = format!(
                "is {window}; {} is supported without a window only",
                file.arch()
            );
            return Err(model.meta_error(keys::SLIDING_WINDOW, reason));
        }
        Ok(self)
    }

    /// Builds the graph, taking each weight's format from the file and checking its shape.
    ///
    /// # Errors
    /// [`crate::Error::Tensor`] where a weight is missing or has another shape.
    pub fn build(&self, file: &dyn ModelFile) -> Result<Graph> {
        let mut builder = GraphBuilder::new(file.arch(), self.context, self.vocab);
        let rope = builder.rope_spec(self.rope.clone());
        let mut assembly = Assembly {
            spec: self,
            model: Checkpoint::new(file),
            builder: &mut builder,
            rope,
        };
        let (logits, hidden) = assembly.network()?;
        builder.finish(logits, hidden)
    }
}

/// Configurations may leave the epsilon out; transformers then takes `1e-6` for the whole family.
fn epsilon(model: &Checkpoint<'_>) -> Result<f32> {
    match model.float_or(keys::RMS_EPSILON, 1e-6)? {
        eps if eps.is_finite() && eps >= 0.0 => Ok(eps as f32),
        eps => Err(model.meta_error(keys::RMS_EPSILON, format!("is {eps}"))),
    }
}

fn activation(model: &Checkpoint<'_>) -> Result<UnaryOp> {
    match model.text(keys::HIDDEN_ACT)?.unwrap_or("silu") {
        "silu" | "swish" => Ok(UnaryOp::Silu),
        "gelu" => Ok(UnaryOp::Gelu),
        "gelu_tanh" | "gelu_pytorch_tanh" | "gelu_new" => Ok(UnaryOp::GeluTanh),
        "relu" => Ok(UnaryOp::Relu),
        other => {
            let reason = format!("is '{other}'; supported: silu, gelu, gelu_tanh, relu");
            Err(model.meta_error(keys::HIDDEN_ACT, reason))
        }
    }
}

/// GGUF need not state the vocabulary's size; the embedding's rows do.
fn vocabulary(model: &Checkpoint<'_>) -> Result<u32> {
    if model.meta(keys::VOCAB_SIZE).is_some() {
        return model.count(keys::VOCAB_SIZE);
    }
    let rows = model.rows(EMBEDDING)?;
    u32::try_from(rows)
        .map_err(|_| model.tensor_error(EMBEDDING, format!("has {rows} rows; too many")))
}

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

struct Assembly<'a> {
    spec: &'a DenseDecoder,
    model: Checkpoint<'a>,
    builder: &'a mut GraphBuilder,
    rope: RopeId,
}

impl Assembly<'_> {
    fn network(&mut self) -> Result<(ValueId, ValueId)> {
        let spec = self.spec;
        let tokens = self.builder.tokens()?;
        let shape = [spec.vocab, spec.width];
        let table = self.model.weight(self.builder, EMBEDDING, &shape)?;
        let mut x = self.builder.gather("embedding", table, tokens)?;
        for layer in 0..spec.layers {
            x = self.attention(&format!("blk.{layer}"), x)?;
            x = self.feed_forward(&format!("blk.{layer}"), x)?;
        }
        let rows = self.builder.select_rows("selected", x)?;
        let hidden = self.norm("output_norm", rows)?;
        let head = if self.tied() {
            table
        } else {
            self.model.weight(self.builder, HEAD, &shape)?
        };
        let bias = "output.bias";
        let bias = self
            .model
            .weight_if_present(self.builder, bias, &[spec.vocab])?;
        let logits = self.builder.matmul("output", hidden, head, bias)?;
        Ok((logits, hidden))
    }

    /// A stated tie wins; without a statement, a file that has no head is tied.
    fn tied(&self) -> bool {
        let stated = self.model.meta(keys::TIE_WORD_EMBEDDINGS);
        stated
            .and_then(|m| m.as_bool())
            .unwrap_or_else(|| !self.model.has(HEAD))
    }

    fn attention(&mut self, blk: &str, x: ValueId) -> Result<ValueId> {
        let DenseDecoder {
            heads,
            kv_heads,
            head_dim,
            qkv_bias,
            ..
        } = *self.spec;
        let h = self.norm(&format!("{blk}.attn_norm"), x)?;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let q = self.product(&format!("{blk}.attn_q"), h, q_width, qkv_bias)?;
        let k = self.product(&format!("{blk}.attn_k"), h, kv_width, qkv_bias)?;
        let v = self.product(&format!("{blk}.attn_v"), h, kv_width, qkv_bias)?;
        let q = self.head_norm(&format!("{blk}.attn_q_norm"), q)?;
        let k = self.head_norm(&format!("{blk}.attn_k_norm"), k)?;
        let q = self
            .builder
            .rope(&format!("{blk}.q_rope"), q, self.rope, head_dim)?;
        let k = self
            .builder
            .rope(&format!("{blk}.k_rope"), k, self.rope, head_dim)?;
        let spec = AttentionSpec {
            layer: 0,
            heads,
            kv_heads,
            head_dim,
            scale: (1.0 / f64::from(head_dim).sqrt()) as f32,
            window: self.spec.window,
            softcap: None,
        };
        let attended = self
            .builder
            .attention(&format!("{blk}.attention"), [q, k, v], spec)?;
        let name = format!("{blk}.attn_output");
        let out = self.product(&name, attended, self.spec.width, Biases::IfPresent)?;
        self.builder.add(&format!("{blk}.attn_residual"), x, out)
    }

    /// Norm per head, where the architecture has it.
    fn head_norm(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let DenseDecoder {
            head_dim,
            eps,
            qk_norm,
            ..
        } = *self.spec;
        if !qk_norm {
            return Ok(x);
        }
        let weight = format!("{name}.weight");
        let weight = self.model.weight(self.builder, &weight, &[head_dim])?;
        self.builder.head_norm(name, x, weight, eps, head_dim)
    }

    fn feed_forward(&mut self, blk: &str, x: ValueId) -> Result<ValueId> {
        let DenseDecoder {
            width, ffn, act, ..
        } = *self.spec;
        let h = self.norm(&format!("{blk}.ffn_norm"), x)?;
        let gate = self.product(&format!("{blk}.ffn_gate"), h, ffn, Biases::IfPresent)?;
        let up = self.product(&format!("{blk}.ffn_up"), h, ffn, Biases::IfPresent)?;
        let gate = self.builder.unary(&format!("{blk}.ffn_act"), act, gate)?;
        let inner = self.builder.mul(&format!("{blk}.ffn_gated"), gate, up)?;
        let down = self.product(&format!("{blk}.ffn_down"), inner, width, Biases::IfPresent)?;
        self.builder.add(&format!("{blk}.ffn_residual"), x, down)
    }

    fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let DenseDecoder { width, eps, .. } = *self.spec;
        let weight = format!("{name}.weight");
        let weight = self.model.weight(self.builder, &weight, &[width])?;
        self.builder.rms_norm(name, x, weight, eps)
    }

    /// The product with `NAME.weight` (and `NAME.bias`) at the site `NAME`.
    fn product(&mut self, name: &str, x: ValueId, n: u32, bias: Biases) -> Result<ValueId> {
        let k = self.builder.width(x);
        let weight = format!("{name}.weight");
        let weight = self.model.weight(self.builder, &weight, &[n, k])?;
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Biases::Required => Some(self.model.weight(self.builder, &bias_name, &[n])?),
            Biases::IfPresent => self
                .model
                .weight_if_present(self.builder, &bias_name, &[n])?,
        };
        self.builder.matmul(name, x, weight, bias)
    }
}
