//! Routing by words: each expert's score is the sum of the weights of its keywords that the message has.
//!
//! A message is cut into words once; each word is looked up in one table of all experts' first words, so the cost
//! grows with the message and hardly with the experts. A keyword counts once however often it is there. How much is
//! enough depends on how the message opens ([`Opening`]): 1 for a request, half as much again for a question, nothing
//! for an explanation.

use super::manifest::Manifest;
use super::opening::Opening;
use super::router::Choice;
use std::collections::HashMap;

/// Score from which an expert may take a request.
const REQUEST: f32 = 1.0;

/// Score from which an expert may take a question: it names a subject more often than it asks for work on it.
const QUESTION: f32 = 1.5;

/// How far an expert must be ahead of the next to win without priority.
const MARGIN: f32 = 0.25;

/// Lower-case words of a text: runs of letters and digits, apostrophes left out.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !(c.is_alphanumeric() || is_apostrophe(c)))
        .map(|word| {
            let letters = word.chars().filter(|c| !is_apostrophe(*c));
            letters.flat_map(char::to_lowercase).collect::<String>()
        })
        .filter(|word| !word.is_empty())
}

fn is_apostrophe(c: char) -> bool {
    c == '\'' || c == '\u{2019}'
}

/// A keyword or exclusion of one expert.
#[derive(Clone, Debug)]
struct Entry {
    expert: usize,
    /// Words after the first.
    rest: Vec<String>,
    text: String,
    /// None: an exclusion.
    weight: Option<f32>,
}

/// Chooses by the words of a message.
#[derive(Clone, Debug, Default)]
pub struct KeywordRouter {
    names: Vec<String>,
    priorities: Vec<i32>,
    entries: Vec<Entry>,
    /// From a first word to its entries.
    index: HashMap<String, Vec<usize>>,
}

/// What the words of a message say about one expert.
#[derive(Clone, Debug, Default)]
struct Evidence<'a> {
    score: f32,
    found: Vec<&'a str>,
    excluded: Option<&'a str>,
}

impl KeywordRouter {
    /// A router over these experts' keywords.
    pub fn new<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> Self {
        let mut router = Self::default();
        for (expert, manifest) in manifests.into_iter().enumerate() {
            router.names.push(manifest.name.clone());
            router.priorities.push(manifest.priority);
            for keyword in &manifest.keywords {
                router.add(expert, &keyword.text, Some(keyword.weight));
            }
            for text in &manifest.exclude {
                router.add(expert, text, None);
            }
        }
        router
    }

    fn add(&mut self, expert: usize, text: &str, weight: Option<f32>) {
        let mut words = words(text);
        // A manifest's texts have words; without any there is nothing to look up.
        let Some(first) = words.next() else { return };
        let rest: Vec<String> = words.collect();
        let listed = self.index.entry(first).or_default();
        let same = |i: &&usize| {
            let entry = &self.entries[**i];
            let kind = entry.weight.is_some() == weight.is_some();
            entry.expert == expert && entry.rest == rest && kind
        };
        // One that is listed twice would count twice.
        if let Some(index) = listed.iter().find(same) {
            let entry = &mut self.entries[*index];
            entry.weight = entry.weight.zip(weight).map(|(a, b)| a.max(b));
            return;
        }
        listed.push(self.entries.len());
        self.entries.push(Entry {
            expert,
            rest,
            text: text.into(),
            weight,
        });
    }

    /// Chooses an expert for a message, or the base.
    pub fn route(&self, message: &str) -> Choice {
        let words: Vec<String> = words(message).collect();
        let evidence = self.evidence(&words);
        let scores: Vec<f32> = evidence.iter().map(|e| e.score).collect();
        let base = |reason: String| Choice {
            expert: None,
            score: scores.iter().copied().fold(0.0, f32::max),
            scores: scores.clone(),
            reason,
        };
        let needed = match Opening::of(&words) {
            Opening::Request => REQUEST,
            Opening::Question => QUESTION,
            Opening::Explanation => return base("the message asks for an explanation".into()),
        };
        let fits = |i: &usize| evidence[*i].excluded.is_none() && scores[*i] >= needed;
        let fitting: Vec<usize> = (0..scores.len()).filter(fits).collect();
        let most = fitting.iter().map(|i| scores[*i]).fold(0.0, f32::max);
        let near = |i: &usize| scores[*i] > most - MARGIN;
        let near: Vec<usize> = fitting.into_iter().filter(near).collect();
        let top = near.iter().map(|i| self.priorities[*i]).max();
        let first: Vec<usize> = near
            .into_iter()
            .filter(|i| Some(self.priorities[*i]) == top)
            .collect();
        match first[..] {
            [] => base(self.why_none(&evidence, needed)),
            [expert] => Choice {
                expert: Some(expert),
                score: scores[expert],
                reason: format!("the message has {}", evidence[expert].found.join(", ")),
                scores,
            },
            _ => {
                let names: Vec<&str> = first.iter().map(|i| self.names[*i].as_str()).collect();
                base(format!("{} fit equally well", names.join(" and ")))
            }
        }
    }

    /// The exclusion of each expert that a message, given as words, has.
    pub(crate) fn exclusions(&self, words: &[String]) -> Vec<Option<&str>> {
        let evidence = self.evidence(words);
        evidence.into_iter().map(|e| e.excluded).collect()
    }

    fn evidence(&self, words: &[String]) -> Vec<Evidence<'_>> {
        let mut evidence = vec![Evidence::default(); self.names.len()];
        let mut seen = vec![false; self.entries.len()];
        for (at, word) in words.iter().enumerate() {
            for index in self.index.get(word).into_iter().flatten() {
                let entry = &self.entries[*index];
                if seen[*index] || !words[at + 1..].starts_with(&entry.rest) {
                    continue;
                }
                seen[*index] = true;
                let own = &mut evidence[entry.expert];
                match entry.weight {
                    Some(weight) => {
                        own.score += weight;
                        own.found.push(&entry.text);
                    }
                    None => own.excluded = Some(&entry.text),
                }
            }
        }
        evidence
    }

    fn why_none(&self, evidence: &[Evidence<'_>], needed: f32) -> String {
        let best = (0..evidence.len())
            .filter(|i| evidence[*i].score > 0.0)
            .max_by(|a, b| evidence[*a].score.total_cmp(&evidence[*b].score));
        let Some(best) = best else {
            return "no expert's keywords are in the message".into();
        };
        let (name, score) = (&self.names[best], evidence[best].score);
        match evidence[best].excluded {
            Some(word) if score >= needed => format!("'{word}' rules {name} out"),
            _ => format!("{name} comes nearest, with {score:.2} of {needed:.2}"),
        }
    }
}
