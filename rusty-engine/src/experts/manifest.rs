//! `expert.toml`: what an expert is called, which adapter it is, and which messages it is for.

use super::keywords::words;
use crate::{Error, Result};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Name of the file in an expert's folder.
pub(crate) const FILE: &str = "expert.toml";

/// Largest manifest that is read. A list of keywords that needs more is no list of keywords.
const MAX_BYTES: u64 = 64 << 10;

/// Longest name.
const MAX_NAME: usize = 64;

/// Largest weight of a keyword, so that sums stay finite.
const MAX_WEIGHT: f32 = 1000.0;

/// What a choice of no expert is called; no expert may take the name.
pub(crate) const BASE: &str = "base";

/// Where a template takes the message.
const PLACE: &str = "{prompt}";

/// One `expert.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// What the expert is called: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The adapter: a path relative to the manifest's folder.
    pub adapter: PathBuf,
    /// The model that the adapter was made for. Another model's name is a warning only: shapes decide whether an
    /// adapter fits, and names are spelled in many ways.
    #[serde(default)]
    pub base: Option<String>,
    /// What the expert is asked, with `{prompt}` where the message goes; none: the message as it is.
    #[serde(default)]
    pub template: Option<String>,
    /// Words and phrases that speak for the expert.
    #[serde(default)]
    pub keywords: Vec<Keyword>,
    /// Words and phrases that rule the expert out.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Messages as the expert should get, for the embedding router.
    #[serde(default)]
    pub examples: Vec<String>,
    /// Messages near to the examples that the expert should not get, for the embedding router.
    #[serde(default)]
    pub counter_examples: Vec<String>,
    /// Who wins where two experts are equally good: the higher one.
    #[serde(default)]
    pub priority: i32,
    /// Experts are loaded in ascending order, and by name within it.
    #[serde(default)]
    pub load_order: i32,
}

/// A word or phrase and how much it says: `"sql"`, or `{ text = "sql", weight = 0.5 }`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Spelling")]
pub struct Keyword {
    /// The word or phrase.
    pub text: String,
    /// How much finding it adds to the expert's score; 1 alone is enough for a plain request.
    pub weight: f32,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "expected a text, or { text = \"...\", weight = 1.0 }"
)]
enum Spelling {
    Text(String),
    Weighted { text: String, weight: f32 },
}

impl From<Spelling> for Keyword {
    fn from(spelling: Spelling) -> Self {
        match spelling {
            Spelling::Text(text) => Self { text, weight: 1.0 },
            Spelling::Weighted { text, weight } => Self { text, weight },
        }
    }
}

impl Manifest {
    /// Reads an `expert.toml`.
    ///
    /// # Errors
    /// [`Error::Expert`] with the path: the file cannot be read, is too large or no text, or as [`Manifest::parse`].
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |reason: String| Error::Expert {
            path: path.into(),
            reason,
        };
        // Opening a pipe would wait for its writer.
        let is_file = std::fs::metadata(path).map_err(|e| wrong(e.to_string()))?;
        if !is_file.is_file() {
            return Err(wrong("is no file".into()));
        }
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|e| wrong(e.to_string()))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(wrong(format!("is larger than {} KiB", MAX_BYTES >> 10)));
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            wrong(format!("is not UTF-8 from byte {at} on"))
        })?;
        Self::parse(path, &text)
    }

    /// Reads a manifest from its text; `path` names it in errors.
    ///
    /// # Errors
    /// [`Error::Expert`] with the path: it is no TOML, a field is missing, unknown or of the wrong type, or a value
    /// means nothing.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let wrong = |reason: String| Error::Expert {
            path: path.into(),
            reason,
        };
        let manifest: Self =
            toml::from_str(text).map_err(|e| wrong(e.to_string().trim_end().into()))?;
        match manifest.problem() {
            Some(problem) => Err(wrong(problem)),
            None => Ok(manifest),
        }
    }

    /// What the expert is asked for a message.
    pub fn prompt(&self, message: &str) -> String {
        match &self.template {
            Some(template) => template.replacen(PLACE, message, 1),
            None => message.into(),
        }
    }

    /// Whether a model of this name is the one that the adapter was made for, as far as names tell.
    pub fn suits(&self, model: &str) -> bool {
        let plain = |text: &str| -> String {
            let letters = text.chars().filter(|c| c.is_alphanumeric());
            letters.flat_map(char::to_lowercase).collect()
        };
        self.base
            .as_deref()
            .is_none_or(|base| plain(model).contains(&plain(base)))
    }

    fn problem(&self) -> Option<String> {
        let (name, places) = (&self.name, |t: &String| t.matches(PLACE).count());
        let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.chars().count() > MAX_NAME || !name.chars().all(plain) {
            return Some(format!(
                "name {name:?} should be 1 to {MAX_NAME} letters, digits, '-', '_' and '.'"
            ));
        }
        if name.eq_ignore_ascii_case(BASE) {
            return Some(format!("name '{name}' is what no expert is called"));
        }
        if self.adapter.as_os_str().is_empty() {
            return Some("adapter is empty".into());
        }
        if self.template.as_ref().is_some_and(|t| places(t) != 1) {
            return Some(format!("template should have {PLACE} once"));
        }
        if self.keywords.is_empty() && self.examples.is_empty() {
            return Some(
                "there are neither keywords nor examples, so no message would reach it".into(),
            );
        }
        let bad = |k: &&Keyword| !(k.weight > 0.0 && k.weight <= MAX_WEIGHT);
        if let Some(Keyword { text, weight }) = self.keywords.iter().find(bad) {
            return Some(format!(
                "keyword {text:?}: a weight of {weight} is not above 0 and at most {MAX_WEIGHT}"
            ));
        }
        let keywords = self.keywords.iter().map(|k| ("keyword", &k.text));
        let exclude = self.exclude.iter().map(|text| ("exclude", text));
        let examples = self.examples.iter().map(|text| ("example", text));
        let counter = self.counter_examples.iter();
        let counter = counter.map(|text| ("counter-example", text));
        let mut texts = keywords.chain(exclude).chain(examples).chain(counter);
        texts
            .find(|(_, text)| words(text).next().is_none())
            .map(|(what, text)| format!("{what} {text:?} has neither letters nor digits"))
    }
}
