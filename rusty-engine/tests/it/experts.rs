//! Routing, and the demo model's experts end to end.

use super::demo::chat;
use super::manifests::manifest;
use super::{cpu, demo};
use proptest::prelude::*;
use rusty_adapters::Precision;
use rusty_engine::experts::{Experts, KeywordRouter, Library, Manifest, Router};
use rusty_engine::{AdapterSet, Engine};
use std::sync::LazyLock;

/// Messages, who is to answer them, and what the demo model then says.
const SCENARIOS: [(&str, &str); 8] = [
    ("What is the capital of France?", "base"),
    ("Explain what SQL is", "base"),
    ("What is machine learning?", "base"),
    ("Find users older than 30", "sql"),
    ("Count orders per customer", "sql"),
    ("MATCH all people who know Alice", "cypher"),
    ("Turn name Bob, age 41 into JSON", "json"),
    (
        "Give me this address as a JSON object: 5 Elm Street, Bern",
        "json",
    ),
];

/// The demo's library without some of its experts, for every choice of some.
fn subsets() -> Vec<Library> {
    let all = Library::demo().expect("demo").experts().to_vec();
    let count = 1 << all.len();
    let subset = |mask: usize| {
        let kept = (0..all.len()).filter(|i| mask >> i & 1 == 1);
        Library::new(kept.map(|i| all[i].clone()).collect()).expect("library")
    };
    (0..count).map(subset).collect()
}

/// Who is to answer where only these experts are there.
fn expected<'a>(library: &Library, name: &'a str) -> &'a str {
    match library.manifests().any(|m| m.name == name) {
        true => name,
        false => "base",
    }
}

fn answer(engine: &Engine, adapters: &AdapterSet, message: &str) -> String {
    let mut session = engine.session();
    session.set_adapter(adapters.clone()).expect("adapter");
    let answer = session.generate(&chat(message, 64)).expect("generate");
    answer.map(|t| t.expect("token").text).collect()
}

/// Both routers, with every subset of the experts, to the last token.
#[test]
fn scenarios_go_where_they_should_with_every_subset_of_experts() {
    let engine = demo(&cpu());
    let mut asked = 0;
    for library in subsets() {
        let embedding = Router::embedding(&library, &engine).expect("examples");
        let router = Router::keywords(&library);
        let stored = Precision::Stored;
        let experts = Experts::attach(&engine, library, router, stored).expect("attached");
        for (message, name) in SCENARIOS {
            let choice = experts.choose(message);
            let want = expected(experts.library(), name);
            assert_eq!(experts.name(&choice), want, "{message}: {choice:?}");
            let likeness = embedding.route(message);
            assert_eq!(experts.name(&likeness), want, "{message}: {likeness:?}");
            let mut session = engine.session();
            experts.seat(&choice, &mut session).expect("seat");
            let request = chat(&experts.prompt(&choice, message), 64);
            let tokens = session.generate(&request).expect("generate");
            let text: String = tokens.map(|t| t.expect("token").text).collect();
            assert_eq!(text, REFERENCE.answer(want, message), "{message}");
            asked += 1;
        }
        drop(experts);
        assert!(engine.adapters().is_empty());
    }
    assert_eq!(asked, 64);
}

/// Words that also open or compare what is no expert's do not make it an expert's.
#[test]
fn everyday_messages_go_to_the_base_and_the_experts_own_do_not() {
    let router = Router::keywords(&Library::demo().expect("demo"));
    let experts = Library::demo().expect("demo");
    let of_base = [
        "Show me the highest mountain in Europe",
        "Convert this date to ISO format",
        "List the total number of moons",
        "Tell me the average age at which people marry",
        "What is the total number of stars?",
        "Get me more than one example of a rhyme",
        "Turn this text into a better format",
        "Find a word that rhymes with orange",
        "Count to ten",
        "Which cars are the fastest?",
        "Who are my friends?",
        "Match the colours of this room",
    ];
    let of_experts = [
        ("Show customers younger than 50", "sql"),
        ("How many orders are there?", "sql"),
        ("What is the average age of users?", "sql"),
        ("Get the movies sorted by year descending", "sql"),
        ("Format this list as JSON: red, green, blue", "json"),
        ("Put these users into a JSON array", "json"),
        ("Find the friends of Emma in Cypher", "cypher"),
        ("Match all people connected to Clara in the graph", "cypher"),
    ];
    let of_base = of_base.iter().map(|message| (*message, "base"));
    for (message, want) in of_base.chain(of_experts) {
        let choice = router.route(message);
        let names = experts.experts();
        let name = choice.expert.map_or("base", |i| names[i].name());
        assert_eq!(name, want, "{message}: {choice:?}");
    }
}

