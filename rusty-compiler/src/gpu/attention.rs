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
use rusty_graph::AttentionSpec;

/// Query rows of an attention tile, where shared memory allows.
pub(super) const ATTENTION_ROWS: u32 = 8;

impl Lowering<'_> {
    /// Attention of single query rows (`decode`) or of tiles of them.
    pub(super) fn attention(
        &self,
        kernel: &Kernel,
        q: u16,
        spec: &AttentionSpec,
        decode: bool,
    ) -> Result<Template> {
        if spec.head_dim % 2 == 1 || !spec.heads.is_multiple_of(spec.kv_heads) {
            return Err(self.refuse(
                kernel,
                "head width must be even, heads a multiple of key/value heads",
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
        while config.rows > 1
            && (config.shared_bytes() > self.target.shared_bytes || config.queries() > 32)
        {
            config.rows /= 2;
        }
        if config.shared_bytes() > self.target.shared_bytes {
            let (needs, has) = (config.shared_bytes(), self.target.shared_bytes);
            return Err(self.refuse(
                kernel,
                format!("needs {needs} bytes of shared memory; there are {has}"),
            ));
        }
        let grid = Grid::Attention {
            kv_heads: spec.kv_heads,
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
