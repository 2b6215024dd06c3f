//! The pre-tokenizers that GGUF names by a word (`tokenizer.ggml.pre`), as the regular expressions of the
//! models they came from. Reference: `llm_tokenizer_bpe` in llama.cpp's `llama-vocab.cpp`.

/// One kind of splitting.
pub(super) struct PreTokenizer {
    /// Applied in order; each isolates its matches.
    pub patterns: &'static [&'static str],
    /// Whether merges are skipped for words that are whole tokens.
    pub ignore_merges: bool,
    /// Whether a text begins with the begin token where the file does not say.
    pub add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// The kind that a word names; an unknown word is an error for the caller to report.
pub(super) fn named(word: &str) -> Option<PreTokenizer> {
    let patterns: &[&str] = match word {
        "default" | "gpt-2" | "gpt2" | "phi-2" | "jina-es" | "jina-de" | "mpt" | "olmo"
        | "jais" | "exaone4" => &[GPT2],
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "smaug-bpe" | "dbrx" => &[LLAMA3],
        "qwen2" | "stablelm2" | "deepseek-r1-qwen" | "megrez" | "hunyuan" => &[QWEN2],
        "gpt-4o" | "llama4" => &[GPT4O],
        "tekken" => &[TEKKEN],
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" => {
            &[r"\p{N}", GPT2]
        }
        "deepseek-v3" => &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_V3],
        // The first class of letters is spelt out there; these are the categories that it consists of.
        "deepseek-llm" => &[
            r"[\r\n]",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ],
        "deepseek-coder" => &[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}",
        ],
        _ => return None,
    };
    let whole_words = matches!(
        word,
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "tekken"
    );
    Some(PreTokenizer {
        patterns,
        ignore_merges: whole_words,
        add_bos: whole_words,
    })
}
