//! Mixtures of formats by name, as `llama-quantize` knows them: one format for most matrices, better ones where errors
//! cost more. The rules are those of `llama_tensor_get_type` in llama.cpp for decoders.

use crate::Format;
use crate::formats::{
    IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, TQ1_0, TQ2_0,
};

/// A named mixture.
#[derive(Debug)]
pub struct Mix {
    /// Lower-case name: `q4_k_m`.
    pub name: &'static str,
    /// GGUF's `general.file_type`.
    pub file_type: u64,
    /// What most matrices get.
    pub base: Format,
    rule: Rule,
}

/// Which matrices get more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// None, not even the head.
    Pure,
    /// The head.
    Head,
    TwoBits,
    TwoSmall,
    ThreeMedium,
    ThreeLarge,
    FourSmall,
    FourMedium,
    FourUneven,
    FiveMedium,
    Ternary,
    /// Nothing but routed experts gets fewer than eight bits.
    Experts,
}

const fn mix(name: &'static str, file_type: u64, base: Format, rule: Rule) -> Mix {
    Mix {
        name,
        file_type,
        base,
        rule,
    }
}

/// Every mixture.
pub static ALL: &[Mix] = &[
    mix("f32", 0, Format::F32, Rule::Pure),
    mix("f16", 1, Format::F16, Rule::Pure),
    mix("bf16", 32, Format::Bf16, Rule::Pure),
    mix("q8_0", 7, Format::Blocks(&Q8_0), Rule::Pure),
    mix("q4_0", 2, Format::Blocks(&Q4_0), Rule::Head),
    mix("q4_1", 3, Format::Blocks(&Q4_1), Rule::Head),
    mix("q5_0", 8, Format::Blocks(&Q5_0), Rule::Head),
    mix("q5_1", 9, Format::Blocks(&Q5_1), Rule::Head),
    mix("q2_k", 10, Format::Blocks(&Q2_K), Rule::TwoBits),
    mix("q2_k_s", 21, Format::Blocks(&Q2_K), Rule::TwoSmall),
    mix("q3_k_s", 11, Format::Blocks(&Q3_K), Rule::Head),
    mix("q3_k_m", 12, Format::Blocks(&Q3_K), Rule::ThreeMedium),
    mix("q3_k_l", 13, Format::Blocks(&Q3_K), Rule::ThreeLarge),
    mix("q4_k_s", 14, Format::Blocks(&Q4_K), Rule::FourSmall),
    mix("q4_k_m", 15, Format::Blocks(&Q4_K), Rule::FourMedium),
    mix("q5_k_s", 16, Format::Blocks(&Q5_K), Rule::Head),
    mix("q5_k_m", 17, Format::Blocks(&Q5_K), Rule::FiveMedium),
    mix("q6_k", 18, Format::Blocks(&Q6_K), Rule::Head),
    mix("iq4_nl", 25, Format::Blocks(&IQ4_NL), Rule::FourUneven),
    mix("iq4_xs", 30, Format::Blocks(&IQ4_XS), Rule::FourUneven),
    mix("tq1_0", 36, Format::Blocks(&TQ1_0), Rule::Ternary),
    mix("tq2_0", 37, Format::Blocks(&TQ2_0), Rule::Ternary),
    mix("mxfp4", 38, Format::Blocks(&MXFP4), Rule::Head),
    mix("mxfp4_moe", 38, Format::Blocks(&MXFP4), Rule::Experts),
];

/// What a mixture must know of the model.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Blocks.
    pub layers: usize,
    /// Whether the embedding is the head, too.
    pub tied: bool,
    /// Whether errors are weighted by importance.
    pub weighted: bool,
    /// Query heads per key/value head.
    pub queries_per_key: usize,
    /// Routed experts of a layer; 0 where there are none.
    pub experts: usize,
}

const HEAD: Format = Format::Blocks(&Q6_K);
const Q5: Format = Format::Blocks(&Q5_K);
const Q4: Format = Format::Blocks(&Q4_K);

