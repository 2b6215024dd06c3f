//! What a repository records about a file's content, and the computation that must agree with it.
//!
//! A repository is a git tree. A plain file's record is git's object id: SHA-1 over `blob SIZE\0` and the
//! content. A file in large-file storage is, to git, a pointer of three lines that holds the content's SHA-256
//! (<https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>); listings give that pointer's object id, which
//! pins the SHA-256 although it does not spell it.

use std::io::{self, Read};

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A file's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    /// Git's object id of the content.
    Git(String),
    /// Git's object id of the pointer to the content.
    Pointer(String),
    /// The content's SHA-256.
    Sha256(String),
}

impl Checksum {
    /// The recorded number, in hexadecimal.
    pub fn recorded(&self) -> &str {
        match self {
            Checksum::Git(id) | Checksum::Pointer(id) | Checksum::Sha256(id) => id,
        }
    }

    /// Whether content of `size` bytes with this digest (a [`Hash`]'s result) is what is recorded.
    pub fn accepts(&self, digest: &str, size: u64) -> bool {
        match self {
            Checksum::Git(id) | Checksum::Sha256(id) => id == digest,
            Checksum::Pointer(id) => {
                let pointer = format!(
                    "version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n"
                );
                let mut hash = git(pointer.len() as u64);
                hash.update(pointer.as_bytes());
                *id == hex(&hash.finalize())
            }
        }
    }

    /// The computation for content of `size` bytes.
    pub fn hash(&self, size: u64) -> Hash {
        match self {
            Checksum::Git(_) => Hash::Git(git(size)),
            Checksum::Pointer(_) | Checksum::Sha256(_) => Hash::Sha256(Sha256::new()),
        }
    }
}

/// A digest in the making; its result is also the name of the content in the cache (its etag).
#[derive(Clone)]
pub(super) enum Hash {
    Git(Sha1),
    Sha256(Sha256),
}

impl Hash {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hash::Git(hash) => hash.update(bytes),
            Hash::Sha256(hash) => hash.update(bytes),
        }
    }

    /// Takes in all that a reader gives.
    pub fn read(&mut self, mut from: impl Read) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            match from.read(&mut buffer)? {
                0 => return Ok(()),
                n => self.update(&buffer[..n]),
            }
        }
    }

    pub fn finish(self) -> String {
        match self {
            Hash::Git(hash) => hex(&hash.finalize()),
            Hash::Sha256(hash) => hex(&hash.finalize()),
        }
    }
}

fn git(size: u64) -> Sha1 {
    let mut hash = Sha1::new();
    hash.update(format!("blob {size}\0").as_bytes());
    hash
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::Checksum;

    /// Numbers as `git hash-object` gives them.
    #[test]
    fn object_ids_are_those_of_git() {
        let plain = Checksum::Git("ce013625030ba8dba906f756967f9e9ca394464a".into());
        let mut hash = plain.hash(6);
        hash.update(b"hello\n");
        assert!(plain.accepts(&hash.finish(), 6));

        let stored = Checksum::Pointer("fa61e1ef71c9908c0926776a4aa3504b3a27f159".into());
        let mut hash = stored.hash(6);
        hash.read(&b"hello\n"[..]).expect("read");
        let digest = hash.finish();
        assert_eq!(
            digest,
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
        );
        assert!(stored.accepts(&digest, 6));
        assert!(!stored.accepts(&digest, 7));
        assert!(Checksum::Sha256(digest.clone()).accepts(&digest, 6));
    }
}
