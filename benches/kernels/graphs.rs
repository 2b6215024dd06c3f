//! Graphs of one kind of kernel, with random weights.

use super::Sizes;
use rusty_graph::{AttentionSpec, AttentionValues, Graph, GraphBuilder, ValueId};
use rusty_loader::{Format, LoadedModel, SharedBytes, WeightView};
use std::collections::HashMap;

/// Entries of the small vocabulary that inputs are taken from.
pub const VOCAB: u32 = 64;
/// Norms in a row, and their width.
pub const NORMS: usize = 8;
pub const NORM_WIDTH: u32 = 4096;
/// Heads of the attention: Qwen3-0.6B's.
pub const HEADS: u32 = 16;
pub const KV_HEADS: u32 = 8;
pub const HEAD_DIM: u32 = 128;

/// A graph and its weights.
pub struct Subject {
    pub graph: Graph,
    pub file: LoadedModel,
}

struct Maker {
    builder: GraphBuilder,
    tensors: Vec<(String, WeightView)>,
    state: u64,
}

impl Maker {
    /// Sequences may be `context` tokens long.
    fn new(context: u32) -> Self {
        Self {
            builder: GraphBuilder::new("kernels", context, VOCAB),
            tensors: vec![],
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Values between `-spread` and `spread`.
    fn random(&mut self, format: Format, rows: u32, k: u32, spread: f32) -> SharedBytes {
        let values: Vec<f32> = (0..rows * k)
            .map(|_| {
                // xorshift64 (Marsaglia 2003)
                self.state ^= self.state << 13;
                self.state ^= self.state >> 7;
                self.state ^= self.state << 17;
                ((self.state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * spread
            })
            .collect();
        let mut bytes = vec![0; rows as usize * format.row_bytes(k as usize)];
        let encoder = format.encoder().expect("a format that can be written");
        encoder.rows(&values, &mut bytes);
        SharedBytes::from_vec(bytes)
    }

    fn weight(
        &mut self,
        name: &str,
        format: Format,
        shape: [u32; 2],
        bytes: SharedBytes,
    ) -> ValueId {
        let view = WeightView {
            bytes,
            format,
            shape: shape.map(|n| n as usize).to_vec(),
        };
        self.tensors.push((name.into(), view));
        self.builder.weight(name, &shape, format).expect("weight")
    }

    /// Rows of a table, by token.
    fn gather(&mut self, name: &str, ids: ValueId, width: u32) -> ValueId {
        let table = format!("{name}.table");
        // A deviation of about 1.
        let bytes = self.random(Format::F32, VOCAB, width, 1.7);
        let table = self.weight(&table, Format::F32, [VOCAB, width], bytes);
        self.builder.gather(name, table, ids).expect("gather")
    }

    /// Ends with `x` as the hidden rows, and a few logits.
    fn finish(mut self, x: ValueId, width: u32) -> Subject {
        let hidden = self.builder.select_rows("selected", x).expect("rows");
        let bytes = self.random(Format::F32, VOCAB, width, keeping(width));
        let output = self.weight("output", Format::F32, [VOCAB, width], bytes);
        let logits = self.builder.matmul("logits", hidden, output, None);
        let logits = logits.expect("logits");
        let graph = self.builder.finish(logits, hidden).expect("graph");
        let file = LoadedModel::new("kernels", "kernels", HashMap::new(), self.tensors);
        Subject { graph, file }
    }
}

/// The spread of weights that keep the length of a row of `k` through a product.
fn keeping(k: u32) -> f32 {
    (3.0 / k as f32).sqrt()
}

/// Products of `width` inputs with `inner` outputs and back, in turn.
pub fn products(format: Format, sizes: &Sizes) -> Subject {
    let (width, inner) = (sizes.width, sizes.inner);
    let mut maker = Maker::new(sizes.context);
    let ids = maker.builder.tokens().expect("tokens");
    let mut x = maker.gather("x", ids, width);
    let up = maker.random(format, inner, width, keeping(width));
    let down = maker.random(format, width, inner, keeping(inner));
    for pair in 0..sizes.pairs {
        for (name, shape, bytes) in [("up", [inner, width], &up), ("down", [width, inner], &down)] {
            // The same values, but memory of their own.
            let bytes = SharedBytes::from_vec(bytes.to_vec());
            let name = format!("{name}.{pair}");
            let weight = maker.weight(&format!("{name}.weight"), format, shape, bytes);
            x = maker
                .builder
                .matmul(&name, x, weight, None)
                .expect("product");
        }
    }
    maker.finish(x, width)
}

/// One attention over rows that come from tables.
pub fn attention(sizes: &Sizes) -> Subject {
    let mut maker = Maker::new(sizes.context);
    let ids = maker.builder.tokens().expect("tokens");
    let q = maker.gather("q", ids, HEADS * HEAD_DIM);
    let k = maker.gather("k", ids, KV_HEADS * HEAD_DIM);
    let v = maker.gather("v", ids, KV_HEADS * HEAD_DIM);
    let spec = AttentionSpec {
        layer: 0,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        values: AttentionValues::Own,
        scale: 1.0 / (HEAD_DIM as f32).sqrt(),
        window: None,
        softcap: None,
    };
    let x = maker.builder.attention("attended", [q, k], Some(v), spec);
    maker.finish(x.expect("attention"), HEADS * HEAD_DIM)
}

/// RMS norms, each of what the one before gave.
pub fn norms(sizes: &Sizes) -> Subject {
    let mut maker = Maker::new(sizes.context);
    let ids = maker.builder.tokens().expect("tokens");
    let mut x = maker.gather("x", ids, NORM_WIDTH);
    let ones = [1f32; NORM_WIDTH as usize];
    for i in 0..NORMS {
        let bytes = ones.iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = WeightView {
            bytes: SharedBytes::from_vec(bytes),
            format: Format::F32,
            shape: vec![NORM_WIDTH as usize],
        };
        let name = format!("norm.{i}.weight");
        maker.tensors.push((name.clone(), view));
        let weight = maker.builder.weight(&name, &[NORM_WIDTH], Format::F32);
        let weight = weight.expect("weight");
        let name = format!("norm.{i}");
        x = maker
            .builder
            .rms_norm(&name, x, weight, 1e-6)
            .expect("norm");
    }
    maker.finish(x, NORM_WIDTH)
}
