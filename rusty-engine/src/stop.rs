//! Stop texts: what may be shown, and when to end.

/// Holds text back while it might be the beginning of a stop text.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// A matcher; empty stop texts are ignored.
    pub fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(),
            held: String::new(),
        }
    }

    /// Adds text; gives what is certain to be shown, and whether a stop text was completed. After that nothing
    /// more may be added.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let found = |s: &String| self.held.find(s.as_str()).map(|at| (at + s.len(), at));
        // The one that is completed first; of several the longest.
        if let Some((_, at)) = self.stops.iter().filter_map(found).min() {
            let shown = self.held[..at].to_string();
            self.held.clear();
            return (shown, true);
        }
        let keep = self
            .stops
            .iter()
            .map(|s| overlap(&self.held, s))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back when the answer ended otherwise.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a proper beginning of `stop`, the most.
fn overlap(text: &str, stop: &str) -> usize {
    let beginnings = stop.char_indices().map(|(len, _)| len).rev();
    let mut held = beginnings.filter(|&len| text.ends_with(&stop[..len]));
    held.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::StopMatcher;
    use proptest::prelude::*;

    /// However the text is cut, what is shown is the text up to the earliest completed stop text.
    fn shown(pieces: &[&str], stops: &[String]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops);
        let mut out = String::new();
        for piece in pieces {
            let (text, stopped) = matcher.push(piece);
            out += &text;
            if stopped {
                return (out, true);
            }
        }
        (out + &matcher.finish(), false)
    }

    proptest! {
        #[test]
        fn cutting_does_not_matter(
            text in "[abé]{0,24}", stops in prop::collection::vec("[abé]{1,4}", 1..4),
            cuts in prop::collection::vec(0usize..24, 0..6)
        ) {
            let mut at: Vec<usize> = cuts.into_iter().filter(|c| text.is_char_boundary(*c)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces: Vec<&str> = at.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
            let mut completed = ends.filter_map(|end| {
                let stops = stops.iter().filter(|stop| text[..end].ends_with(*stop));
                stops.map(|stop| end - stop.len()).min()
            });
            let want = match completed.next() {
                Some(at) => (text[..at].to_string(), true),
                None => (text.clone(), false),
            };
            prop_assert_eq!(shown(&pieces, &stops), want);
        }
    }
}
