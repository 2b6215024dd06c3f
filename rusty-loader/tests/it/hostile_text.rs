//! Tokenizers and templates that are wrong or mean harm: an error that names the file and a reason, or a
//! result; never a panic, a hang or a large allocation.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rusty_loader::Meta;
use rusty_loader::gguf::write::GgufWriter;
use rusty_loader::text::{ChatTemplate, Render, Tokenizer};

use crate::goldens;

/// A file with that content, in a folder that goes with it.
struct Written {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn written(name: &str, bytes: &[u8]) -> Written {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    Written {
        _folder: folder,
        path,
    }
}

/// Opens a tokenizer and uses it.
fn use_wholly(path: &Path) -> rusty_loader::Result<()> {
    let tokenizer = Tokenizer::open(path)?;
    let mut ids = tokenizer.encode("a b\u{0}ä<s></s> \u{1F600} aaaabbbb", true)?;
    ids.extend([0, 1, 2, u32::MAX]);
    tokenizer.decode(&ids, false)?;
    let mut stream = tokenizer.stream(true);
    ids.iter().try_for_each(|id| stream.push(*id).map(drop))
}

fn refused(file: &Written, words: &[&str]) {
    let error = use_wholly(&file.path).expect_err("hostile").to_string();
    let name = file.path.file_name().unwrap().to_str().unwrap();
    for word in words.iter().chain([&name]) {
        assert!(error.contains(word), "{error} lacks {word}");
    }
}

fn tokenizer_json() -> Vec<u8> {
    std::fs::read(goldens::path(
        "hostile/tokenizer/control-valid/tokenizer.json",
    ))
    .unwrap()
}

#[test]
fn cut_tokenizer_files_are_refused() {
    let whole = tokenizer_json();
    let end = whole.trim_ascii_end().len();
    for len in (0..end).step_by(7) {
        refused(&written("tokenizer.json", &whole[..len]), &[]);
    }
    use_wholly(&written("tokenizer.json", &whole).path).expect("whole");
}

#[test]
fn tokenizer_files_of_other_kinds_are_refused() {
    for bytes in [
        &b"\xff\xfe{}"[..],
        b"null",
        b"[]",
        b"{\"model\": 7}",
        b"{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": \"x\"}, \"merges\": []}}",
    ] {
        refused(&written("tokenizer.json", bytes), &["no usable tokenizer"]);
    }
    let deep = "[".repeat(200_000);
    refused(&written("tokenizer.json", deep.as_bytes()), &[]);
    let part = |key: &str, value: &str| {
        let mut other: serde_json::Value = serde_json::from_slice(&tokenizer_json()).unwrap();
        other.as_object_mut().unwrap().remove(key);
        let other = other.to_string();
        format!("{{\"{key}\": {value}, {}", &other[1..])
    };
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    for (key, value) in [
        ("decoder", deep.as_str()),
        ("decoder", "1e999"),
        ("decoder", "{\"type\": \"Strip\"}"),
        ("normalizer", deep.as_str()),
        (
            "normalizer",
            "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}",
        ),
        (
            "normalizer",
            "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"!\"}",
        ),
        ("pre_tokenizer", deep.as_str()),
        ("post_processor", deep.as_str()),
    ] {
        let file = written("tokenizer.json", part(key, value).as_bytes());
        refused(&file, &["no usable tokenizer"]);
    }
}

#[test]
fn a_tokenizer_config_that_is_no_json_is_refused() {
    let file = written("tokenizer.json", &tokenizer_json());
    let folder = file.path.parent().unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), "{").unwrap();
    let error = use_wholly(folder).expect_err("hostile").to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}

