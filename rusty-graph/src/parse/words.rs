//! A line of the text form as words and attributes.

use std::collections::HashMap;
use std::str::FromStr;

/// What is left of a line: words, then attributes `key=value`.
pub(super) struct Words<'a> {
    words: std::vec::IntoIter<&'a str>,
    attributes: HashMap<&'a str, &'a str>,
}

/// What is read, or why it cannot be.
pub(super) type Parsed<T> = std::result::Result<T, String>;

impl<'a> Words<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        let (attributes, words): (Vec<&str>, Vec<&str>) = line
            .split_whitespace()
            .partition(|w| w.len() > 1 && w.contains('='));
        Self {
            words: words.into_iter(),
            attributes: attributes
                .into_iter()
                .filter_map(|w| w.split_once('='))
                .collect(),
        }
    }

    /// The next word.
    pub(super) fn word(&mut self, what: &str) -> Parsed<&'a str> {
        self.words
            .next()
            .ok_or_else(|| format!("{what} is missing"))
    }

    /// The next word, which must be this one.
    pub(super) fn exactly(&mut self, word: &str) -> Parsed<()> {
        match self.words.next() {
            Some(found) if found == word => Ok(()),
            found => Err(format!(
                "'{word}' expected, found '{}'",
                found.unwrap_or("the end")
            )),
        }
    }

    /// The next word as a number.
    pub(super) fn number<T: FromStr>(&mut self, what: &str) -> Parsed<T> {
        number(self.word(what)?, what)
    }

    /// The words that are left.
    pub(super) fn rest(&mut self) -> impl Iterator<Item = &'a str> {
        self.words.by_ref()
    }

    /// An attribute, which is then gone; `None`: it is not stated.
    pub(super) fn stated(&mut self, key: &str) -> Option<&'a str> {
        self.attributes.remove(key)
    }

    /// An attribute that must be stated.
    pub(super) fn attribute(&mut self, key: &str) -> Parsed<&'a str> {
        self.stated(key).ok_or_else(|| format!("{key}= is missing"))
    }

    /// An attribute's value.
    pub(super) fn value<T: FromStr>(&mut self, key: &str) -> Parsed<T> {
        number(self.attribute(key)?, key)
    }

    /// The value of an attribute that may be missing.
    pub(super) fn optional<T: FromStr>(&mut self, key: &str) -> Parsed<Option<T>> {
        self.stated(key).map(|word| number(word, key)).transpose()
    }

    /// The line must have been read whole.
    pub(super) fn end(&mut self) -> Parsed<()> {
        match (self.words.next(), self.attributes.keys().next()) {
            (Some(word), _) => Err(format!("'{word}' does not belong here")),
            (None, Some(key)) => Err(format!("'{key}=' does not belong here")),
            (None, None) => Ok(()),
        }
    }
}

/// A word as a value.
pub(super) fn number<T: FromStr>(word: &str, what: &str) -> Parsed<T> {
    word.parse()
        .map_err(|_| format!("{what}: '{word}' is not a value of its kind"))
}

/// The number of an id such as `%7` or `site3`.
pub(super) fn id(word: &str, prefix: &str) -> Parsed<u32> {
    let digits = word.strip_prefix(prefix);
    digits
        .and_then(|d| d.parse().ok())
        .ok_or_else(|| format!("'{word}' is no {prefix}N"))
}
