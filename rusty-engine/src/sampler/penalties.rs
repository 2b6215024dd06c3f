//! Stages that change logits by what was said before.

use std::collections::{HashMap, HashSet};

pub(super) fn repetition(logits: &mut [f32], history: &[u32], penalty: f32) {
    let seen: HashSet<u32> = history.iter().copied().collect();
    for token in seen {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = if *logit < 0.0 {
                *logit * penalty
            } else {
                *logit / penalty
            };
        }
    }
}

pub(super) fn presence_frequency(
    logits: &mut [f32],
    history: &[u32],
    presence: f32,
    frequency: f32,
) {
    let mut counts: HashMap<u32, u32> = HashMap::new();
    for token in history {
        *counts.entry(*token).or_default() += 1;
    }
    for (token, count) in counts {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = *logit - count as f32 * frequency - presence;
        }
    }
}

pub(super) fn no_repeat_ngram(logits: &mut [f32], history: &[u32], n: usize) {
    if n == 0 || history.len() + 1 < n {
        return;
    }
    let suffix = &history[history.len() + 1 - n..];
    for window in history.windows(n) {
        if window[..n - 1] == *suffix
            && let Some(logit) = logits.get_mut(window[n - 1] as usize)
        {
            *logit = f32::NEG_INFINITY;
        }
    }
}

pub(super) fn dry(
    logits: &mut [f32],
    recent: &[u32],
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    breakers: &[u32],
) {
    // Vocabularies have thousands of them.
    let breakers: HashSet<u32> = breakers.iter().copied().collect();
    let Some(last) = recent.last() else { return };
    if breakers.contains(last) {
        return;
    }
    let mut longest: HashMap<u32, usize> = HashMap::new();
    for end in 0..recent.len() - 1 {
        let next = recent[end + 1];
        if breakers.contains(&next) {
            continue;
        }
        let matched = (0..=end)
            .take_while(|m| {
                let token = recent[end - m];
                token == recent[recent.len() - 1 - m] && !breakers.contains(&token)
            })
            .count();
        let entry = longest.entry(next).or_default();
        *entry = matched.max(*entry);
    }
    for (token, matched) in longest {
        if matched > 0
            && matched >= allowed_length
            && let Some(logit) = logits.get_mut(token as usize)
        {
            let grown = f64::from(base).powi((matched - allowed_length) as i32);
            *logit -= (f64::from(multiplier) * grown) as f32;
        }
    }
}