/// A GGUF with nothing but a vocabulary.
struct Vocabulary {
    model: &'static str,
    tokens: Vec<&'static str>,
    kinds: Vec<u64>,
    scores: Vec<f64>,
    merges: Vec<&'static str>,
    more: Vec<(&'static str, Meta)>,
}

impl Vocabulary {
    fn of(model: &'static str) -> Self {
        Self {
            model,
            tokens: vec!["<unk>", "<s>", "</s>", "a", "b", "ab"],
            kinds: vec![2, 3, 3, 1, 1, 1],
            scores: vec![0.0, 0.0, 0.0, -1.0, -2.0, -3.0],
            merges: vec!["a b"],
            more: vec![("tokenizer.ggml.unknown_token_id", Meta::U64(0))],
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut writer = GgufWriter::new("llama");
        writer.meta("tokenizer.ggml.model", self.model);
        let array = |words: &[&str]| -> Meta { words.iter().map(|w| Meta::from(*w)).collect() };
        writer.meta("tokenizer.ggml.tokens", array(&self.tokens));
        writer.meta("tokenizer.ggml.merges", array(&self.merges));
        let kinds: Meta = self.kinds.iter().map(|k| Meta::U64(*k)).collect();
        let scores: Meta = self.scores.iter().map(|s| Meta::F64(*s)).collect();
        writer.meta("tokenizer.ggml.token_type", kinds);
        writer.meta("tokenizer.ggml.scores", scores);
        if self.model == "gpt2" {
            writer.meta("tokenizer.ggml.pre", "gpt-2");
        }
        for (key, value) in &self.more {
            writer.meta(key, value.clone());
        }
        let mut bytes = Vec::new();
        writer.write(&mut bytes, |_, _| Ok(())).unwrap();
        bytes
    }

    fn written(&self) -> Written {
        written("vocab.gguf", &self.bytes())
    }
}

/// The only place where these bytes stand, replaced by others.
fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = bytes.windows(old.len()).position(|w| w == old).unwrap();
    let mut bytes = bytes.to_vec();
    bytes.splice(at..at + old.len(), new.iter().copied());
    bytes
}

#[test]
fn sound_vocabularies_of_every_kind_are_used() {
    for model in ["gpt2", "llama", "t5"] {
        use_wholly(&Vocabulary::of(model).written().path).expect(model);
    }
}

#[test]
fn arrays_that_do_not_match_the_tokens_are_refused() {
    for model in ["gpt2", "llama", "t5"] {
        let mut short = Vocabulary::of(model);
        short.scores.truncate(2);
        refused(&short.written(), &["2 scores for 6 tokens"]);
        let mut short = Vocabulary::of(model);
        short.kinds.pop();
        refused(&short.written(), &["5 token types for 6 tokens"]);
    }
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused() {
    let mut merges = Vocabulary::of("gpt2");
    merges.merges = vec!["a x"];
    refused(&merges.written(), &["no usable tokenizer"]);
    let mut other = Vocabulary::of("gpt2");
    other.model = "own";
    refused(&other.written(), &["own", "gpt2, llama and t5"]);
    let bytes = replaced(&Vocabulary::of("gpt2").bytes(), b"gpt-2", b"gpt-9");
    refused(
        &written("vocab.gguf", &bytes),
        &["pre-tokenizer 'gpt-9'", "tokenizer.json"],
    );
    let numbers: Meta = [Meta::U64(1), Meta::U64(2)].into_iter().collect();
    let mut writer = GgufWriter::new("llama");
    writer.meta("tokenizer.ggml.model", "llama");
    writer.meta("tokenizer.ggml.tokens", numbers);
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |_, _| Ok(())).unwrap();
    refused(&written("vocab.gguf", &bytes), &["a token is not text"]);
}

#[test]
fn counts_and_ids_beyond_the_file_are_harmless() {
    let bytes = Vocabulary::of("llama").bytes();
    let tokens = b"tokenizer.ggml.tokens\x09\0\0\0\x08\0\0\0";
    let counted = [&tokens[..], &6u64.to_le_bytes()].concat();
    for count in [7, 1 << 20, 1 << 40, 1 << 61, u64::MAX] {
        let huge = [&tokens[..], &u64::to_le_bytes(count)].concat();
        let bytes = replaced(&bytes, &counted, &huge);
        refused(&written("vocab.gguf", &bytes), &[]);
    }
    for id in [6, u64::from(u32::MAX), u64::MAX] {
        for key in ["bos", "eos", "unknown"] {
            let mut ids = Vocabulary::of("llama");
            let key = match key {
                "bos" => "tokenizer.ggml.bos_token_id",
                "eos" => "tokenizer.ggml.eos_token_id",
                _ => "tokenizer.ggml.unknown_token_id",
            };
            ids.more = vec![(key, Meta::U64(id))];
            let _ = use_wholly(&ids.written().path);
        }
    }
}

#[test]
fn tokens_that_are_no_text_end_in_an_error_or_a_tokenizer() {
    for model in ["gpt2", "llama", "t5"] {
        let mut marked = Vocabulary::of(model);
        marked.tokens[5] = "QQQ";
        marked.merges.clear();
        for wrong in [b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\xc3\x28\x00"] {
            let bytes = replaced(&marked.bytes(), b"QQQ", wrong);
            let file = written("vocab.gguf", &bytes);
            if let Err(error) = use_wholly(&file.path) {
                assert!(error.to_string().contains("vocab.gguf"), "{error}");
            }
        }
    }
}

#[test]
fn long_tokens_cost_no_more_than_their_length() {
    let long: &'static str = "a".repeat(1 << 20).leak();
    let mut vocabulary = Vocabulary::of("llama");
    vocabulary.tokens[5] = long;
    use_wholly(&vocabulary.written().path).expect("a tokenizer");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn damaged_vocabularies_never_panic(
        model in prop::sample::select(vec!["gpt2", "llama", "t5"]),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        word in prop::option::of((any::<prop::sample::Index>(), any::<u64>(), 0..64u32)),
    ) {
        let mut bytes = Vocabulary::of(model).bytes();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some((at, value, shift)) = word {
            let at = at.index(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&(value >> shift).to_le_bytes());
        }
        let _ = use_wholly(&written("vocab.gguf", &bytes).path);
    }

    #[test]
    fn damaged_tokenizer_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"0123456789\"{}[],:aeltrufns ".to_vec())), 1..4),
    ) {
        let mut bytes = tokenizer_json();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = use_wholly(&written("tokenizer.json", &bytes).path);
    }

    #[test]
    fn damaged_templates_never_panic(
        cut in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"{}%#'\"()[]|.\\- ".to_vec())), 0..6),
    ) {
        let mut bytes = std::fs::read(goldens::path("templates/features.jinja")).unwrap();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len()).max(bytes.len() / 2));
        let source = String::from_utf8_lossy(&bytes);
        if let Ok(template) = ChatTemplate::new("damaged", &source) {
            let _ = template.render(&Render::default());
        }
    }
}

