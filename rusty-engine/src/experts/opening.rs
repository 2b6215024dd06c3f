//! What kind of message it is, told from its first words.
//!
//! "Explain what SQL is" names an expert's subject and still is not for the expert: it asks for knowledge, and an
//! expert would answer it with a query. People open such messages in few ways, so a list of openings tells most of
//! them. What it does not know counts as a request, where keywords alone decide.

/// How a message opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Something is to be done.
    Request,
    /// A question, which may be about data ("What is the average age of users?") or about the world.
    Question,
    /// Something is to be explained; never an expert's work.
    Explanation,
}

/// Words in front that change nothing.
const POLITE: &[&str] = &[
    "also", "and", "can", "could", "hello", "hey", "hi", "kindly", "now", "ok", "okay", "please",
    "so", "then", "will", "would", "you",
];

/// Openings of messages that want something explained.
const EXPLANATIONS: &[&str] = &[
    "define",
    "describe",
    "explain",
    "teach me",
    "tell me about",
    "tell me how",
    "tell me what",
    "tell me why",
    "what does it mean",
    "what is a",
    "what is an",
    "what is meant",
    "what is the difference",
    "what is the meaning",
    "what is the purpose",
    "what kind",
    "whats a",
    "whats an",
    "whats the difference",
    "why",
];

/// Openings of other questions. "How many" is none: who asks it wants to have something counted.
const QUESTIONS: &[&str] = &[
    "are",
    "did",
    "do",
    "does",
    "how are",
    "how can",
    "how do",
    "how does",
    "how is",
    "how old",
    "how should",
    "how to",
    "how was",
    "is",
    "tell me",
    "was",
    "were",
    "what",
    "whats",
    "when",
    "where",
    "which",
    "who",
    "whom",
    "whos",
    "whose",
];

impl Opening {
    /// The opening of a message, given as lower-case words.
    pub(crate) fn of(words: &[String]) -> Self {
        let polite = |w: &&String| POLITE.contains(&w.as_str());
        let words = &words[words.iter().take_while(polite).count()..];
        let opens = |phrase: &&str| {
            let mut given = words.iter();
            phrase
                .split(' ')
                .all(|want| given.next().is_some_and(|have| have == want))
        };
        // "What does X mean" has its subject in between.
        let meaning = words.first().is_some_and(|w| w == "what")
            && words.get(1).is_some_and(|w| w == "does" || w == "do")
            && words.last().is_some_and(|w| w == "mean" || w == "stand");
        if meaning || EXPLANATIONS.iter().any(&opens) {
            Self::Explanation
        } else if QUESTIONS.iter().any(opens) {
            Self::Question
        } else {
            Self::Request
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Opening;
    use crate::experts::keywords::words;

    #[test]
    fn openings_tell_requests_from_questions() {
        let cases = [
            ("Explain what SQL is", Opening::Explanation),
            ("Could you please explain joins?", Opening::Explanation),
            ("What is a river?", Opening::Explanation),
            ("What's an index?", Opening::Explanation),
            ("What does the word JSON mean?", Opening::Explanation),
            ("Tell me about Anna.", Opening::Explanation),
            ("What is machine learning?", Opening::Question),
            ("who are you", Opening::Question),
            ("How do I bake bread?", Opening::Question),
            ("How many users are there?", Opening::Request),
            ("Can you find users older than 30?", Opening::Request),
            ("Whatever: count orders", Opening::Request),
            ("please", Opening::Request),
            ("", Opening::Request),
        ];
        for (message, opening) in cases {
            let words: Vec<_> = words(message).collect();
            assert_eq!(Opening::of(&words), opening, "{message}");
        }
    }
}
