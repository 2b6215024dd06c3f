//! `adapter_config.json`: the settings of an adapter that its tensors do not show. (PEFT's `PeftConfig`
//! subclasses.)

use crate::module_patterns::{MAX_RANK, Numbers, Targets, names};
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// What kind of adapter it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// arXiv 2106.09685, with rsLoRA's scale (2312.03732) and DoRA's norms (2402.09353) where asked for.
    Lora,
    /// arXiv 2205.05638.
    Ia3,
    /// Hadamard products of low ranks (FedPara, arXiv 2108.06098).
    Loha,
    /// Kronecker products (KronA, arXiv 2212.10650; LyCORIS, 2309.14859).
    Lokr,
    /// arXiv 2310.11454.
    Vera,
    /// Soft prompts: prompt tuning (arXiv 2104.08691) and p-tuning (2103.10385).
    Prompt,
    /// arXiv 2101.00190.
    Prefix,
}

impl Kind {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "LORA" => Kind::Lora,
            "IA3" => Kind::Ia3,
            "LOHA" => Kind::Loha,
            "LOKR" => Kind::Lokr,
            "VERA" => Kind::Vera,
            "PROMPT_TUNING" | "P_TUNING" => Kind::Prompt,
            "PREFIX_TUNING" => Kind::Prefix,
            _ => return None,
        })
    }
}

/// The settings.
#[derive(Debug)]
pub(crate) struct Config {
    pub kind: Kind,
    /// Virtual tokens of a soft prompt or prefix.
    pub virtual_tokens: usize,
    rank: usize,
    /// None: the factor is 1 whatever the rank.
    alpha: Option<f64>,
    root: bool,
    /// Whether norms of the rows come with it.
    pub dora: bool,
    rank_pattern: Numbers,
    alpha_pattern: Numbers,
    targets: Targets,
    excluded: Targets,
    /// The only layers whose modules are changed; none: all.
    layers: Option<Vec<u64>>,
    /// Words behind which a layer's number stands; none: any.
    layer_words: Vec<String>,
    feed_forward: Targets,
    /// Modules that come whole.
    saved: Vec<String>,
    /// Parameters that are changed without a module of their own.
    parameters: Targets,
    /// Whether `A` of a parameter `[E, n, k]` acts on its second axis.
    pub swaps_parameters: bool,
}

/// Settings that change what an adapter computes, and of which nothing is known here.
const REFUSED: [&str; 9] = [
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "ensure_weight_tying",
    "layer_replication",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
];

/// Further settings of PEFT's configurations (0.21): those read here, and those of training, of how an adapter was begun, and of layers that no text model has.
#[rustfmt::skip]
const KNOWN: [&str; 61] = [
    "alpha", "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "d_initial", "decompose_both", "decompose_factor",
    "encoder_dropout", "encoder_hidden_size", "encoder_num_layers", "encoder_reparameterization_type", "eva_config", "exclude_modules",
    "fan_in_fan_out", "feedforward_modules", "inference_mode", "init_ia3_weights", "init_lora_weights", "init_weights", "layers_pattern",
    "layers_to_transform", "loftq_config", "lora_alpha", "lora_bias", "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core",
    "module_dropout", "modules_to_save", "num_attention_heads", "num_layers", "num_transformer_submodules", "num_virtual_tokens", "peft_type",
    "peft_version", "prefix_projection", "projection_prng_key", "prompt_tuning_init", "prompt_tuning_init_text", "qalora_group_size", "r",
    "rank_dropout", "rank_dropout_scale", "rank_pattern", "revision", "runtime_config", "save_projection", "target_modules", "target_parameters",
    "task_type", "token_dim", "tokenizer_kwargs", "tokenizer_name_or_path", "use_dora", "use_effective_conv2d", "use_rslora", "velora_config",
    "vera_dropout",
];

/// Beginnings of `init_lora_weights`, in small letters, that take something out of the base's weights.
const CHANGES_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

