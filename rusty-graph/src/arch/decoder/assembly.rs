//! A decoder as a graph.

use rusty_loader::ModelFile;
use rusty_loader::meta::keys;

use super::{Biases, Decoder, Experts, QkNorm};
use crate::arch::Checkpoint;
use crate::{AttentionSpec, AttentionValues, GraphBuilder, Result, Site, UnaryOp, ValueId};

pub(super) const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

/// What a block's router chose.
struct Chosen<'a> {
    blk: &'a str,
    routes: ValueId,
    experts: u32,
}

pub(super) struct Assembly<'a> {
    pub(super) spec: &'a Decoder,
    pub(super) model: Checkpoint<'a>,
    pub(super) builder: &'a mut GraphBuilder,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(
        spec: &'a Decoder,
        file: &'a dyn ModelFile,
        builder: &'a mut GraphBuilder,
    ) -> Self {
        Self {
            spec,
            model: Checkpoint::new(file),
            builder,
        }
    }

    /// Logits and the normed hidden rows.
    pub(super) fn network(&mut self) -> Result<(ValueId, ValueId)> {
        let spec = self.spec;
        let tokens = self.builder.tokens()?;
        let shape = [spec.vocab, spec.width];
        let table = self.model.weight(self.builder, EMBEDDING, &shape)?;
        let mut x = self.builder.gather("embedding", table, tokens)?;
        if spec.embedding_scale != 1.0 {
            x = self
                .builder
                .scale("embedding.scaled", x, spec.embedding_scale)?;
        }
        for layer in 0..spec.layers {
            x = match spec.latent {
                Some(latent) => self.latent_attention(layer, x, latent)?,
                None => self.attention(layer, x)?,
            };
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
        let mut logits = self.builder.matmul(Site::HEAD, hidden, head, bias)?;
        if spec.logit_divisor != 1.0 {
            let by = 1.0 / spec.logit_divisor;
            logits = self.builder.scale("output.divided", logits, by)?;
        }
        if let Some(cap) = spec.logit_cap {
            let b = &mut *self.builder;
            let scaled = b.scale("output.scaled", logits, 1.0 / cap)?;
            let bounded = b.unary("output.bounded", UnaryOp::Tanh, scaled)?;
            logits = b.scale("output.capped", bounded, cap)?;
        }
        Ok((logits, hidden))
    }

    /// A stated tie wins; without a statement, a file that has no head is tied.
    fn tied(&self) -> bool {
        let stated = self.model.meta(keys::TIE_WORD_EMBEDDINGS);
        stated
            .and_then(|m| m.as_bool())
            .unwrap_or_else(|| !self.model.has(HEAD))
    }

    fn attention(&mut self, layer: u32, x: ValueId) -> Result<ValueId> {
        let blk = &format!("blk.{layer}");
        let Decoder {
            heads,
            kv_heads,
            head_dim,
            qkv_bias,
            ..
        } = *self.spec;
        let sliding = self.spec.sliding.as_ref();
        let sliding = sliding.filter(|s| s.layers[layer as usize]);
        let rope = sliding.map_or(&self.spec.rope, |s| &s.rope).clone();
        let rope = self.builder.rope_spec(rope);
        let h = self.pre_norm(&format!("{blk}.attn_norm"), x)?;
        let (q_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
        let q = self.product(&format!("{blk}.attn_q"), h, q_width, qkv_bias)?;
        let k = self.product(&format!("{blk}.attn_k"), h, kv_width, qkv_bias)?;
        let v = self.product(&format!("{blk}.attn_v"), h, kv_width, qkv_bias)?;
        let q = self.qk_norm(&format!("{blk}.attn_q_norm"), q)?;
        let k = self.qk_norm(&format!("{blk}.attn_k_norm"), k)?;
        let q = self
            .builder
            .rope(&format!("{blk}.q_rope"), q, rope, head_dim)?;
        let k = self
            .builder
            .rope(&format!("{blk}.k_rope"), k, rope, head_dim)?;
        let spec = AttentionSpec {
            layer: 0,
            heads,
            kv_heads,
            head_dim,
            values: AttentionValues::Own,
            scale: self.spec.query_scale,
            window: sliding.map(|s| s.window),
            softcap: self.spec.score_cap,
        };
        let attended =
            self.builder
                .attention(&format!("{blk}.attention"), [q, k], Some(v), spec)?;
        self.attended(blk, x, attended)
    }

    /// The output product and the residual.
    pub(super) fn attended(&mut self, blk: &str, x: ValueId, attended: ValueId) -> Result<ValueId> {
        let name = format!("{blk}.attn_output");
        let out = self.product(&name, attended, self.spec.width, Biases::IfPresent)?;
        let out = self.post_norm(&format!("{blk}.post_attention_norm"), out)?;
        self.residual(&format!("{blk}.attn_residual"), x, out)
    }

    /// The sum of a row and what a half of a block makes of it.
    fn residual(&mut self, name: &str, x: ValueId, made: ValueId) -> Result<ValueId> {
        let made = match self.spec.residual_scale {
            1.0 => made,
            by => self.builder.scale(&format!("{name}.scaled"), made, by)?,
        };
        self.builder.add(name, x, made)
    }

    /// Norm of queries or keys, where the architecture has it.
    fn qk_norm(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let Decoder { head_dim, eps, .. } = *self.spec;
        match self.spec.qk_norm {
            QkNorm::None => Ok(x),
            QkNorm::Row => self.norm(name, x),
            QkNorm::Heads => {
                let weight = format!("{name}.weight");
                let weight = self.model.weight(self.builder, &weight, &[head_dim])?;
                self.builder.head_norm(name, x, weight, eps, head_dim)
            }
        }
    }

    fn feed_forward(&mut self, blk: &str, x: ValueId) -> Result<ValueId> {
        let h = self.pre_norm(&format!("{blk}.ffn_norm"), x)?;
        let router = format!("{blk}.ffn_gate_inp");
        let experts = self
            .spec
            .experts
            .filter(|_| self.model.has(&format!("{router}.weight")));
        let down = match experts {
            Some(experts) => self.sparse(blk, h, &router, experts)?,
            None => self.dense(blk, "", h, self.spec.ffn)?,
        };
        let down = self.post_norm(&format!("{blk}.post_ffw_norm"), down)?;
        self.residual(&format!("{blk}.ffn_residual"), x, down)
    }

    /// The feed-forward whose products' names end in `of`.
    fn dense(&mut self, blk: &str, of: &str, h: ValueId, ffn: u32) -> Result<ValueId> {
        let Decoder { width, act, .. } = *self.spec;
        let product = |role: &str| format!("{blk}.ffn_{role}{of}");
        let gate = self.product(&product("gate"), h, ffn, Biases::IfPresent)?;
        let up = self.product(&product("up"), h, ffn, Biases::IfPresent)?;
        let gate = self.builder.unary(&product("act"), act, gate)?;
        let inner = self.builder.mul(&product("gated"), gate, up)?;
        self.product(&product("down"), inner, width, Biases::IfPresent)
    }

    /// The experts that the router chooses for each row.
    fn sparse(&mut self, blk: &str, h: ValueId, router: &str, experts: Experts) -> Result<ValueId> {
        let Decoder { width, act, .. } = *self.spec;
        let Experts { ffn, route, shared } = experts;
        let logits = self.product(router, h, route.experts, Biases::IfPresent)?;
        let bias = format!("{blk}.exp_probs_b.bias");
        let bias = self
            .model
            .weight_if_present(self.builder, &bias, &[route.experts])?;
        let routes = self
            .builder
            .route(&format!("{blk}.routes"), logits, bias, route)?;
        let of = Chosen {
            blk,
            routes,
            experts: route.experts,
        };
        let gate = self.products(&of, "gate", h, [ffn, width])?;
        let up = self.products(&of, "up", h, [ffn, width])?;
        let gate = self.builder.unary(&format!("{blk}.ffn_act"), act, gate)?;
        let inner = self.builder.mul(&format!("{blk}.ffn_gated"), gate, up)?;
        let chosen = self.products(&of, "down", inner, [width, ffn])?;
        if shared == 0 {
            return Ok(chosen);
        }
        let always = self.dense(blk, "_shexp", h, shared)?;
        self.builder
            .add(&format!("{blk}.ffn_experts"), chosen, always)
    }

    /// The products with one of the experts' matrices; those of `down` are summed.
    fn products(
        &mut self,
        of: &Chosen<'_>,
        role: &str,
        x: ValueId,
        shape: [u32; 2],
    ) -> Result<ValueId> {
        let name = format!("{}.ffn_{role}_exps", of.blk);
        let mut weights = Vec::with_capacity(of.experts as usize);
        for e in 0..of.experts {
            let weight = format!("{name}.{e}.weight");
            weights.push(self.model.weight(self.builder, &weight, &shape)?);
        }
        self.builder
            .experts(&name, x, of.routes, &weights, role == "down")
    }

    /// Norm of a half's input, where the architecture has it.
    fn pre_norm(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        match self.spec.pre_norms {
            true => self.norm(name, x),
            false => Ok(x),
        }
    }

    /// Norm of a half's result, where the architecture has it.
    fn post_norm(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        match self.spec.post_norms {
            true => self.norm(name, x),
            false => Ok(x),
        }
    }

    pub(super) fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let (width, eps) = (self.builder.width(x), self.spec.eps);
        let weight = format!("{name}.weight");
        let weight = self.model.weight(self.builder, &weight, &[width])?;
        self.builder.rms_norm(name, x, weight, eps)
    }

    /// The product with `NAME.weight` (and `NAME.bias`) at the site `NAME`.
    pub(super) fn product(
        &mut self,
        name: &str,
        x: ValueId,
        n: u32,
        bias: Biases,
    ) -> Result<ValueId> {
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
