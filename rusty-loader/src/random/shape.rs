//! Shapes of random models: their sizes, and the tensors and metadata of a GGUF of these.

use std::collections::HashMap;

use crate::Meta;
use crate::meta::keys;

/// A decoder's sizes.
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) arch: &'static str,
    pub(super) layers: usize,
    pub(super) width: usize,
    inner: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    head_dim: usize,
    pub(super) vocab: usize,
    context: u64,
    rope_base: f64,
    pub(super) tied: bool,
    pub(super) experts: Option<Experts>,
    latent: Option<Latent>,
}

/// Experts in all layers but the first `dense`.
pub(super) struct Experts {
    pub(super) count: usize,
    used: usize,
    inner: usize,
    dense: usize,
    /// Sigmoid scores with a bias, in groups of which some are used (count, used), beside an expert that every token takes.
    grouped: Option<(usize, usize)>,
}

/// Widths of latent attention.
struct Latent {
    query_rank: usize,
    rank: usize,
    plain: usize,
    rotated: usize,
    value: usize,
}

/// What the shapes below differ from: the smallest that has whole blocks of every format.
const TINY: Shape = Shape {
    name: "llama-tiny",
    arch: "llama",
    layers: 2,
    width: 256,
    inner: 512,
    heads: 8,
    kv_heads: 1,
    head_dim: 32,
    vocab: 512,
    context: 1024,
    rope_base: 1e4,
    tied: true,
    experts: None,
    latent: None,
};

const QWEN3_TINY: Shape = Shape {
    name: "qwen3-tiny",
    arch: "qwen3",
    // More than kernels hold of a row at once.
    inner: 3072,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    rope_base: 1e6,
    ..TINY
};

pub(super) static SHAPES: &[Shape] = &[
    Shape {
        name: "qwen3-0.6b",
        arch: "qwen3",
        layers: 28,
        width: 1024,
        inner: 3072,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        vocab: 151_936,
        context: 40_960,
        rope_base: 1e6,
        ..TINY
    },
    Shape {
        name: "llama-3.2-1b",
        layers: 16,
        width: 2048,
        inner: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        vocab: 128_256,
        context: 131_072,
        rope_base: 5e5,
        ..TINY
    },
    Shape {
        name: "gemma-3-1b",
        arch: "gemma3",
        layers: 26,
        width: 1152,
        inner: 6912,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        vocab: 262_144,
        context: 32_768,
        rope_base: 1e6,
        ..TINY
    },
    Shape {
        name: "mistral-7b",
        layers: 32,
        width: 4096,
        inner: 14_336,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 32_000,
        context: 32_768,
        rope_base: 1e6,
        tied: false,
        ..TINY
    },
    Shape {
        name: "llama-3-8b",
        layers: 32,
        width: 4096,
        inner: 14_336,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 128_256,
        context: 8192,
        rope_base: 5e5,
        tied: false,
        ..TINY
    },
    Shape {
        name: "qwen3-30b-a3b",
        arch: "qwen3moe",
        layers: 48,
        width: 2048,
        inner: 6144,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        vocab: 151_936,
        context: 40_960,
        rope_base: 1e6,
        tied: false,
        experts: Some(Experts {
            count: 128,
            used: 8,
            inner: 768,
            dense: 0,
            grouped: None,
        }),
        ..TINY
    },
    TINY,
    QWEN3_TINY,
    // Every token takes all of its experts, so that none hangs on how scores are rounded.
    Shape {
        name: "qwen3moe-tiny",
        arch: "qwen3moe",
        experts: Some(Experts {
            count: 4,
            used: 4,
            inner: 256,
            dense: 0,
            grouped: None,
        }),
        ..QWEN3_TINY
    },
    Shape {
        name: "deepseek-tiny",
        arch: "deepseek2",
        heads: 4,
        tied: false,
        experts: Some(Experts {
            count: 8,
            used: 4,
            inner: 256,
            dense: 1,
            grouped: Some((4, 2)),
        }),
        latent: Some(Latent {
            query_rank: 256,
            rank: 256,
            plain: 64,
            rotated: 32,
            value: 64,
        }),
        ..TINY
    },
];