impl Config {
    /// Reads the file.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let malformed = |reason: String| Error::malformed(path, reason);
        let json: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
        let name = json
            .get("peft_type")
            .and_then(Value::as_str)
            .ok_or_else(|| malformed("'peft_type' is missing".into()))?;
        let kind = Kind::parse(name)
            .ok_or_else(|| Error::unsupported(path, format!("adapter kind {name}")))?;
        if let Some(key) = REFUSED.iter().find(|key| is_set(&json, key)) {
            return Err(Error::unsupported(path, format!("'{key}'")));
        }
        warn_of_unknown(path, &json);
        if let Some(start) = changed_base(&json) {
            let what = format!("an adapter whose base was changed when it was made ('{start}')");
            return Err(Error::unsupported(path, what));
        }
        let (rank, alpha) = sizes(kind, &json).map_err(malformed)?;
        let tokens = match json.get("num_virtual_tokens").and_then(Value::as_u64) {
            Some(tokens @ 1..=65_536) => tokens as usize,
            _ if matches!(kind, Kind::Prompt | Kind::Prefix) => {
                let reason = "'num_virtual_tokens' is not a number from 1 to 65536";
                return Err(malformed(reason.into()));
            }
            _ => 0,
        };
        type Parse = fn(&str, Option<&Value>) -> Result<Targets, String>;
        let of = |key: &str, parse: Parse| parse(key, json.get(key)).map_err(malformed);
        Ok(Self {
            kind,
            virtual_tokens: tokens,
            rank,
            alpha: Some(alpha),
            root: is_set(&json, "use_rslora"),
            dora: is_set(&json, "use_dora"),
            rank_pattern: Numbers::ranks(path, "rank_pattern", json.get("rank_pattern"))?,
            alpha_pattern: Numbers::parse(path, "alpha_pattern", json.get("alpha_pattern"))?,
            targets: of("target_modules", Targets::parse)?,
            excluded: of("exclude_modules", Targets::parse_or_none)?,
            layers: layers(json.get("layers_to_transform")).map_err(malformed)?,
            layer_words: layer_words(json.get("layers_pattern")),
            feed_forward: of("feedforward_modules", Targets::parse_or_none)?,
            saved: saved(json.get("modules_to_save")).map_err(malformed)?,
            parameters: of("target_parameters", Targets::parse_or_none)?,
            swaps_parameters: json
                .get("peft_version")
                .and_then(Value::as_str)
                .is_none_or(before_0_19_1),
        })
    }

    /// The settings of a plain LoRA whose file states nothing but `alpha`, if that.
    pub fn plain(alpha: Option<f64>) -> Self {
        Self {
            kind: Kind::Lora,
            virtual_tokens: 0,
            rank: 0,
            alpha,
            root: false,
            dora: false,
            rank_pattern: Numbers::default(),
            alpha_pattern: Numbers::default(),
            targets: Targets::All,
            excluded: Targets::Ends(vec![]),
            layers: None,
            layer_words: vec![],
            feed_forward: Targets::Ends(vec![]),
            saved: vec![],
            parameters: Targets::All,
            swaps_parameters: false,
        }
    }

    /// Whether the configuration states that a parameter is changed; `parameter` is its name in the checkpoint.
    pub fn changes_parameter(&self, parameter: &str) -> bool {
        self.parameters.contain(parameter)
    }

    /// Whether the configuration states that a module is changed; `module` is its name in the checkpoint.
    pub fn changes(&self, module: &str) -> bool {
        let in_layer = |layers: &Vec<u64>| {
            let layer = layer_of(module, &self.layer_words);
            layer.is_some_and(|layer| layers.contains(&layer))
        };
        let layers = match (&self.layers, &self.targets) {
            // As in PEFT, expressions and whole names speak of layers themselves.
            (None, _) | (_, Targets::Expression(_)) => true,
            (Some(_), targets) if targets.name(module) => true,
            (Some(layers), _) => in_layer(layers),
        };
        let targeted = self.targets.contain(module) && !self.excluded.contain(module);
        (layers && targeted) || self.is_parameter(module)
    }

    /// Whether it is a module's weight, as a parameter, that is changed.
    fn is_parameter(&self, module: &str) -> bool {
        self.parameters.contain(&weight_of(module))
    }

    /// Whether the configuration states that a module comes whole (`modules_to_save`).
    pub fn saves(&self, module: &str) -> bool {
        self.saved.iter().any(|name| module.ends_with(name))
    }

    /// Whether IA3 scales the module's input, not its output.
    pub fn is_feed_forward(&self, module: &str) -> bool {
        self.feed_forward.contain_by_letters(module)
    }

    /// The rank at a module; none where the file states none.
    pub fn rank(&self, module: &str) -> Option<usize> {
        let rank = self.matched(&self.rank_pattern, module);
        let rank = rank.map_or(self.rank, |r| r as usize);
        (rank > 0).then_some(rank)
    }

    /// The factor on the delta at a module whose tensors have rank `rank`: `alpha / r`, or `alpha / sqrt(r)` for
    /// rsLoRA.
    pub fn scale(&self, module: &str, rank: usize) -> f32 {
        let rank = self.rank(module).unwrap_or(rank) as f64;
        let Some(alpha) = self.matched(&self.alpha_pattern, module).or(self.alpha) else {
            return 1.0;
        };
        (alpha / if self.root { rank.sqrt() } else { rank }) as f32
    }

    /// What the patterns have for a module, whose name is that of the parameter where this is what is changed.
    fn matched(&self, patterns: &Numbers, module: &str) -> Option<f64> {
        if patterns.is_empty() {
            return None;
        }
        match self.is_parameter(module) {
            true => patterns.of(&weight_of(module)),
            false => patterns.of(module),
        }
    }
}