impl Mix {
    /// The mixture that users call `name` (any case).
    pub fn by_name(name: &str) -> Option<&'static Mix> {
        // As llama-quantize has it, a plain K format of several sizes is the middle one.
        let medium = ["q3_k", "q4_k", "q5_k"]
            .iter()
            .any(|n| n.eq_ignore_ascii_case(name));
        let name = if medium {
            format!("{name}_m")
        } else {
            name.to_owned()
        };
        ALL.iter().find(|m| m.name.eq_ignore_ascii_case(&name))
    }

    /// The format of the matrix `name` whose rows have `row` elements.
    pub fn format_of(&self, name: &str, row: usize, model: &Model) -> Format {
        let mut format = self.wanted(name, model);
        while !row.is_multiple_of(format.block_len()) {
            format = shorter(format);
        }
        format
    }

    /// The format that the mixture has for it, whatever the length of its rows.
    pub(super) fn wanted(&self, name: &str, model: &Model) -> Format {
        use Rule as R;
        let head = name == "output.weight" || model.tied && name == "token_embd.weight";
        let expert = name.contains("_exps.");
        match (head, self.rule) {
            (_, R::Pure) => return self.base,
            (_, R::Experts) if expert => return self.base,
            (_, R::Experts) => return Format::Blocks(&Q8_0),
            (true, _) => return HEAD,
            (false, R::Ternary) if name == "token_embd.weight" => return Q4,
            _ => {}
        }
        let part = |i: usize| name.split('.').nth(i).unwrap_or_default();
        let role = match part(2) {
            // Where values are part of a larger product, its errors are theirs.
            "attn_qkv" | "attn_kv_b" => "attn_v",
            "ffn_down_exps" | "ffn_down_shexp" => "ffn_down",
            role => role,
        };
        if let (8, Some(format)) = (model.experts, self.beside_eight_experts(role)) {
            return format;
        }
        let format = self.of_layer(role, part(1).parse().unwrap_or(0), model);
        // In Llama's models of 80 layers eight heads share their values.
        let coarse = [&Q3_K, &Q4_K].map(Format::Blocks).contains(&format);
        let shared = model.layers == 80 && model.queries_per_key > 1;
        match role == "attn_v" && shared && coarse {
            true => Q5,
            false => format,
        }
    }

    /// What a role's matrix gets in a layer.
    fn of_layer(&self, role: &str, layer: usize, model: &Model) -> Format {
        use Rule as R;
        let n = model.layers;
        let middle = (n / 8..7 * n / 8).contains(&layer);
        let more_bits = !middle || (layer - n / 8) % 3 == 2;
        match (role, self.rule) {
            ("attn_v", R::TwoBits | R::TwoSmall) if model.queries_per_key >= 4 => Q4,
            ("ffn_down", R::TwoSmall) if layer < n / 8 => Q4,
            ("attn_v" | "ffn_down" | "attn_output", R::TwoBits) => Format::Blocks(&Q3_K),
            ("attn_v", R::ThreeMedium) if layer < 2 => Q5,
            ("attn_v" | "attn_output", R::ThreeMedium) => Q4,
            ("ffn_down", R::ThreeMedium) if layer < n / 16 => Q5,
            ("ffn_down", R::ThreeMedium) => Q4,
            ("attn_v", R::FourUneven) if model.queries_per_key >= 4 => Q5,
            ("ffn_down", R::FourUneven) if layer < n / 8 && !model.weighted => Q5,
            ("attn_v" | "ffn_down" | "attn_output", R::ThreeLarge) => Q5,
            ("attn_v", R::FourSmall) if layer < 4 => Q5,
            ("ffn_down", R::FourSmall) if layer < n / 8 => Q5,
            ("attn_v" | "ffn_down", R::FourMedium | R::FiveMedium) if more_bits => HEAD,
            _ => self.base,
        }
    }

    /// What attention's matrices get beside eight experts, among whose they hardly count.
    fn beside_eight_experts(&self, role: &str) -> Option<Format> {
        let small = [&Q2_K, &Q3_K, &Q4_K, &IQ4_NL, &IQ4_XS].map(Format::Blocks);
        match (role, self.rule) {
            ("attn_v" | "attn_k", _) => Some(Format::Blocks(&Q8_0)),
            ("attn_output", Rule::ThreeLarge | Rule::TwoSmall) => Some(self.base),
            ("attn_output", _) if small.contains(&self.base) => Some(Format::Blocks(&Q5_K)),
            _ => None,
        }
    }
}

/// A format of about as many bits with shorter blocks.
fn shorter(format: Format) -> Format {
    match format {
        Format::Blocks(c) if c.block_len == 256 => Format::Blocks(match c.name {
            "q4_k" => &Q5_0,
            "q5_k" => &Q5_1,
            "q6_k" => &Q8_0,
            "tq1_0" | "tq2_0" => &Q4_0,
            _ => &IQ4_NL,
        }),
        _ => Format::F16,
    }
}