impl Shape {
    /// Names and shapes of the tensors, as GGUFs store them.
    pub(super) fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let width = self.width;
        let mut all = vec![("token_embd.weight".to_owned(), vec![self.vocab, width])];
        for layer in 0..self.layers {
            let mut add = |role: &str, dims: &[usize]| {
                // A role without a kind is a weight's.
                let kind = if role.contains('.') { "" } else { ".weight" };
                all.push((format!("blk.{layer}.{role}{kind}"), dims.to_vec()));
            };
            add("attn_norm", &[width]);
            match &self.latent {
                Some(latent) => self.latent_attention(latent, &mut add),
                None => self.attention(&mut add),
            }
            if self.is_gemma() {
                add("post_attention_norm", &[width]);
            }
            add("ffn_norm", &[width]);
            match self.experts.as_ref().filter(|e| layer >= e.dense) {
                Some(experts) => experts.tensors(width, &mut add),
                None => feed_forward("", self.inner, width, &mut add),
            }
            if self.is_gemma() {
                add("post_ffw_norm", &[width]);
            }
        }
        all.push(("output_norm.weight".to_owned(), vec![width]));
        if !self.tied {
            all.push(("output.weight".to_owned(), vec![self.vocab, width]));
        }
        // How a GGUF states Llama 3's scaling.
        if self.name == "llama-3.2-1b" {
            all.push(("rope_freqs.weight".to_owned(), vec![self.head_dim / 2]));
        }
        all
    }

    fn is_gemma(&self) -> bool {
        self.arch == "gemma3"
    }

    fn norms_heads(&self) -> bool {
        self.is_gemma() || self.arch.starts_with("qwen3")
    }

    fn attention(&self, add: &mut impl FnMut(&str, &[usize])) {
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        add("attn_q", &[queries, self.width]);
        add("attn_k", &[keys, self.width]);
        add("attn_v", &[keys, self.width]);
        add("attn_output", &[self.width, queries]);
        if self.norms_heads() {
            add("attn_q_norm", &[self.head_dim]);
            add("attn_k_norm", &[self.head_dim]);
        }
    }

    fn latent_attention(&self, of: &Latent, add: &mut impl FnMut(&str, &[usize])) {
        let heads = self.heads;
        add("attn_q_a", &[of.query_rank, self.width]);
        add("attn_q_a_norm", &[of.query_rank]);
        add(
            "attn_q_b",
            &[heads * (of.plain + of.rotated), of.query_rank],
        );
        add("attn_kv_a_mqa", &[of.rank + of.rotated, self.width]);
        add("attn_kv_a_norm", &[of.rank]);
        add("attn_k_b", &[heads, of.rank, of.plain]);
        add("attn_v_b", &[heads, of.value, of.rank]);
        add("attn_output", &[self.width, heads * of.value]);
    }

    /// Canonical metadata.
    pub(super) fn meta(&self) -> HashMap<String, Meta> {
        let llama = self.arch == "llama";
        // Those that norm heads are those that rotate halves.
        let layout = match self.norms_heads() {
            true => "half",
            false => "interleaved",
        };
        let act = if self.is_gemma() { "gelu_tanh" } else { "silu" };
        let epsilon = Meta::F64(if llama { 1e-5 } else { 1e-6 });
        // Of latent attention files state the cached row as the only head's.
        let (kv_heads, key, value) = match &self.latent {
            None => (self.kv_heads, self.head_dim, self.head_dim),
            Some(latent) => (1, latent.rank + latent.rotated, latent.rank),
        };
        let mut all = vec![
            (keys::NAME, Meta::from(self.name)),
            (keys::BLOCK_COUNT, size(self.layers)),
            (keys::CONTEXT_LENGTH, Meta::U64(self.context)),
            (keys::EMBEDDING_LENGTH, size(self.width)),
            (keys::FEED_FORWARD_LENGTH, size(self.inner)),
            (keys::HEAD_COUNT, size(self.heads)),
            (keys::HEAD_COUNT_KV, size(kv_heads)),
            (keys::KEY_LENGTH, size(key)),
            (keys::VALUE_LENGTH, size(value)),
            (keys::RMS_EPSILON, epsilon),
            (keys::ROPE_FREQ_BASE, Meta::F64(self.rope_base)),
            (keys::ROPE_LAYOUT, layout.into()),
            (keys::ROPE_SCALING_TYPE, "none".into()),
            (keys::VOCAB_SIZE, size(self.vocab)),
            (keys::TIE_WORD_EMBEDDINGS, Meta::Bool(self.tied)),
            (keys::HIDDEN_ACT, act.into()),
            (keys::EOS_TOKEN_IDS, Meta::Array([].into())),
        ];
        if self.is_gemma() {
            all.push((keys::SLIDING_WINDOW, size(512)));
            all.push((keys::ROPE_FREQ_BASE_SWA, Meta::F64(1e4)));
        }
        if let Some(experts) = &self.experts {
            all.extend(experts.meta());
        }
        if let Some(latent) = &self.latent {
            all.extend(latent.meta());
        }
        all.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }
}

fn size(n: usize) -> Meta {
    Meta::U64(n as u64)
}

/// A feed-forward whose tensors' names end in `of`.
fn feed_forward(of: &str, inner: usize, width: usize, add: &mut impl FnMut(&str, &[usize])) {
    add(&format!("ffn_gate{of}"), &[inner, width]);
    add(&format!("ffn_up{of}"), &[inner, width]);
    add(&format!("ffn_down{of}"), &[width, inner]);
}

impl Experts {
    fn tensors(&self, width: usize, add: &mut impl FnMut(&str, &[usize])) {
        let Self { count, inner, .. } = *self;
        add("ffn_gate_inp", &[count, width]);
        add("ffn_gate_exps", &[count, inner, width]);
        add("ffn_up_exps", &[count, inner, width]);
        add("ffn_down_exps", &[count, width, inner]);
        if self.grouped.is_some() {
            add("exp_probs_b.bias", &[count]);
            feed_forward("_shexp", inner, width, add);
        }
    }

    fn meta(&self) -> Vec<(&'static str, Meta)> {
        let mut all = vec![
            (keys::EXPERT_COUNT, size(self.count)),
            (keys::EXPERT_USED_COUNT, size(self.used)),
            (keys::EXPERT_FEED_FORWARD_LENGTH, size(self.inner)),
            (keys::EXPERT_WEIGHTS_NORM, Meta::Bool(true)),
        ];
        if let Some((count, used)) = self.grouped {
            // GGUF's number for sigmoid.
            all.push((keys::EXPERT_GATING, size(2)));
            all.push((keys::EXPERT_SHARED_COUNT, size(1)));
            all.push((keys::EXPERT_GROUP_COUNT, size(count)));
            all.push((keys::EXPERT_GROUP_USED_COUNT, size(used)));
        }
        all
    }
}

impl Latent {
    fn meta(&self) -> [(&'static str, Meta); 5] {
        [
            (keys::Q_LORA_RANK, size(self.query_rank)),
            (keys::KV_LORA_RANK, size(self.rank)),
            (keys::ROPE_DIMENSION_COUNT, size(self.rotated)),
            (keys::KEY_LENGTH_LATENT, size(self.plain + self.rotated)),
            (keys::VALUE_LENGTH_LATENT, size(self.value)),
        ]
    }
}
