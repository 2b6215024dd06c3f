//! Routing by meaning: a message goes to the expert whose examples the loaded model finds most like it.
//!
//! A text's vector is the mean of the base model's hidden states over its tokens, less the mean over all examples (the
//! states of a language model share a large common part, Ethayarajh, arXiv 1909.00512, which says nothing about
//! the text). A score is the mean cosine with the two nearest examples. The base has examples of its own: questions
//! about the world. An expert must be nearer than those and than its own counter-examples, and about as near as its
//! examples are to each other. Its `exclude` words rule it out here too.

use super::keywords::{KeywordRouter, words};
use super::manifest::{BASE, Manifest};
use super::opening::Opening;
use super::router::Choice;
use crate::Result;
use crate::engine::Engine;
use crate::request::Prompt;

/// How far an expert must be ahead of the base and of the next expert.
const MARGIN: f32 = 0.05;

/// Share of the likeness among an expert's own examples that a message must have.
const LIKENESS: f32 = 0.5;

/// Messages that no expert is for.
const GENERAL: &[&str] = &[
    "What is the capital of Spain?",
    "Who wrote Hamlet?",
    "Explain what a computer is",
    "What is gravity?",
    "What is artificial intelligence?",
    "Hello, how are you?",
    "Tell me a story about a dog",
    "Why is the sky blue?",
    "How do I bake bread?",
    "Define the word river",
];

/// What an example speaks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Base,
    Expert(usize),
    /// Against an expert.
    Not(usize),
}

#[derive(Clone)]
struct Example {
    class: Class,
    vector: Vec<f32>,
}

/// Chooses by the model's hidden states.
#[derive(Clone)]
pub struct EmbeddingRouter {
    engine: Engine,
    names: Vec<String>,
    exclusions: KeywordRouter,
    examples: Vec<Example>,
    mean: Vec<f32>,
    /// What each expert's score must reach.
    bounds: Vec<f32>,
}

