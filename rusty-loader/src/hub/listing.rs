//! What a repository holds, and which of it makes a model.

use hf_hub::repository::RepoTreeEntry;

use super::checksum::Checksum;
use super::model_id::ModelId;
use crate::gguf::split::{is_later_part, parts};

/// Files beside the weights of a checkpoint that the loader reads, where the repository has them.
pub(super) const BESIDE_WEIGHTS: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];
/// Weights in one file.
pub(super) const WEIGHTS: &str = "model.safetensors";
/// The file that names the shards of divided weights.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// A file as the repository records it.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    pub path: String,
    pub size: u64,
    pub checksum: Checksum,
}

impl RemoteFile {
    /// Takes an entry over. Folders, and paths and numbers that could lead out of the cache, are left out.
    pub fn new(entry: RepoTreeEntry) -> Option<Self> {
        let RepoTreeEntry::File {
            oid,
            size,
            path,
            lfs,
            ..
        } = entry
        else {
            return None;
        };
        let size = lfs.as_ref().and_then(|l| l.size).unwrap_or(size);
        let checksum = match lfs {
            None => Checksum::Git(oid),
            Some(lfs) => lfs.sha256.map_or(Checksum::Pointer(oid), Checksum::Sha256),
        };
        let plain = |part: &str| {
            !matches!(part, "" | "." | "..") && !part.contains(['\\', ':']) && !part.contains('\0')
        };
        let number = checksum.recorded();
        let hex = matches!(number.len(), 40 | 64)
            && number
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (hex && path.split('/').all(plain)).then_some(Self {
            path,
            size,
            checksum,
        })
    }
}

/// The file of that path.
pub(super) fn named<'f>(files: &'f [RemoteFile], path: &str) -> Option<&'f RemoteFile> {
    files.iter().find(|f| f.path == path)
}

/// The file of that path with all parts of a model in several, or the one that is missing.
fn all_parts<'f>(files: &'f [RemoteFile], path: &str) -> Result<Vec<&'f RemoteFile>, String> {
    let part = |part: String| named(files, &part).ok_or(part);
    parts(path).into_iter().map(part).collect()
}

/// The files that make the model, weights last, the first part of several at the very end: a snapshot with weights has
/// all that it will have. An index stands for the shards that it names.
pub(super) fn wanted<'f>(
    files: &'f [RemoteFile],
    id: &ModelId,
) -> Result<Vec<&'f RemoteFile>, String> {
    let gguf: Vec<&str> = files
        .iter()
        .map(|f| f.path.as_str())
        .filter(|path| path.ends_with(".gguf") && !is_later_part(path))
        .collect();
    if let Some(file) = &id.file {
        let choice = match gguf[..] {
            [] => "it holds no GGUF files".to_string(),
            _ => format!("its GGUF files are {}", gguf.join(", ")),
        };
        return all_parts(files, file).map_err(|part| format!("has no file '{part}'; {choice}"));
    }
    if named(files, "config.json").is_some()
        && let Some(weights) = named(files, WEIGHTS).or(named(files, INDEX))
    {
        let beside = BESIDE_WEIGHTS.iter().filter_map(|path| named(files, path));
        return Ok(beside.chain([weights]).collect());
    }
    match gguf[..] {
        [only] => all_parts(files, only).map_err(|part| format!("has no file '{part}'")),
        [] => Err(format!(
            "has neither {WEIGHTS} (or its index) with a config.json nor a GGUF file; look for a repository \
             of the model in one of these formats"
        )),
        _ => Err(format!(
            "has {} GGUF files; name one as {}/{}:FILE: {}",
            gguf.len(),
            id.owner,
            id.name,
            gguf.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::RemoteFile;

    #[test]
    fn entries_that_lead_out_of_the_cache_are_left_out() {
        let oid = "ce013625030ba8dba906f756967f9e9ca394464a";
        let entry = |path: &str, oid: &str| {
            let json = serde_json::json!({"type": "file", "oid": oid, "size": 1, "path": path});
            RemoteFile::new(serde_json::from_value(json).expect("entry"))
        };
        assert!(entry("q4/model.gguf", oid).is_some());
        for path in ["../x", "/x", "a/../x", "a\\b", "C:/x", "", "a//b"] {
            assert!(entry(path, oid).is_none(), "{path}");
        }
        assert!(entry("x", "../../etc").is_none());
    }
}
