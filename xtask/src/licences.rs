//! Licences of all dependencies: each must offer at least one permissive licence from the list.

use anyhow::{Result, bail};
use cargo_metadata::MetadataCommand;

const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "NCSA",
];

/// Fails with every dependency whose licence expression cannot be met from the list.
pub fn check() -> Result<()> {
    let metadata = MetadataCommand::new().current_dir(crate::root()).exec()?;
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let met = match &package.license {
            Some(expression) => is_met(expression),
            None => package.license_file.is_some(),
        };
        if !met {
            let licence = package.license.as_deref().unwrap_or("no licence");
            wrong.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    if !wrong.is_empty() {
        bail!("not on the list of licences:\n{}", wrong.join("\n"));
    }
    Ok(())
}

/// Evaluates an SPDX expression of licences, AND, OR and parentheses (and the old `A/B` for OR).
fn is_met(expression: &str) -> bool {
    let text = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut at = 0;
    either(&words, &mut at) && at == words.len()
}

fn either(words: &[&str], at: &mut usize) -> bool {
    let mut met = both(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= both(words, at);
    }
    met
}

fn both(words: &[&str], at: &mut usize) -> bool {
    let mut met = one(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at);
    }
    met
}

fn one(words: &[&str], at: &mut usize) -> bool {
    let Some(word) = words.get(*at) else {
        return false;
    };
    *at += 1;
    if *word == "(" {
        let met = either(words, at);
        *at += 1;
        return met;
    }
    let mut licence = (*word).to_string();
    if words.get(*at) == Some(&"WITH") {
        licence = format!("{licence} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    ALLOWED.contains(&licence.as_str())
}

#[cfg(test)]
mod tests {
    use super::is_met;

    #[test]
    fn expressions_are_evaluated() {
        assert!(is_met("MIT OR GPL-3.0-only"));
        assert!(is_met("(MIT OR GPL-2.0) AND Unicode-3.0"));
        assert!(is_met("Apache-2.0 WITH LLVM-exception OR Apache-2.0"));
        assert!(is_met("MIT/Apache-2.0"));
        assert!(!is_met("GPL-3.0-only"));
        assert!(!is_met("MIT AND GPL-3.0-only"));
        assert!(!is_met("(MIT OR Apache-2.0) AND GPL-3.0-only"));
    }
}
