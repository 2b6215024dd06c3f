//! Model files that have shapes and formats but no meaningful bytes: all that planning reads.

use rusty_loader::formats::Q4_0;
use rusty_loader::meta::keys;
use rusty_loader::{Format, Meta, ModelFile, SharedBytes, WeightView};
use std::collections::BTreeMap;

/// A small decoder of one architecture: two layers, width 64, four query heads over two of keys, 32 wide.
pub struct ShapeOnly {
    arch: &'static str,
    meta: BTreeMap<&'static str, Meta>,
    tensors: BTreeMap<String, Vec<usize>>,
}

impl ShapeOnly {
    pub fn new(arch: &'static str) -> Self {
        Self::deep(arch, 2)
    }

    /// The same with another number of layers.
    pub fn deep(arch: &'static str, layers: u32) -> Self {
        let meta = [
            (keys::BLOCK_COUNT, u64::from(layers)),
            (keys::CONTEXT_LENGTH, 256),
            (keys::EMBEDDING_LENGTH, 64),
            (keys::FEED_FORWARD_LENGTH, 96),
            (keys::HEAD_COUNT, 4),
            (keys::HEAD_COUNT_KV, 2),
            (keys::KEY_LENGTH, 32),
            (keys::VOCAB_SIZE, 320),
        ];
        let meta = meta
            .into_iter()
            .map(|(key, value)| (key, Meta::U64(value)))
            .collect();
        let mut file = Self {
            arch,
            meta,
            tensors: BTreeMap::new(),
        };
        file.add("token_embd.weight", &[320, 64]);
        file.add("output_norm.weight", &[64]);
        for layer in 0..layers {
            file.add_layer(layer);
        }
        file
    }

    fn add_layer(&mut self, layer: u32) {
        let rows = [
            ("attn_q", 128, 64),
            ("attn_k", 64, 64),
            ("attn_v", 64, 64),
            ("attn_output", 64, 128),
            ("ffn_gate", 96, 64),
            ("ffn_up", 96, 64),
            ("ffn_down", 64, 96),
        ];
        for (name, n, k) in rows {
            self.add(&format!("blk.{layer}.{name}.weight"), &[n, k]);
        }
        for (name, width) in [("attn_norm", 64), ("ffn_norm", 64)] {
            self.add(&format!("blk.{layer}.{name}.weight"), &[width]);
        }
        if self.arch == "qwen3" {
            self.add(&format!("blk.{layer}.attn_q_norm.weight"), &[32]);
            self.add(&format!("blk.{layer}.attn_k_norm.weight"), &[32]);
        }
        if self.arch == "qwen2" {
            for (name, width) in [("attn_q", 128), ("attn_k", 64), ("attn_v", 64)] {
                self.add(&format!("blk.{layer}.{name}.bias"), &[width]);
            }
        }
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        self.tensors.insert(name.into(), shape.to_vec());
    }
}

impl ModelFile for ShapeOnly {
    fn arch(&self) -> &str {
        self.arch
    }

    fn meta(&self, key: &str) -> Option<&Meta> {
        self.meta.get(key)
    }

    fn tensor(&self, name: &str) -> Option<WeightView> {
        let shape = self.tensors.get(name)?.clone();
        let format = if shape.len() == 2 {
            Format::Blocks(&Q4_0)
        } else {
            Format::F32
        };
        let rows: usize = shape[..shape.len() - 1].iter().product();
        let bytes = SharedBytes::from_vec(vec![0; rows * format.row_bytes(shape[shape.len() - 1])]);
        Some(WeightView {
            bytes,
            format,
            shape,
        })
    }

    fn tensor_names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn label(&self) -> &str {
        "shape-only"
    }
}
