//! The launch of attention.

use super::kernels::attention::AttentionConfig;
use super::kernels::body::Source;
use super::kernels::contract::UnitConfig;
use super::kernels::sink::Store;
use super::lower::Lowering;
use super::stage::{Grid, Scalars, Template, template};
use super::text::Kind;
use crate::Result;
use crate::plan::{F32, Kernel};
use rusty_graph::{AttentionSpec, AttentionValues};

/// Query rows of an attention tile, where shared memory allows.
pub(super) const ATTENTION_ROWS: u32 = 8;

/// Queries of a cube at most: each takes room in every unit.
const MOST_QUERIES: u32 = 32;

impl Lowering<'_> {
    /// Attention of single query rows (`decode`) or of tiles of them.
    pub(super) fn attention(
        &self,
        kernel: &Kernel,
        q: u16,
        spec: &AttentionSpec,
        decode: bool,
    ) -> Result<Template> {
        let odd = spec.head_dim % 2 == 1 || spec.value_dim() % 2 == 1;
        if odd || !spec.heads.is_multiple_of(spec.kv_heads) {
            return Err(self.refuse(
                kernel,
                "head widths must be even, heads a multiple of key/value heads",
            ));
        }
        let mut scalars = Scalars::default();
        let (word, _) = self.activation(kernel, q)?;
        let arg = scalars.push(word);
        let places = self.places(kernel, &mut scalars);
        let tails: Vec<Store> = kernel
            .tails
            .iter()
            .map(|t| self.store(t, &places, Source::Given, &mut scalars))
            .collect();
        let mut config = AttentionConfig {
            units: 128.min(self.target.max_units),
            rows: if decode { 1 } else { ATTENTION_ROWS },
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            value_dim: spec.value_dim(),
            of_keys: matches!(spec.values, AttentionValues::OfKeys(_)),
            shares: 1,
            scale: F32::new(spec.scale),
            window: spec.window,
            softcap: spec.softcap.map(F32::new),
            kv: self.kv,
            arg,
            unit: UnitConfig {
                parts: vec![0],
                tails,
                arg: 0,
            },
        };
        let large = |c: &AttentionConfig| {
            c.shared_bytes() > self.target.shared_bytes || c.queries() > MOST_QUERIES
        };
        while config.rows > 1 && large(&config) {
            config.rows /= 2;
        }
        let group = spec.heads / spec.kv_heads;
        while config.shares < group && large(&config) {
            let next = (config.shares + 1..=group).find(|s| group.is_multiple_of(*s));
            config.shares = next.unwrap_or(group);
        }
        if config.shared_bytes() > self.target.shared_bytes {
            let (needs, has) = (config.shared_bytes(), self.target.shared_bytes);
            return Err(self.refuse(
                kernel,
                format!("needs {needs} bytes of shared memory; there are {has}"),
            ));
        }
        let grid = Grid::Attention {
            y: spec.kv_heads * config.shares,
        };
        Ok(template(
            kernel,
            Kind::Attention(config),
            grid,
            scalars,
            None,
        ))
    }
}
