//! Manifests, and the libraries that folders of them are.

use super::warnings::told;
use super::{cpu, demo};
use crate::golden_paths::root;
use proptest::prelude::*;
use rusty_adapters::Precision;
use rusty_engine::Error;
use rusty_engine::experts::{Expert, Experts, Library, Manifest, Router};
use std::path::{Path, PathBuf};
use tracing::Level;

/// A manifest from its text.
pub fn manifest(text: &str) -> Manifest {
    Manifest::parse(Path::new("test/expert.toml"), text).expect(text)
}

/// What is compiled in is what lies in the tree, and the tree's adapters are found from there.
#[test]
fn the_demo_folder_is_the_built_in_library() {
    let (built_in, folder) = (
        Library::demo(),
        Library::open(&root().join("assets/demo/experts")),
    );
    let (built_in, folder) = (built_in.expect("built in"), folder.expect("folder"));
    let manifests = |l: &Library| l.manifests().cloned().collect::<Vec<_>>();
    assert_eq!(manifests(&built_in), manifests(&folder));
    let names: Vec<_> = folder.experts().iter().map(Expert::name).collect();
    assert_eq!(names, ["sql", "json", "cypher"]);
    let engine = demo(&cpu());
    for (a, b) in built_in.experts().iter().zip(folder.experts()) {
        for expert in [a, b] {
            let attached = expert.attach(&engine, Precision::Stored);
            attached.expect("attached");
        }
    }
    let adapters = engine.adapters();
    for pair in adapters.chunks_exact(2) {
        assert_eq!(
            (&pair[0].name, pair[0].bytes),
            (&pair[1].name, pair[1].bytes)
        );
    }
}

/// Folders of experts, each made from a manifest's text; every adapter is an empty folder.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(experts: &[(&str, &[u8])]) -> Self {
        let folder = Self(tempfile::tempdir().expect("folder"));
        for (name, manifest) in experts {
            std::fs::create_dir_all(folder.manifest(name).with_file_name("adapter"))
                .expect("adapter");
            std::fs::write(folder.manifest(name), manifest).expect("manifest");
        }
        folder
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.0.path().join(name).join("expert.toml")
    }

    fn open(&self) -> Result<Library, Error> {
        Library::open(self.0.path())
    }
}

const GOOD: &str = "name = 'good'\nadapter = 'adapter'\nkeywords = ['word']\n";

#[test]
fn hostile_manifests_are_errors_that_name_the_file() {
    let huge = [GOOD.as_bytes(), b"# ", &[b'x'; 70_000]].concat();
    let deep = format!("{GOOD}examples = {}", "[".repeat(20_000));
    let changed = |from: &str, to: &str| GOOD.replace(from, to).into_bytes();
    let more = |line: &str| format!("{GOOD}{line}\n").into_bytes();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "missing field"),
        (changed("name = 'good'\n", ""), "missing field `name`"),
        (
            changed("adapter = 'adapter'\n", ""),
            "missing field `adapter`",
        ),
        (
            changed("keywords = ['word']\n", ""),
            "neither keywords nor examples",
        ),
        (changed("'good'", "7"), "expected a string"),
        (changed("'good'", "''"), "name \"\""),
        (changed("'good'", "\"a\\u001b[2J\""), "letters, digits"),
        (changed("'good'", "'Base'"), "'Base'"),
        (changed("'adapter'", "''"), "adapter is empty"),
        (
            changed("'adapter'", "'nonesuch'"),
            "nonesuch does not exist",
        ),
        (changed("['word']", "'word'"), "expected a sequence"),
        (changed("['word']", "[1]"), "expected a text"),
        (changed("['word']", "['?!']"), "neither letters nor digits"),
        (
            changed("['word']", "[{ text = 'a', heavy = 1 }]"),
            "expected a text",
        ),
        (
            changed("['word']", "[{ text = 'a', weight = nan }]"),
            "weight",
        ),
        (
            changed("['word']", "[{ text = 'a', weight = -1 }]"),
            "weight",
        ),
        (
            changed("['word']", "[{ text = 'a', weight = 1e30 }]"),
            "weight",
        ),
        (more("priority = 3000000000"), "3000000000"),
        (more("load_order = 'first'"), "expected i32"),
        (more("template = 'no place'"), "{prompt} once"),
        (more("template = '{prompt} {prompt}'"), "{prompt} once"),
        (more("keyword = []"), "unknown field `keyword`"),
        (more("name = 'twice'"), "duplicate key"),
        (b"\xff\xfe".to_vec(), "not UTF-8 from byte 0"),
        (b"name = \xc3".to_vec(), "not UTF-8 from byte 7"),
        (huge, "larger than 64 KiB"),
        (deep.into_bytes(), "TOML"),
    ];
    assert!(Folder::new(&[("good", GOOD.as_bytes())]).open().is_ok());
    for (manifest, reason) in cases {
        let folder = Folder::new(&[("good", GOOD.as_bytes()), ("bad", &manifest)]);
        let error = folder.open().expect_err(reason);
        let Error::Expert { path, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*path, folder.manifest("bad"));
        let text = error.to_string();
        assert!(
            text.contains("expert.toml") && text.contains(reason),
            "{reason}: {text}"
        );
    }
}