/// The name of a module's weight.
fn weight_of(module: &str) -> String {
    format!("{module}.weight")
}

/// Whether a version of PEFT is older than 0.19.1.
fn before_0_19_1(version: &str) -> bool {
    let numbers = version
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    let numbers: Vec<u32> = numbers.take(3).collect();
    !numbers.is_empty() && numbers[..] < [0, 19, 1][..]
}

/// Says which settings are left out because nothing is known of them.
fn warn_of_unknown(path: &Path, json: &Map<String, Value>) {
    let known = |key: &str| KNOWN.contains(&key) || REFUSED.contains(&key);
    for key in json.keys().filter(|key| is_set(json, key) && !known(key)) {
        tracing::warn!("{}: '{key}' is not known and left out", path.display());
    }
}

/// The `init_lora_weights` of an adapter that holds for a base which was changed when it was made.
fn changed_base(json: &Map<String, Value>) -> Option<&str> {
    let start = json.get("init_lora_weights")?.as_str()?;
    let small = start.to_lowercase();
    let changes = CHANGES_BASE.iter().any(|c| small.starts_with(c));
    changes.then_some(start)
}

/// `layers_to_transform`: a number or several; none and an empty list are all layers.
fn layers(value: Option<&Value>) -> Result<Option<Vec<u64>>, String> {
    let numbers = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(items)) if items.is_empty() => return Ok(None),
        Some(Value::Array(items)) => items.iter().map(Value::as_u64).collect(),
        Some(one) => one.as_u64().map(|n| vec![n]),
    };
    let wrong = || "'layers_to_transform' is neither a layer's number nor a list of them".into();
    numbers.map(Some).ok_or_else(wrong)
}

/// `layers_pattern`: a word or several.
fn layer_words(value: Option<&Value>) -> Vec<String> {
    let words = match value {
        Some(Value::Array(items)) => items.iter().collect(),
        Some(one) => vec![one],
        None => vec![],
    };
    let words = words.into_iter().filter_map(Value::as_str);
    words.filter(|w| !w.is_empty()).map(Into::into).collect()
}

/// The layer that a module is of: the last number inside its name, behind one of these words where there are some.
fn layer_of(module: &str, words: &[String]) -> Option<u64> {
    let (inside, _) = module.rsplit_once('.')?;
    let parts: Vec<&str> = inside.split('.').collect();
    let mut pairs = parts.windows(2).rev();
    pairs.find_map(|pair| {
        let there = words.is_empty() || words.iter().any(|w| w == pair[0]);
        pair[1].parse().ok().filter(|_| there)
    })
}

fn is_set(json: &Map<String, Value>, key: &str) -> bool {
    match json.get(key) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(_) => true,
    }
}

/// Rank and alpha, where the kind has them.
fn sizes(kind: Kind, json: &Map<String, Value>) -> Result<(usize, f64), String> {
    let alpha_key = match kind {
        Kind::Lora => "lora_alpha",
        Kind::Loha | Kind::Lokr => "alpha",
        Kind::Vera | Kind::Ia3 | Kind::Prompt | Kind::Prefix => "",
    };
    let rank = json.get("r").and_then(Value::as_u64);
    let rank = rank.filter(|r| (1..=MAX_RANK).contains(r));
    if alpha_key.is_empty() {
        // VeRA states a rank; the others have none.
        return Ok((rank.unwrap_or(0) as usize, 1.0));
    }
    let rank = rank.ok_or_else(|| format!("'r' is not a rank from 1 to {MAX_RANK}"))?;
    let alpha = json.get(alpha_key).and_then(Value::as_f64);
    let alpha = alpha.filter(|a| a.is_finite());
    let alpha = alpha.ok_or_else(|| format!("'{alpha_key}' is not a number"))?;
    Ok((rank as usize, alpha))
}

/// `modules_to_save`.
fn saved(value: Option<&Value>) -> Result<Vec<String>, String> {
    match value {
        None | Some(Value::Null) => Ok(vec![]),
        Some(Value::Array(items)) => names("modules_to_save", items),
        Some(_) => Err("'modules_to_save' is no list".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::layer_of;

    #[test]
    fn layers_are_counted_behind_their_word() {
        let module = "model.layers.2.mlp.experts.3.w1";
        assert_eq!(layer_of(module, &[]), Some(3));
        assert_eq!(layer_of(module, &["h".into(), "layers".into()]), Some(2));
        assert_eq!(layer_of(module, &["blocks".into()]), None);
        assert_eq!(layer_of("lm_head", &[]), None);
    }
}
