//! What a configuration says of modules by their names: lists of endings, and expressions as Python's `re` reads them, which may
//! look around and refer back.

use crate::{Error, Result};
use fancy_regex::{Regex, RegexBuilder};
use serde_json::Value;
use std::path::Path;

/// Largest rank accepted: beyond it a full weight would be smaller.
pub(crate) const MAX_RANK: u64 = 65_536;

/// Steps back that an expression may take on a name before it counts as one that does not match; names have some dozens of letters.
const STEPS_BACK: usize = 100_000;

/// An expression over names of modules.
#[derive(Debug)]
pub(crate) struct Expression(Regex);

impl Expression {
    fn new(pattern: &str) -> Result<Self, String> {
        let regex = RegexBuilder::new(pattern)
            .backtrack_limit(STEPS_BACK)
            .build();
        regex.map(Self).map_err(|e| e.to_string())
    }

    /// One that whole names match.
    fn whole(pattern: &str) -> Result<Self, String> {
        Self::new(&format!("^(?:{pattern})$"))
    }

    fn matches(&self, name: &str) -> bool {
        self.0.is_match(name).unwrap_or_else(|error| {
            tracing::warn!("'{}' is taken not to match '{name}': {error}", self.0);
            false
        })
    }
}

/// Which modules a setting speaks of.
#[derive(Debug)]
pub(crate) enum Targets {
    /// All linear layers, or what the tensors show.
    All,
    /// Modules whose names are one of these, or end with one behind a dot.
    Ends(Vec<String>),
    /// Modules whose whole names match.
    Expression(Expression),
}

impl Targets {
    /// Those of a key; all where it is not there.
    pub fn parse(key: &str, value: Option<&Value>) -> Result<Self, String> {
        match value {
            None | Some(Value::Null) => Ok(Targets::All),
            Some(Value::String(word)) if word == "all-linear" => Ok(Targets::All),
            value => Self::parse_or_none(key, value),
        }
    }

    /// Those of a key for which no word stands for all; none where it is not there.
    pub fn parse_or_none(key: &str, value: Option<&Value>) -> Result<Self, String> {
        match value {
            None | Some(Value::Null) => Ok(Targets::Ends(vec![])),
            Some(Value::String(pattern)) => Expression::whole(pattern)
                .map(Targets::Expression)
                .map_err(|error| format!("'{key}' is no expression: {error}")),
            Some(Value::Array(items)) => names(key, items).map(Targets::Ends),
            Some(_) => Err(format!("'{key}' is neither a list nor an expression")),
        }
    }