impl EmbeddingRouter {
    /// A router over these experts' examples. Costs a prefill of each of them.
    ///
    /// # Errors
    /// The model has no tokenizer, or an example is longer than the context.
    pub fn new<'a>(
        manifests: impl IntoIterator<Item = &'a Manifest>,
        engine: &Engine,
    ) -> Result<Self> {
        let manifests: Vec<&Manifest> = manifests.into_iter().collect();
        let mut router = Self {
            engine: engine.clone(),
            names: manifests.iter().map(|m| m.name.clone()).collect(),
            exclusions: KeywordRouter::new(manifests.iter().copied()),
            examples: vec![],
            mean: vec![],
            bounds: vec![],
        };
        for text in GENERAL {
            router.add(Class::Base, text)?;
        }
        for (expert, manifest) in manifests.into_iter().enumerate() {
            for text in &manifest.examples {
                router.add(Class::Expert(expert), text)?;
            }
            for text in &manifest.counter_examples {
                router.add(Class::Not(expert), text)?;
            }
        }
        router.center();
        router.bounds = (0..router.names.len()).map(|e| router.bound(e)).collect();
        Ok(router)
    }

    fn add(&mut self, class: Class, text: &str) -> Result<()> {
        let vector = self.pooled(text)?;
        self.examples.push(Example { class, vector });
        Ok(())
    }

    /// Mean hidden state over a text's tokens.
    fn pooled(&self, text: &str) -> Result<Vec<f32>> {
        let session = self.engine.session();
        let tokens = session.prompt_tokens(&Prompt::Text(text.into()))?;
        let states = self.engine.hidden(&tokens, None)?;
        let width = states.len() / tokens.len();
        let mut sum = vec![0.0; width];
        for state in states.chunks_exact(width) {
            add(&mut sum, state, 1.0 / tokens.len() as f32);
        }
        Ok(sum)
    }

    /// Takes the mean of all classes' means out of every vector, so that a class with many examples does not move it.
    fn center(&mut self) {
        let width = self.examples.first().map_or(0, |e| e.vector.len());
        let mut mean = vec![0.0; width];
        let experts = (0..self.names.len()).map(Class::Expert);
        let classes = [Class::Base].into_iter().chain(experts);
        let classes: Vec<Vec<&Example>> = classes
            .map(|class| self.of(class).collect::<Vec<_>>())
            .filter(|own| !own.is_empty())
            .collect();
        for own in &classes {
            for example in own {
                let share = (own.len() * classes.len()) as f32;
                add(&mut mean, &example.vector, 1.0 / share);
            }
        }
        self.mean = mean;
        for example in &mut self.examples {
            add(&mut example.vector, &self.mean, -1.0);
            normalize(&mut example.vector);
        }
    }

    fn of(&self, class: Class) -> impl Iterator<Item = &Example> {
        self.examples.iter().filter(move |e| e.class == class)
    }

    /// What a message must score: a share of what the expert's own examples score among the others.
    fn bound(&self, expert: usize) -> f32 {
        let own: Vec<&Example> = self.of(Class::Expert(expert)).collect();
        let scores = own.iter().map(|example| {
            let others = own.iter().filter(|o| !std::ptr::eq(**o, *example));
            nearest(&example.vector, others.map(|o| &o.vector[..]))
        });
        let sum: f32 = scores.sum();
        LIKENESS * (sum / own.len().max(1) as f32).max(0.0)
    }

    /// Chooses an expert for a message, or the base, as where there is no room to compare it. Costs a prefill of the
    /// message.
    pub fn route(&self, message: &str) -> Choice {
        let said: Vec<String> = words(message).collect();
        let base = |score, scores, reason: String| Choice {
            expert: None,
            score,
            scores,
            reason,
        };
        if said.is_empty() || Opening::of(&said) == Opening::Explanation {
            let reason = "the message asks for an explanation, or for nothing";
            return base(0.0, vec![0.0; self.names.len()], reason.into());
        }
        let mut vector = match self.pooled(message) {
            Ok(vector) => vector,
            // The conversation may hold all pages; the base answers without being asked which.
            Err(error) => {
                let none = vec![0.0; self.names.len()];
                return base(0.0, none, format!("the message was not compared: {error}"));
            }
        };
        add(&mut vector, &self.mean, -1.0);
        normalize(&mut vector);
        let score = |class| nearest(&vector, self.of(class).map(|e| &e.vector[..]));
        let scores: Vec<f32> = (0..self.names.len())
            .map(|e| score(Class::Expert(e)))
            .collect();
        let excluded = self.exclusions.exclusions(&said);
        let mut order: Vec<usize> = (0..scores.len())
            .filter(|i| excluded[*i].is_none())
            .collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let Some(best) = order.first().copied() else {
            return base(0.0, scores, "no expert is for such words".into());
        };
        let next = order.get(1).map_or(-1.0, |i| scores[*i]);
        let (name, top, bound) = (&self.names[best], scores[best], self.bounds[best]);
        let (general, not) = (score(Class::Base), score(Class::Not(best)));
        let why_not = if top < bound {
            format!("{name} comes nearest, with {top:.2} of {bound:.2}")
        } else if top < general + MARGIN {
            format!("general questions are nearer than {name}, with {general:.2}")
        } else if top < not + MARGIN {
            format!("what {name} is not for is nearer, with {not:.2}")
        } else if top < next + MARGIN {
            format!("{name} and {} fit equally well", self.names[order[1]])
        } else {
            return Choice {
                expert: Some(best),
                score: top,
                scores,
                reason: format!("it is nearest to the examples; {BASE} {general:.2}"),
            };
        };
        base(top, scores, why_not)
    }
}

/// Mean cosine with the two nearest of some unit vectors; -1 where there are none.
fn nearest<'a>(vector: &[f32], others: impl Iterator<Item = &'a [f32]>) -> f32 {
    let (mut first, mut second) = (None, None);
    for other in others {
        let cosine = dot(vector, other);
        if first.is_none_or(|f| cosine > f) {
            (first, second) = (Some(cosine), first);
        } else if second.is_none_or(|s| cosine > s) {
            second = Some(cosine);
        }
    }
    match (first, second) {
        (Some(a), Some(b)) => (a + b) / 2.0,
        (Some(a), None) => a,
        _ => -1.0,
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(sum: &mut [f32], values: &[f32], factor: f32) {
    sum.iter_mut()
        .zip(values)
        .for_each(|(s, v)| *s += factor * v);
}

fn normalize(vector: &mut [f32]) {
    let norm = dot(vector, vector).sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|v| *v /= norm);
    }
}
