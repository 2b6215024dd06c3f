//! Models in several files, as llama.cpp's `gguf-split` writes them: the first part has all keys, each part some tensors.
//!
//! Parts are found by their names, `MODEL-00001-of-00003.gguf` and so on, and must state the numbers that the names do.

use std::collections::HashSet;
use std::path::Path;

use super::{Gguf, Part};
use crate::{Error, Meta, Result, SharedBytes};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The name of a part.
struct Name<'a> {
    stem: &'a str,
    /// From 1 on.
    number: u64,
    count: u64,
}

impl<'a> Name<'a> {
    fn of(name: &'a str) -> Option<Self> {
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u64>().ok().filter(|_| plain)
        };
        let (left, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = left.rsplit_once('-')?;
        let (number, count) = (digits(number)?, digits(count)?);
        (1..=count).contains(&number).then_some(Self {
            stem,
            number,
            count,
        })
    }

    fn part(&self, number: u64) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count)
    }
}

/// The files of the model whose first file has this name or path: it alone, or all parts, the first one last.
pub(crate) fn parts(name: &str) -> Vec<String> {
    match Name::of(name) {
        Some(own) if own.number == 1 => (1..=own.count).rev().map(|n| own.part(n)).collect(),
        _ => vec![name.to_owned()],
    }
}

/// Whether a file of this name or path is opened by way of the first part.
pub(crate) fn is_later_part(name: &str) -> bool {
    Name::of(name).is_some_and(|own| own.number > 1)
}

/// A container with the tensors of all parts, if `first` is the first of several; the keys about parts are gone then.
pub(super) fn join(path: &Path, mut first: Gguf) -> Result<Gguf> {
    let number = |file: &Gguf, key: &str| file.meta.get(key).and_then(Meta::as_u64);
    let count = number(&first, COUNT).unwrap_or(1);
    if count <= 1 {
        return Ok(first);
    }
    let at = number(&first, NUMBER).unwrap_or(0);
    let file_name = path.file_name().and_then(|n| n.to_str());
    let name = file_name.and_then(Name::of).filter(|n| n.count == count);
    let Some(name) = name.filter(|n| n.number == at + 1) else {
        return Err(Error::malformed(
            path,
            format!(
                "is part {} of {count}, and its name does not end with -{:05}-of-{count:05}.gguf: parts are found by \
                 their names",
                at + 1,
                at + 1
            ),
        ));
    };
    if at > 0 {
        let reason = format!("is part {} of {count}; open {}", at + 1, name.part(1));
        return Err(Error::malformed(path, reason));
    }
    for at in 1..count {
        let path = path.with_file_name(name.part(at + 1));
        let next = Gguf::from_bytes(&path, SharedBytes::map_file(&path)?)?;
        if (number(&next, NUMBER), number(&next, COUNT)) != (Some(at), Some(count)) {
            let reason = format!("does not say that it is part {} of {count}", at + 1);
            return Err(Error::malformed(&path, reason));
        }
        first.add(next);
    }
    let mut names = HashSet::new();
    if let Some(twice) = first.tensors.iter().find(|t| !names.insert(&*t.name)) {
        let reason = format!("its parts hold tensor '{}' twice", twice.name);
        return Err(Error::malformed(path, reason));
    }
    let (held, stated) = (first.tensors.len() as u64, number(&first, TENSORS));
    if stated.is_some_and(|stated| stated != held) {
        let reason = format!("its parts hold {held} tensors, not as many as it states");
        return Err(Error::malformed(path, reason));
    }
    let of_parts = |key: &str| [NUMBER, COUNT, TENSORS].contains(&key);
    first.meta.retain(|key, _| !of_parts(key));
    first.keys.retain(|(key, _)| !of_parts(key));
    Ok(first)
}

impl Gguf {
    /// Adds the tensors of another part.
    fn add(&mut self, next: Gguf) {
        self.others.push(Part {
            data_start: next.data_start,
            bytes: next.bytes,
        });
        let part = self.others.len();
        let tensors = next.tensors.into_iter();
        self.tensors.extend(tensors.map(|mut tensor| {
            tensor.part = part;
            tensor
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::{is_later_part, parts};

    #[test]
    fn names_of_parts_are_told_from_others() {
        let first = "q4/m-00001-of-00003.gguf";
        let all = [
            "q4/m-00003-of-00003.gguf",
            "q4/m-00002-of-00003.gguf",
            first,
        ];
        assert_eq!(parts(first), all);
        assert!(!is_later_part(first) && is_later_part(all[0]));
        for alone in [
            "m.gguf",
            "m-00002-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-00003.bin",
        ] {
            assert_eq!(parts(alone), [alone]);
        }
        assert!(!is_later_part("m-00000-of-00003.gguf"));
    }
}
