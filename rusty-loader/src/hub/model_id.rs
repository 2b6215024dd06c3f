//! Names of models on the hub.

/// `owner/name[@revision][:file.gguf]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelId {
    pub owner: String,
    pub name: String,
    pub revision: String,
    /// The GGUF file that is meant, where the repository has several.
    pub file: Option<String>,
}

impl ModelId {
    /// Takes a name apart; `Err` says why it can be neither a path nor an id.
    pub fn parse(model: &str) -> Result<Self, String> {
        let neither =
            "is no file or folder here, and no hub id (owner/name) either; check the path";
        let (rest, file) = match model.split_once(':') {
            Some((rest, file)) => (rest, Some(file.to_string())),
            None => (model, None),
        };
        let (id, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let (owner, name) = id.split_once('/').ok_or(neither)?;
        let word = |w: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !w.is_empty() && !w.starts_with('.') && !w.contains("..") && w.chars().all(allowed)
        };
        // Anything that ends like a file, or climbs, was meant as a path.
        let path = |w: &str| w.split('/').all(word);
        let looks_like_file = name.ends_with(".gguf") || name.ends_with(".safetensors");
        if !word(owner) || !word(name) || looks_like_file || !path(revision) {
            return Err(neither.into());
        }
        if file
            .as_deref()
            .is_some_and(|f| !path(f) || !f.ends_with(".gguf"))
        {
            return Err("names a file after ':' that is no GGUF file".into());
        }
        Ok(Self {
            owner: owner.into(),
            name: name.into(),
            revision: revision.into(),
            file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ModelId;

    #[test]
    fn ids_are_taken_apart() {
        let id = ModelId::parse("Qwen/Qwen3-0.6B-GGUF@v1:q4/x.gguf").expect("id");
        assert_eq!(
            (id.owner.as_str(), id.name.as_str()),
            ("Qwen", "Qwen3-0.6B-GGUF")
        );
        assert_eq!(
            (id.revision.as_str(), id.file.as_deref()),
            ("v1", Some("q4/x.gguf"))
        );
        assert_eq!(ModelId::parse("a/b").expect("id").revision, "main");
    }

    #[test]
    fn paths_are_no_ids() {
        for path in [
            "model.gguf",
            "./a/b",
            "../a",
            "/a/b",
            "a/b/c",
            "models/x.gguf",
            "a/",
            "a/b@../x",
            "a/b:../x.gguf",
            "a/b:x.bin",
            "a b/c",
            "",
        ] {
            assert!(ModelId::parse(path).is_err(), "{path}");
        }
    }
}
