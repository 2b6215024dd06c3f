//! Latent attention (MLA, arXiv 2405.04434, sections 2.1 and C).
//!
//! A token's cache is one row: a normed latent of `rank` lanes, from which every head's keys and values would be made,
//! and the rotated lanes of a key that all heads share. Instead of making keys from latents, a head's queries are
//! multiplied by the transposed matrix once, and the attended latents by the matrix that makes values: to attention this
//! is one key head whose first lanes are its values.

use super::assembly::Assembly;
use super::{Biases, Latent};
use crate::{AttentionSpec, AttentionValues, Result, ValueId};

impl Assembly<'_> {
    pub(super) fn latent_attention(
        &mut self,
        layer: u32,
        x: ValueId,
        latent: Latent,
    ) -> Result<ValueId> {
        let blk = &format!("blk.{layer}");
        let heads = self.spec.heads;
        let Latent {
            rank,
            plain,
            rotated,
            value,
            ..
        } = latent;
        let h = self.norm(&format!("{blk}.attn_norm"), x)?;
        let q = self.latent_queries(blk, h, latent)?;
        let kv = self.product(&format!("{blk}.attn_kv_a"), h, rank, Biases::IfPresent)?;
        let k_rotated = self.product(&format!("{blk}.attn_k_pe"), h, rotated, Biases::IfPresent)?;
        let kv = self.norm(&format!("{blk}.attn_kv_a_norm"), kv)?;

        let b = &mut *self.builder;
        let rope = b.rope_spec(self.spec.rope.clone());
        let key = plain + rotated;
        let q_plain = b.lanes(&format!("{blk}.q_plain"), q, key, 0, plain)?;
        let q_rotated = b.lanes(&format!("{blk}.q_pe"), q, key, plain, rotated)?;
        let q_rotated = b.rope(&format!("{blk}.q_rope"), q_rotated, rope, rotated)?;
        let k_rotated = b.rope(&format!("{blk}.k_rope"), k_rotated, rope, rotated)?;
        let q_latent = self.head_product(&format!("{blk}.attn_k_b"), q_plain, [rank, plain])?;
        let b = &mut *self.builder;
        let widths = [rank, rotated];
        let q = b.join(&format!("{blk}.q_joined"), [q_latent, q_rotated], widths)?;
        let k = b.join(&format!("{blk}.k_joined"), [kv, k_rotated], widths)?;
        let spec = AttentionSpec {
            layer: 0,
            heads,
            kv_heads: 1,
            head_dim: rank + rotated,
            values: AttentionValues::OfKeys(rank),
            scale: self.spec.query_scale,
            window: None,
            softcap: None,
        };
        let attended = b.attention(&format!("{blk}.attention"), [q, k], None, spec)?;
        let attended = self.head_product(&format!("{blk}.attn_v_b"), attended, [value, rank])?;
        self.attended(blk, x, attended)
    }

    fn latent_queries(&mut self, blk: &str, h: ValueId, latent: Latent) -> Result<ValueId> {
        let width = self.spec.heads * (latent.plain + latent.rotated);
        let Some(rank) = latent.query_rank else {
            return self.product(&format!("{blk}.attn_q"), h, width, Biases::IfPresent);
        };
        let q = self.product(&format!("{blk}.attn_q_a"), h, rank, Biases::IfPresent)?;
        let q = self.norm(&format!("{blk}.attn_q_a_norm"), q)?;
        self.product(&format!("{blk}.attn_q_b"), q, width, Biases::IfPresent)
    }

    /// The product of each head's lanes with its matrix, `NAME.HEAD.weight`.
    fn head_product(&mut self, name: &str, x: ValueId, shape: [u32; 2]) -> Result<ValueId> {
        let mut weights = Vec::with_capacity(self.spec.heads as usize);
        for head in 0..self.spec.heads {
            let weight = format!("{name}.{head}.weight");
            weights.push(self.model.weight(self.builder, &weight, &shape)?);
        }
        self.builder.head_matmul(name, x, &weights)
    }
}