    pub fn contain(&self, module: &str) -> bool {
        let ends = |name: &String| {
            let rest = module.strip_suffix(name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        match self {
            Targets::All => true,
            Targets::Ends(names) => names.iter().any(ends),
            Targets::Expression(pattern) => pattern.matches(module),
        }
    }

    /// The same by PEFT's rule for IA3's feed-forward modules: an ending may begin inside a word.
    pub fn contain_by_letters(&self, module: &str) -> bool {
        match self {
            Targets::Ends(names) => names.iter().any(|name| module.ends_with(name)),
            others => others.contain(module),
        }
    }

    /// Whether they are a list that has the whole name.
    pub fn name(&self, module: &str) -> bool {
        matches!(self, Targets::Ends(names) if names.iter().any(|n| n == module))
    }
}

/// Names in a list.
pub(crate) fn names(key: &str, items: &[Value]) -> Result<Vec<String>, String> {
    let names = items.iter().map(|i| i.as_str().map(str::to_string));
    let names = names.collect::<Option<_>>();
    names.ok_or_else(|| format!("'{key}' holds what is no name"))
}

/// Numbers that hold for the modules whose names end with what a pattern matches.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Vec<(Expression, f64)>);

impl Numbers {
    /// Those of a key. PEFT matches a pattern against the end of a name: `(.*\.)?(PATTERN)$`.
    pub fn parse(path: &Path, key: &str, value: Option<&Value>) -> Result<Self> {
        let malformed = |reason: String| Error::malformed(path, reason);
        let fields = match value {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Object(fields)) => fields,
            Some(_) => return Err(malformed(format!("'{key}' has no numbers by pattern"))),
        };
        let numbers = fields.iter().map(|(pattern, value)| {
            let wrong = |reason: &str| malformed(format!("'{key}': '{pattern}' {reason}"));
            let expression = Expression::new(&format!(r"^(.*\.)?({pattern})$"));
            let expression = expression.map_err(|e| wrong(&format!("is no expression: {e}")))?;
            let value = value.as_f64().filter(|v| v.is_finite());
            Ok((expression, value.ok_or_else(|| wrong("has no number"))?))
        });
        numbers.collect::<Result<_>>().map(Self)
    }

    /// The same where all are ranks.
    pub fn ranks(path: &Path, key: &str, value: Option<&Value>) -> Result<Self> {
        let numbers = Self::parse(path, key, value)?;
        let is_rank = |rank: f64| rank.fract() == 0.0 && (1.0..=MAX_RANK as f64).contains(&rank);
        match numbers.0.iter().find(|(_, rank)| !is_rank(*rank)) {
            None => Ok(numbers),
            Some((_, rank)) => {
                let reason = format!("'{key}': {rank} is no rank from 1 to {MAX_RANK}");
                Err(Error::malformed(path, reason))
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the first pattern has that matches.
    pub fn of(&self, module: &str) -> Option<f64> {
        let mut numbers = self.0.iter();
        let found = numbers.find(|(pattern, _)| pattern.matches(module));
        found.map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_are_read_as_python_reads_them() {
        let pattern = json!(r"^(?!.*self_attn).*\.down_proj\Z");
        let targets = Targets::parse("target_modules", Some(&pattern)).expect("one");
        assert!(targets.contain("model.layers.0.mlp.down_proj"));
        assert!(!targets.contain("model.layers.0.self_attn.down_proj"));
        assert!(!targets.contain("model.layers.0.mlp.down_proj.x"));
        let numbers = json!({r"(?<!k_)(?<!q_)proj": 4, "q_proj": 2, "k_proj": -1});
        let numbers = Numbers::parse(Path::new("f"), "alpha_pattern", Some(&numbers));
        let numbers = numbers.expect("patterns");
        assert_eq!(numbers.of("layers.0.proj"), Some(4.0));
        assert_eq!(numbers.of("layers.0.q_proj"), Some(2.0));
        assert_eq!(numbers.of("layers.0.k_proj"), Some(-1.0));
        assert_eq!(numbers.of("layers.0.v_proj"), None);
        // One that tries all ways through a name ends.
        let slow = Expression::whole("(a|aa|(?=b)b)+c").expect("one");
        assert!(!slow.matches(&"a".repeat(200)));
    }

    #[test]
    fn one_word_stands_for_all_targets_and_for_nothing_else() {
        let word = json!("all-linear");
        let targets = Targets::parse("target_modules", Some(&word)).expect("all");
        let excluded = Targets::parse_or_none("exclude_modules", Some(&word)).expect("none");
        assert!(targets.contain("mlp.down_proj") && !excluded.contain("mlp.down_proj"));
    }

    #[test]
    fn what_holds_no_ranks_is_refused() {
        for wrong in [
            json!([8]),
            json!(8),
            json!({"q_proj": "8"}),
            json!({"q_proj": 0.5}),
        ] {
            let ranks = Numbers::ranks(Path::new("config"), "rank_pattern", Some(&wrong));
            let error = ranks.expect_err("no ranks").to_string();
            assert!(
                error.contains("config") && error.contains("rank_pattern"),
                "{error}"
            );
        }
    }

    #[test]
    fn endings_of_feed_forward_modules_may_begin_inside_a_word() {
        let of = |value: Value| {
            let targets = Targets::parse_or_none("feedforward_modules", Some(&value));
            targets.expect("some").contain_by_letters("mlp.down_proj")
        };
        assert!(of(json!(["proj"])));
        assert!(!of(json!("all-linear")));
        assert!(!of(json!(["up_proj"])));
    }
}
