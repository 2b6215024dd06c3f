//! What the canonical metadata says of a decoder.

use rusty_loader::meta::keys;
use rusty_loader::{Meta, ModelFile};

use super::assembly::EMBEDDING;
use super::{Biases, Decoder, Experts, Latent, QkNorm, Sliding};
use crate::arch::Checkpoint;
use crate::rope::read::yarn_magnitude;
use crate::{
    GroupScore, Result, RopeScaling, RopeSpec, RouteGroups, RouteScore, RouteSpec, UnaryOp,
};

impl Decoder {
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
        // Latent heads have widths of their own: files state the cached row's as a head's.
        let latent = model.meta(keys::KV_LORA_RANK).is_some();
        let head_dim = match latent {
            true => model.count(keys::KEY_LENGTH_LATENT)?,
            false => model.int_or(keys::KEY_LENGTH, width / heads)?,
        };
        if head_dim == 0 || heads.checked_mul(head_dim).is_none() {
            let reason = format!("gives {heads} heads of {head_dim} lanes");
            return Err(model.meta_error(keys::KEY_LENGTH, reason));
        }
        let value_dim = model.int_or(keys::VALUE_LENGTH, head_dim)?;
        if value_dim != head_dim && !latent {
            let reason = format!("is {value_dim}, the key length {head_dim}; they must be equal");
            return Err(model.meta_error(keys::VALUE_LENGTH, reason));
        }
        let rope = RopeSpec::from_model(file, head_dim)?;
        Ok(Self {
            layers: model.count(keys::BLOCK_COUNT)?,
            width,
            ffn: model.count(keys::FEED_FORWARD_LENGTH)?,
            heads,
            kv_heads,
            head_dim,
            eps: epsilon(&model)?,
            act: activation(&model)?,
            context: rope.scaling.reach(model.count(keys::CONTEXT_LENGTH)?),
            rope,
            sliding: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_divisor: 1.0,
            query_scale: (1.0 / f64::from(head_dim).sqrt()) as f32,
            score_cap: None,
            logit_cap: None,
            pre_norms: true,
            post_norms: false,
            experts: None,
            latent: None,
            qk_norm: QkNorm::None,
            qkv_bias: Biases::IfPresent,
            vocab: vocabulary(&model)?,
        })
    }

    /// Takes the experts that the file states; `normalize` holds where it does not say whether weights are normalized.
    ///
    /// # Errors
    /// [`crate::Error::Meta`] where a number of experts is missing or they do not fit each other.
    pub fn with_experts(mut self, file: &dyn ModelFile, normalize: bool) -> Result<Self> {
        let model = Checkpoint::new(file);
        let (experts, used) = (
            model.count(keys::EXPERT_COUNT)?,
            model.count(keys::EXPERT_USED_COUNT)?,
        );
        if used > experts {
            let reason = format!("is {used}; there are {experts} experts");
            return Err(model.meta_error(keys::EXPERT_USED_COUNT, reason));
        }
        let stated = model
            .meta(keys::EXPERT_WEIGHTS_NORM)
            .and_then(Meta::as_bool);
        let ffn = model.int_or(keys::EXPERT_FEED_FORWARD_LENGTH, self.ffn)?;
        let shared = model.int_or(keys::EXPERT_SHARED_COUNT, 0)?;
        let Some(shared) = shared.checked_mul(ffn) else {
            let reason = format!("is {shared}, experts of {ffn} lanes");
            return Err(model.meta_error(keys::EXPERT_SHARED_COUNT, reason));
        };
        self.experts = Some(Experts {
            ffn,
            shared,
            route: RouteSpec {
                experts,
                used,
                score: score(&model)?,
                groups: groups(&model)?,
                normalize: stated.unwrap_or(normalize),
                // Files that must state a factor state 0 where there is none.
                scale: match model.float_or(keys::EXPERT_WEIGHTS_SCALE, 1.0)? {
                    0.0 => 1.0,
                    scale => scale as f32,
                },
            },
        });
        Ok(self)
    }

    /// Takes the latent attention that the file states.
    ///
    /// # Errors
    /// [`crate::Error::Meta`] where a width is missing or unusable.
    pub fn with_latent(mut self, file: &dyn ModelFile) -> Result<Self> {
        let model = Checkpoint::new(file);
        let rotated = model.count(keys::ROPE_DIMENSION_COUNT)?;
        let key = model.count(keys::KEY_LENGTH_LATENT)?;
        let Some(plain) = key.checked_sub(rotated).filter(|p| *p > 0) else {
            let reason = format!("is {key}, {rotated} of them rotated");
            return Err(model.meta_error(keys::KEY_LENGTH_LATENT, reason));
        };
        let query_rank = model.int_or(keys::Q_LORA_RANK, 0)?;
        self.latent = Some(Latent {
            query_rank: (query_rank > 0).then_some(query_rank),
            rank: model.count(keys::KV_LORA_RANK)?,
            plain,
            rotated,
            value: model.count(keys::VALUE_LENGTH_LATENT)?,
        });
        self.rope = RopeSpec::from_model(file, rotated)?;
        // YaRN sharpens the scores, too: by the square of what DeepSeek calls `mscale_all_dim`.
        let sharper = match &self.rope.scaling {
            RopeScaling::Yarn { factor, .. } if *factor > 1.0 => {
                let all = model.float_or(keys::ROPE_SCALING_MSCALE_ALL_DIM, 0.0)?;
                yarn_magnitude(all, *factor)
            }
            _ => 1.0,
        };
        self.query_scale = (sharper * sharper / f64::from(key).sqrt()) as f32;
        Ok(self)
    }

    /// Takes the window that the file states, if it does, for the layers for which `slides` holds unless the file lists
    /// them.
    ///
    /// # Errors
    /// [`crate::Error::Meta`] where the window or the list of layers is unusable.
    pub fn with_window(mut self, file: &dyn ModelFile, slides: fn(u32) -> bool) -> Result<Self> {
        let model = Checkpoint::new(file);
        // Files that must state a window state 0 where there is none.
        if model.int_or(keys::SLIDING_WINDOW, 0)? == 0 {
            return Ok(self);
        }
        let layers = match model.meta(keys::SLIDING_PATTERN) {
            None => (0..self.layers).map(slides).collect(),
            Some(_) => self.pattern(&model)?,
        };
        let rope = match model.float(keys::ROPE_FREQ_BASE_SWA)? {
            None => self.rope.clone(),
            Some(base) => RopeSpec {
                base,
                scaling: RopeScaling::None,
                ..self.rope.clone()
            },
        };
        self.sliding = Some(Sliding {
            window: model.count(keys::SLIDING_WINDOW)?,
            layers,
            rope,
        });
        Ok(self)
    }

    /// Which layers slide by the file: a flag for each, or the period whose last layer sees everything.
    fn pattern(&self, model: &Checkpoint<'_>) -> Result<Vec<bool>> {
        let key = keys::SLIDING_PATTERN;
        let flags = match model.meta(key) {
            Some(Meta::Array(flags)) => flags.iter().map(Meta::as_bool).collect(),
            Some(Meta::U64(period)) if *period > 0 => {
                let full = |layer: u64| (layer + 1).is_multiple_of(*period);
                Some((0..u64::from(self.layers)).map(|l| !full(l)).collect())
            }
            _ => None,
        };
        flags
            .filter(|f: &Vec<bool>| f.len() == self.layers as usize)
            .ok_or_else(|| {
                let reason = format!("is neither {} flags nor a period", self.layers);
                model.meta_error(key, reason)
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
        if (1..self.context).contains(&window) {
            let reason = format!(
                "is {window}; {} is supported without a window only",
                file.arch()
            );
            return Err(model.meta_error(keys::SLIDING_WINDOW, reason));
        }
        Ok(self)
    }
}

/// How router logits become scores: GGUF's numbers.
fn score(model: &Checkpoint<'_>) -> Result<RouteScore> {
    match model.int_or(keys::EXPERT_GATING, 1)? {
        // Files from before there was a choice state 0.
        0 | 1 => Ok(RouteScore::Softmax),
        2 => Ok(RouteScore::Sigmoid),
        other => {
            let reason = format!("is {other}; known: 1 (softmax), 2 (sigmoid)");
            Err(model.meta_error(keys::EXPERT_GATING, reason))
        }
    }
}

/// The choice of groups; none where all of them are taken.
fn groups(model: &Checkpoint<'_>) -> Result<Option<RouteGroups>> {
    let count = model.int_or(keys::EXPERT_GROUP_COUNT, 1)?;
    let used = model.int_or(keys::EXPERT_GROUP_USED_COUNT, count)?;
    if count <= 1 || used == count {
        return Ok(None);
    }
    // Sigmoid scores came with the other rule.
    let score = match score(model)? {
        RouteScore::Softmax => GroupScore::Best,
        RouteScore::Sigmoid => GroupScore::BestTwo,
    };
    Ok(Some(RouteGroups { count, used, score }))
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