#[test]
fn templates_that_never_end_or_fill_memory_are_stopped() {
    let loops = "{% for i in range(99999) %}".repeat(4);
    let ends = "{% endfor %}".repeat(4);
    for (source, words) in [
        ("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}".to_string(), "recursion"),
        ("{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}".to_string(), "recursion"),
        (format!("{loops}{ends}"), "fuel"),
        (format!("{loops}{{{{ 'text' * 10000 }}}}{ends}"), "longer than"),
        ("{{ 'text' * 1000000000000 }}".to_string(), "too large"),
        ("{{ range(1000000000) }}".to_string(), "range"),
        ("{{ '%999999999999d' % 1 }}".to_string(), "width"),
        ("{{ '%*d' % (999999999999, 1) }}".to_string(), "width"),
        ("{{ '{:>999999999999}'.format(1) }}".to_string(), "width"),
        ("{{ '{:>{}}'.format(1, 999999999999) }}".to_string(), "width"),
        ("{{ 'a\\nb'|indent(999999999999) }}".to_string(), "width"),
        ("{{ 'a\\nb'|indent(width=999999999999) }}".to_string(), "width"),
        ("{{ [1]|batch(999999999999, 0) }}".to_string(), "width"),
        ("{{ [1]|slice(999999999999) }}".to_string(), "width"),
        ("{{ [1]|tojson(indent=999999999999) }}".to_string(), "width"),
        (
            "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}".to_string(),
            "longer than",
        ),
        (
            "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}".to_string(),
            "longer than",
        ),
    ] {
        let template = ChatTemplate::new("chat_template.jinja", &source).expect("syntax");
        let error = template.render(&Render::default()).expect_err(&source).to_string();
        assert!(error.starts_with("chat_template.jinja: "), "{error}");
        assert!(error.contains(words), "{source}: {error}");
    }
}

#[test]
fn long_expressions_within_the_bounds_are_rendered() {
    for source in [
        format!("{{{{ {}1 }}}}", "not ".repeat(900)),
        format!("{{{{ {}1 }}}}", "-".repeat(900)),
        format!("{{{{ a{} is defined }}}}", "|default({})".repeat(160)),
        format!("{{{{ 1{} }}}}", " ~ 1".repeat(480)),
        format!("{{{{ 1{} }}}}", " if 0 else 1".repeat(240)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(490)),
    ] {
        let template = ChatTemplate::new("long", &source).expect("template");
        template.render(&Render::default()).expect("text");
    }
}

#[test]
fn templates_that_are_no_templates_are_refused() {
    let nested = |open: &str, n: usize| format!("{{{{ {} }}}}", open.repeat(n));
    for source in [
        "{% if %}".to_string(),
        "{{ ".to_string(),
        "{% for x in y %}".to_string(),
        nested("(", 100_000),
        nested("'a' % (", 100_000),
        nested("not ", 100_000),
        nested("not ", 900),
        nested("-", 900),
        format!("{{{{ a{} }}}}", ".b".repeat(100_000)),
        format!("{{{{ a{} }}}}", "|b".repeat(100_000)),
        format!("{{{{ a{} }}}}", " ~ b".repeat(100_000)),
        format!("{{{{ a{} }}}}", " if b else a".repeat(100_000)),
        format!(
            "{{% if a %}}{}{{% endif %}}",
            "{% elif b %}".repeat(100_000)
        ),
        "{% if true %}".repeat(100_000),
    ] {
        let error = ChatTemplate::new("chat_template.jinja", &source).map(drop);
        let error = error.expect_err("no template").to_string();
        assert!(error.starts_with("chat_template.jinja: "), "{error}");
        assert!(error.len() < 1000, "{} bytes of message", error.len());
    }
}
