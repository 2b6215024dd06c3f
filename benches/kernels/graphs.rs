//! Graphs of one kind of kernel, with random weights. Those of products follow a pattern, so that a GPU makes them in its
//! own memory and a CPU on all its cores; small tables, whose numbers are to have a known size, are made here.

use super::Sizes;
use rusty_graph::{AttentionSpec, AttentionValues, Graph, GraphBuilder, ValueId};
use rusty_loader::random::Pattern;
use rusty_loader::{Format, LoadedModel, PageBuffer, SharedBytes, WeightView};
use std::collections::HashMap;
use std::sync::Arc;

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

    /// Values in single precision between `-spread` and `spread`.
    fn random(&mut self, rows: u32, k: u32, spread: f32) -> SharedBytes {
        let values = (0..rows * k).map(|_| {
            // xorshift64 (Marsaglia 2003)
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            ((self.state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * spread
        });
        SharedBytes::from_vec(values.flat_map(f32::to_le_bytes).collect())
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
        let bytes = self.random(VOCAB, width, 1.7);
        let table = self.weight(&table, Format::F32, [VOCAB, width], bytes);
        self.builder.gather(name, table, ids).expect("gather")
    }

    /// The product with a matrix that is made where it is read. Its deviation is near 0.02, so that a row becomes up to
    /// three times as long or half as long: single precision has room for all products of a graph.
    fn product(&mut self, name: &str, x: ValueId, format: Format, shape: [u32; 2]) -> ValueId {
        let [n, k] = shape.map(|n| n as usize);
        let matrix = format!("{name}.weight");
        let pages = PageBuffer::new(n * format.row_bytes(k), "kernels").expect("memory");
        let pattern = Arc::new(Pattern::new(&matrix, format));
        let bytes = SharedBytes::promised(pattern, pages);
        let weight = self.weight(&matrix, format, shape, bytes);
        let product = self.builder.matmul(name, x, weight, None);
        product.expect("product")
    }

    /// Ends with `x` as the hidden rows, and a few logits.
    fn finish(mut self, x: ValueId, width: u32) -> Subject {
        let hidden = self.builder.select_rows("selected", x).expect("rows");
        // These keep a row's length.
        let bytes = self.random(VOCAB, width, (3.0 / width as f32).sqrt());
        let output = self.weight("output", Format::F32, [VOCAB, width], bytes);
        let logits = self.builder.matmul("logits", hidden, output, None);
        let logits = logits.expect("logits");
        let graph = self.builder.finish(logits, hidden).expect("graph");
        let file = LoadedModel::new("kernels", "kernels", HashMap::new(), self.tensors);
        Subject { graph, file }
    }
}

/// Products of `width` inputs with `inner` outputs and back, in turn.
pub fn products(format: Format, sizes: &Sizes) -> Subject {
    let (width, inner) = (sizes.width, sizes.inner);
    let mut maker = Maker::new(sizes.context);
    let ids = maker.builder.tokens().expect("tokens");
    let mut x = maker.gather("x", ids, width);
    for pair in 0..sizes.pairs {
        x = maker.product(&format!("up.{pair}"), x, format, [inner, width]);
        x = maker.product(&format!("down.{pair}"), x, format, [width, inner]);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rusty_loader::{ModelFile, formats};

    /// Each matrix is of its own pattern, and nothing of it is made for the graph.
    #[test]
    fn matrices_are_made_where_they_are_read() {
        let subject = products(Format::Blocks(&formats::Q4_0), &Sizes::SMALL);
        let seed = |name: &str| {
            let view = subject.file.tensor(name).expect(name);
            let (pattern, first) = view.bytes.pattern().expect("a pattern");
            assert_eq!(first, 0);
            pattern.seed()
        };
        assert_ne!(seed("up.0.weight"), seed("up.1.weight"));
        assert_ne!(seed("up.0.weight"), seed("down.0.weight"));
    }
}
