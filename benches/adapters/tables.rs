//! Which of the tables beside Criterion's benches are asked for.

/// Criterion's options that stand alone; behind each of the others comes its value.
const ALONE: [&str; 15] = [
    "--bench",
    "--discard-baseline",
    "--exact",
    "--ignored",
    "--include-ignored",
    "--list",
    "--nocapture",
    "--noplot",
    "--quick",
    "--quiet",
    "--show-output",
    "--test",
    "--verbose",
    "-n",
    "-v",
];

/// Whether this is a measurement, and no filter leaves a table out.
pub fn wants(table: &str) -> bool {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|w| w == word);
    let asks =
        |option: &str| option.starts_with('-') && !option.contains('=') && !ALONE.contains(&option);
    let is_filter = |at: usize| {
        let is_value = at > 0 && asks(&words[at - 1]);
        !words[at].starts_with('-') && !is_value
    };
    let mut filters = (0..words.len()).filter(|at| is_filter(*at));
    has("--bench") && !has("--list") && filters.all(|at| table.contains(words[at].as_str()))
}