#[test]
fn libraries_are_folders_with_distinct_names() {
    let other = GOOD.replace("good", "GOOD");
    let twice = Folder::new(&[("a", GOOD.as_bytes()), ("b", other.as_bytes())]);
    let error = twice.open().expect_err("same names").to_string();
    assert!(error.contains("is taken by"), "{error}");
    let empty = Folder::new(&[]);
    let said = told(Level::WARN, || {
        assert!(
            empty
                .open()
                .expect("a library")
                .manifests()
                .next()
                .is_none()
        );
    });
    assert!(
        said.contains("no folder in it has an expert.toml"),
        "{said}"
    );
    let error = Library::open(Path::new("/nonesuch")).expect_err("no folder");
    assert!(error.to_string().contains("/nonesuch"), "{error}");
    let folder = Folder::new(&[]);
    std::fs::create_dir_all(folder.manifest("folder")).expect("folder");
    let error = folder.open().expect_err("a folder").to_string();
    assert!(error.contains("is no file"), "{error}");

    let manifest = |name: &str, order: i32| {
        format!("{}load_order = {order}\n", GOOD.replace("good", name)).into_bytes()
    };
    let (a, b, c) = (manifest("x", 2), manifest("y", -1), manifest("b", 2));
    let folder = Folder::new(&[("1", &a), ("2", &b), ("3", &c)]);
    std::fs::create_dir(folder.0.path().join("no-expert")).expect("folder");
    let library = folder.open().expect("library");
    let names: Vec<_> = library.experts().iter().map(Expert::name).collect();
    assert_eq!(names, ["y", "b", "x"]);
    // The adapter is an empty folder: a library opens, and attaching says what is missing.
    let engine = demo(&cpu());
    let router = Router::keywords(&library);
    let error = Experts::attach(&engine, library, router, Precision::Stored)
        .err()
        .expect("no adapter");
    assert!(error.to_string().contains("adapter_config.json"), "{error}");
}

#[test]
fn templates_take_the_message_once() {
    let plain = manifest("name = 'a'\nadapter = 'x'\nkeywords = ['a']");
    assert_eq!(plain.prompt("a {prompt} b"), "a {prompt} b");
    let template = "name = 'a'\nadapter = 'x'\nkeywords = ['a']\ntemplate = 'Do: {prompt}!'";
    assert_eq!(manifest(template).prompt("{prompt}"), "Do: {prompt}!");
    assert!(plain.suits("anything"));
    let based = manifest("name = 'a'\nadapter = 'x'\nkeywords = ['a']\nbase = 'Qwen3-0.6B'");
    assert!(based.suits("/models/qwen3_0.6b-q8_0.gguf") && !based.suits("llama-3"));
}

proptest! {
    /// Bytes that are no manifest are errors.
    #[test]
    fn any_text_is_a_manifest_or_an_error(text in "[a-z='\"\\[\\]{}\n .0-9]*") {
        if let Err(error) = Manifest::parse(Path::new("p/expert.toml"), &text) {
            prop_assert!(error.to_string().starts_with("p/expert.toml: "));
        }
    }
}