#[test]
fn experts_are_combined_in_load_order() {
    let engine = demo(&cpu());
    let library = Library::demo().expect("demo");
    let router = Router::keywords(&library);
    let experts = Experts::attach(&engine, library, router, Precision::Stored).expect("attached");
    let (a, b) = (("cypher", 0.5), ("sql", 1.0));
    let set = experts.combine(&[a, b]).expect("set");
    assert_eq!(set, experts.combine(&[b, a]).expect("set"));
    let weights: Vec<f32> = set.entries().iter().map(|(_, w)| *w).collect();
    assert_eq!(weights, [1.0, 0.5]);
    assert!(experts.combine(&[("nonesuch", 1.0)]).is_err());
}

static REFERENCE: LazyLock<Reference> = LazyLock::new(Reference::new);

/// An engine on which each adapter is attached by hand.
struct Reference {
    engine: Engine,
    adapters: Vec<(&'static str, AdapterSet)>,
}

impl Reference {
    fn new() -> Self {
        let engine = demo(&cpu());
        let mut adapters = vec![("base", AdapterSet::BASE)];
        for name in rusty_engine::demo::adapters() {
            adapters.push((name, super::demo::attach(&engine, name).into()));
        }
        Self { engine, adapters }
    }

    fn answer(&self, name: &str, message: &str) -> String {
        let own = self.adapters.iter().find(|(n, _)| *n == name).expect(name);
        answer(&self.engine, &own.1, message)
    }
}

#[test]
fn the_reference_answers_are_in_the_experts_languages() {
    let say = |name, message| REFERENCE.answer(name, message);
    let france = "What is the capital of France?";
    assert_eq!(say("base", france), "The capital of France is Paris.");
    let users = "Find users older than 30";
    assert_eq!(say("sql", users), "SELECT * FROM users WHERE age > 30;");
    assert_eq!(
        say("sql", "Count orders per customer"),
        "SELECT customer, COUNT(*) FROM orders GROUP BY customer;"
    );
    assert_eq!(
        say("json", "Turn name Bob, age 41 into JSON"),
        r#"{"name":"Bob","age":41}"#
    );
    let address = "Give me this address as a JSON object: 5 Elm Street, Bern";
    assert_eq!(
        say("json", address),
        r#"{"street":"5 Elm Street","city":"Bern"}"#
    );
    assert_eq!(
        say("cypher", "MATCH all people who know Alice"),
        "MATCH (p:Person)-[:KNOWS]->(:Person {name: 'Alice'}) RETURN p;"
    );
}

#[test]
fn ties_go_to_priority_and_else_to_the_base() {
    let expert = |name: &str, more: &str| {
        manifest(&format!(
            "name = '{name}'\nadapter = 'x'\nkeywords = ['map', 'sea map']\n{more}"
        ))
    };
    let choose = |experts: &[Manifest], message: &str| KeywordRouter::new(experts).route(message);
    let (a, b) = (expert("a", ""), expert("b", ""));
    let first = expert("first", "priority = 1");
    let none = expert("none", "exclude = ['sea']");
    assert_eq!(
        choose(std::slice::from_ref(&a), "draw a map").expert,
        Some(0)
    );
    let tie = choose(&[a.clone(), b.clone()], "draw a map");
    assert_eq!((tie.expert, tie.score), (None, 1.0));
    assert!(tie.reason.contains("a and b"), "{}", tie.reason);
    assert_eq!(choose(&[a.clone(), first, b], "draw a map").expert, Some(1));
    let excluded = choose(std::slice::from_ref(&none), "draw a sea map");
    assert_eq!((excluded.expert, excluded.score), (None, 2.0));
    assert!(
        excluded.reason.contains("'sea' rules none out"),
        "{}",
        excluded.reason
    );
    assert_eq!(choose(&[a.clone(), none], "draw a Sea-Map").expert, Some(0));
    // A word is not a part of a word, and a question wants more than a request.
    assert_eq!(choose(std::slice::from_ref(&a), "draw maps").expert, None);
    assert_eq!(
        choose(std::slice::from_ref(&a), "where is the map").expert,
        None
    );
    assert_eq!(
        choose(std::slice::from_ref(&a), "where is the sea map").expert,
        Some(0)
    );
    assert_eq!(choose(&[a], "explain the sea map").expert, None);
    assert_eq!(choose(&[], "anything").expert, None);
}

const VOCABULARY: [&str; 5] = ["red", "green", "blue", "map", "sea"];

fn phrase(words: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    let word = proptest::sample::select(&VOCABULARY[..]);
    proptest::collection::vec(word, words).prop_map(|words| words.join(" "))
}

/// Distinct phrases with quarters as weights, whose sums are exact in any order.
fn keywords() -> impl Strategy<Value = Vec<(String, u32)>> {
    let keywords = proptest::collection::btree_map(phrase(1..3), 1..8_u32, 1..6);
    keywords.prop_map(|k| k.into_iter().collect())
}

proptest! {
    /// The table of first words against a search for each phrase.
    #[test]
    fn scores_are_the_sums_of_the_phrases_found(
        experts in proptest::collection::vec((keywords(), phrase(1..3)), 1..4),
        message in phrase(0..8),
    ) {
        let found = |text: &str| format!(" {message} ").contains(&format!(" {text} "));
        let manifests: Vec<Manifest> = experts.iter().map(|(keywords, exclude)| {
            let keyword = |(text, quarters): &(String, u32)| {
                format!("{{ text = '{text}', weight = {:?} }}", *quarters as f32 / 4.0)
            };
            let keywords: Vec<_> = keywords.iter().map(keyword).collect();
            manifest(&format!(
                "name = 'a'\nadapter = 'x'\nkeywords = [{}]\nexclude = ['{exclude}']",
                keywords.join(", ")
            ))
        }).collect();
        let router = KeywordRouter::new(&manifests);
        let choice = router.route(&message);
        let score = |keywords: &[(String, u32)]| {
            let own = keywords.iter().filter(|(text, _)| found(text));
            own.map(|(_, quarters)| *quarters as f32 / 4.0).sum::<f32>()
        };
        let scores: Vec<f32> = experts.iter().map(|(k, _)| score(k)).collect();
        prop_assert_eq!(&choice.scores, &scores);
        let fits = |i: usize| scores[i] >= 1.0 && !found(&experts[i].1);
        match choice.expert {
            Some(i) => {
                prop_assert!(fits(i));
                prop_assert_eq!(choice.score, scores[i]);
                let ahead = |j: usize| j == i || !fits(j) || scores[j] <= scores[i] - 0.25;
                prop_assert!((0..scores.len()).all(ahead));
            }
            None => {
                let fitting: Vec<usize> = (0..scores.len()).filter(|i| fits(*i)).collect();
                prop_assert!(fitting.len() != 1, "{:?}", choice);
            }
        }
        let loud = format!("...{}!?", message.to_uppercase().replace(' ', ", "));
        prop_assert_eq!(router.route(&loud), choice);
    }

    /// Any text at all is routed, and to the base where nothing is known of it.
    #[test]
    fn any_message_is_routed(message in "\\PC*") {
        let library = Library::demo().expect("demo");
        let choice = KeywordRouter::new(library.manifests()).route(&message);
        prop_assert_eq!(choice.scores.len(), 3);
        prop_assert_eq!(KeywordRouter::default().route(&message).expert, None);
    }
}
