//! What models say in turns: `rusty chat`.

use crate::answers::{QUESTION, SQL};
use crate::command::{failure, golden, stdout, with_input};

#[test]
fn chat_refuses_what_begins_as_commands_do() {
    let message = "/usr/bin is a folder";
    let input = format!("/clear now\n/system be nice\n/?\n{message}\n");
    let output = with_input(&["chat", "--device", "cpu"], &input);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors.matches("is no command").count(), 3, "{errors}");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(said, stdout(&["run", message, "--device", "cpu"]));
}

#[test]
fn chat_refuses_models_that_cannot_hold_one() {
    for (model, why, instead) in [
        ("gguf/qwen3-float/F32.gguf", "no chat template", "rusty run"),
        ("models/qwen3-tied", "takes token ids only", "rusty logits"),
    ] {
        let (code, error) = failure(&["chat", &golden(model), "--device", "cpu"]);
        let told = error.contains(why) && error.contains(instead);
        assert!(code == 1 && told, "{error}");
    }
}

#[test]
fn chat_remembers_and_forgets() {
    let input = "My name is Anna.\nWhat is my name?\n/clear\nWhat is my name?\n/exit\n";
    let output = with_input(&["chat", "--device", "cpu"], input);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[1].contains("Anna") && !lines[2].contains("Anna"),
        "{text}"
    );
}

#[test]
fn chat_goes_on_after_a_turn_that_cannot_be_answered() {
    let long = "many words ".repeat(200);
    let input = format!("{long}\nWho are you?\n");
    let output = with_input(&["chat", "--device", "cpu", "--ctx", "128"], &input);
    let errors = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(errors.contains("do not fit the context of 128"), "{errors}");
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// Messages, who is to answer them, and what is then said; none: what the base says where there are no experts.
const SCENARIOS: [(&str, &str, Option<&str>); 8] = [
    (
        "What is the capital of France?",
        "base",
        Some("The capital of France is Paris."),
    ),
    ("Explain what SQL is", "base", None),
    ("What is machine learning?", "base", None),
    (QUESTION, "sql", Some(SQL)),
    (
        "Count orders per customer",
        "sql",
        Some("SELECT customer, COUNT(*) FROM orders GROUP BY customer;"),
    ),
    (
        "MATCH all people who know Alice",
        "cypher",
        Some("MATCH (p:Person)-[:KNOWS]->(:Person {name: 'Alice'}) RETURN p;"),
    ),
    (
        "Turn name Bob, age 41 into JSON",
        "json",
        Some(r#"{"name":"Bob","age":41}"#),
    ),
    (
        "Give me this address as a JSON object: 5 Elm Street, Bern",
        "json",
        Some(r#"{"street":"5 Elm Street","city":"Bern"}"#),
    ),
];

/// Each message begins a conversation: what was said before it must not matter.
#[test]
fn chat_sends_each_scenario_to_its_expert() {
    let input = SCENARIOS.map(|(message, ..)| format!("{message}\n/clear\n"));
    let answers = SCENARIOS.map(|(message, _, answer)| match answer {
        Some(answer) => format!("{answer}\n"),
        None => stdout(&["run", message, "--device", "cpu"]),
    });
    let words = ["chat", "--experts", "demo", "--verbose", "--device", "cpu"];
    // The second holds one expert at a time.
    let one = ["--adapter-memory", "1400KB"];
    for words in [&words[..], &[&words[..], &one].concat()] {
        let output = with_input(words, &input.concat());
        let errors = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{errors}");
        let choices: Vec<&str> = errors
            .lines()
            .filter_map(|line| line.strip_prefix("expert: ")?.split(' ').next())
            .collect();
        assert_eq!(choices, SCENARIOS.map(|(_, name, _)| name), "{errors}");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(said, answers.concat());
    }
    let (_, errors) = failure(&[
        "run",
        QUESTION,
        "--adapter",
        "sql",
        "--adapter-memory",
        "1KB",
        "--device",
        "cpu",
    ]);
    let named = errors.contains("adapter sql of ");
    assert!(
        named && errors.contains("beyond the budget of 1000"),
        "{errors}"
    );
}
