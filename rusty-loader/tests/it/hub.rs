//! Models of a hub: downloaded once, gone on with after a cut, refused when wrong.

use crate::goldens;
use crate::hub_server::{COMMIT, Files, Server};
use rusty_loader::hub::{Hub, Progress};
use std::path::Path;
use std::sync::Mutex;

fn checkpoint(folder: &str) -> Files {
    let entries = std::fs::read_dir(goldens::path(folder)).expect("folder");
    let paths = entries.map(|e| e.expect("entry").path());
    let name = |p: &Path| p.file_name().and_then(|n| n.to_str()).map(str::to_string);
    paths
        .map(|p| (name(&p).expect("name"), std::fs::read(&p).expect("file")))
        .collect()
}

fn gguf() -> Vec<u8> {
    checkpoint("gguf/qwen3-float")["F16.gguf"].clone()
}

fn quiet(_: &Progress) {}

fn error(hub: &Hub, model: &str) -> String {
    hub.resolve(model, &quiet).expect_err(model).to_string()
}

/// Where the requests for a file's content began.
fn starts(requests: &[String], file: &str) -> Vec<usize> {
    let content = format!("GET /content/{file}");
    let of = |r: &String| {
        let rest = r.strip_prefix(&content)?;
        Some(
            rest.strip_prefix(" from ")
                .map_or(0, |n| n.parse().unwrap()),
        )
    };
    requests.iter().filter_map(of).collect()
}

#[test]
fn a_checkpoint_is_downloaded_once_and_opens() {
    for folder in ["models/qwen3-tied", "models/llama-llama3rope-sharded"] {
        let server = Server::start(checkpoint(folder));
        let cache = tempfile::tempdir().unwrap();
        let hub = server.hub(cache.path());
        let seen = Mutex::new(Vec::new());
        let listen = |p: &Progress| seen.lock().unwrap().push(p.clone());
        let path = hub.resolve("own/name", &listen).expect("downloaded");
        rusty_loader::open(&path).expect("opens");
        let seen = seen.into_inner().unwrap();
        assert!(seen.iter().all(|p| p.done <= p.total));
        let done = |p: &Progress| p.file.ends_with(".safetensors") && p.done == p.total;
        assert!(seen.iter().any(done));
        // What a checkpoint does not need stays where it is.
        assert!(!path.join("expected.safetensors").exists());
        assert!(path.ends_with(format!("models--own--name/snapshots/{COMMIT}")));
        assert!(!server.requests().is_empty());
        assert_eq!(hub.resolve("own/name", &quiet).expect("cached"), path);
        let offline = Hub {
            offline: true,
            ..hub.clone()
        };
        assert_eq!(offline.resolve("own/name", &quiet).expect("cached"), path);
        let pinned = format!("own/name@{COMMIT}");
        assert_eq!(hub.resolve(&pinned, &quiet).expect("cached"), path);
        assert_eq!(server.requests(), Vec::<String>::new());
    }
}

#[test]
fn blobs_are_named_as_other_clients_name_them() {
    let server = Server::start(checkpoint("models/qwen3-tied"));
    let cache = tempfile::tempdir().unwrap();
    let path = server
        .hub(cache.path())
        .resolve("own/name", &quiet)
        .expect("downloaded");
    let name_length = |file: &str| {
        let blob = path.join(file).canonicalize().expect(file);
        blob.file_name().unwrap().len()
    };
    assert_eq!(name_length("config.json"), 40, "git's object id");
    assert_eq!(name_length("model.safetensors"), 64, "SHA-256");
    let blobs = cache.path().join("models--own--name/blobs");
    for blob in std::fs::read_dir(blobs).unwrap() {
        let name = blob.unwrap().file_name();
        assert!(!name.to_str().unwrap().contains("incomplete"), "{name:?}");
    }
}

#[test]
fn a_cut_connection_is_gone_on_with() {
    let server = Server::start(checkpoint("models/qwen3-tied"));
    let cache = tempfile::tempdir().unwrap();
    server.set(|s| (s.cut_after, s.cuts) = (40_000, 1));
    let hub = server.hub(cache.path());
    let path = hub.resolve("own/name", &quiet).expect("two connections");
    rusty_loader::open(&path).expect("opens");
    assert_eq!(starts(&server.requests(), "model.safetensors"), [0, 40_000]);
}

#[test]
fn a_cut_download_is_gone_on_with_in_the_next_call() {
    let server = Server::start(checkpoint("models/qwen3-tied"));
    let cache = tempfile::tempdir().unwrap();
    server.set(|s| (s.cut_after, s.cuts) = (40_000, 1));
    let hub = Hub {
        attempts: 1,
        ..server.hub(cache.path())
    };
    let cut = error(&hub, "own/name");
    for part in [
        "own/name",
        &server.address,
        "run the command again",
        "40000",
    ] {
        assert!(cut.contains(part), "{cut}");
    }
    server.requests();
    let path = hub.resolve("own/name", &quiet).expect("the rest");
    rusty_loader::open(&path).expect("opens");
    assert_eq!(starts(&server.requests(), "model.safetensors"), [40_000]);
}

#[test]
fn a_server_without_ranges_sends_all_again() {
    let server = Server::start(checkpoint("models/qwen3-tied"));
    let cache = tempfile::tempdir().unwrap();
    server.set(|s| {
        (s.cut_after, s.cuts) = (40_000, 1);
        s.ignore_ranges = true;
    });
    let path = server
        .hub(cache.path())
        .resolve("own/name", &quiet)
        .expect("from the start");
    rusty_loader::open(&path).expect("opens");
    assert_eq!(
        starts(&server.requests(), "model.safetensors"),
        [0, 40_000, 0]
    );
}

#[test]
fn a_wrong_checksum_is_refused_and_removed() {
    for spoilt in ["model.safetensors", "config.json"] {
        let server = Server::start(checkpoint("models/qwen3-tied"));
        let cache = tempfile::tempdir().unwrap();
        let hub = server.hub(cache.path());
        server.set(|s| s.spoilt = Some(spoilt));
        let wrong = error(&hub, "own/name");
        for part in ["own/name", spoilt, "checksum", "removed"] {
            assert!(wrong.contains(part), "{wrong}");
        }
        let snapshot = format!("models--own--name/snapshots/{COMMIT}/{spoilt}");
        assert!(!cache.path().join(snapshot).exists());
        server.set(|s| s.spoilt = None);
        let path = hub.resolve("own/name", &quiet).expect("whole now");
        rusty_loader::open(&path).expect("opens");
    }
}

#[test]
fn what_another_client_left_out_is_added_from_the_same_commit() {
    let mut files = checkpoint("models/qwen3-tied");
    files.insert("chat_template.jinja".into(), b"{{ messages }}".to_vec());
    let server = Server::start(files);
    let cache = tempfile::tempdir().unwrap();
    let hub = server.hub(cache.path());
    let path = hub.resolve("own/name", &quiet).expect("downloaded");
    let template = path.join("chat_template.jinja");
    std::fs::remove_file(&template).expect("link");
    server.requests();
    assert_eq!(hub.resolve("own/name", &quiet).expect("completed"), path);
    assert!(template.is_file());
    let asked = server.requests();
    assert!(
        matches!(&asked[..], [only] if only.contains("/tree/")),
        "{asked:?}"
    );
    // Where the server cannot say, what is here must do.
    std::fs::remove_file(&template).expect("link");
    server.set(|s| s.refuse = Some("404 Not Found"));
    assert_eq!(hub.resolve("own/name", &quiet).expect("cached"), path);
}

#[test]
fn many_callers_download_once() {
    let server = Server::start(Files::from([("only.gguf".to_string(), gguf())]));
    let cache = tempfile::tempdir().unwrap();
    let hub = server.hub(cache.path());
    let resolve = || {
        let path = hub.resolve("own/name", &quiet).expect("downloaded");
        rusty_loader::open(&path).expect("opens");
        path
    };
    let paths: Vec<_> = std::thread::scope(|s| {
        let callers: Vec<_> = (0..16).map(|_| s.spawn(resolve)).collect();
        callers.into_iter().map(|c| c.join().unwrap()).collect()
    });
    assert!(paths.iter().all(|p| *p == paths[0]), "{paths:?}");
    assert!(paths[0].ends_with("only.gguf"));
    assert_eq!(starts(&server.requests(), "only.gguf"), [0]);
}

#[test]
fn callers_may_be_asynchronous() {
    let server = Server::start(checkpoint("models/qwen3-tied"));
    let cache = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let path = runtime
        .unwrap()
        .block_on(async { server.hub(cache.path()).resolve("own/name", &quiet) });
    assert!(path.expect("downloaded").is_dir());
}

#[test]
fn one_of_several_gguf_files_must_be_named() {
    let files = ["a.gguf", "q8/b.gguf"].map(|name| (name.to_string(), gguf()));
    let server = Server::start(Files::from(files));
    let cache = tempfile::tempdir().unwrap();
    let hub = server.hub(cache.path());
    let two = error(&hub, "own/name");
    assert!(two.contains("a.gguf, q8/b.gguf"), "{two}");
    let path = hub.resolve("own/name:q8/b.gguf", &quiet).expect("named");
    assert!(path.ends_with("q8/b.gguf"));
    rusty_loader::open(&path).expect("opens");
    server.requests();
    let a = hub.resolve("own/name:a.gguf", &quiet).expect("same bytes");
    rusty_loader::open(&a).expect("opens");
    assert_eq!(starts(&server.requests(), "a.gguf"), [0; 0], "one blob");
    let offline = Hub {
        offline: true,
        ..hub.clone()
    };
    let cached = error(&offline, "own/name");
    assert!(
        cached.contains("own/name:FILE: a.gguf, q8/b.gguf"),
        "{cached}"
    );
    let none = error(&hub, "own/name:c.gguf");
    assert!(
        none.contains("'c.gguf'") && none.contains("a.gguf"),
        "{none}"
    );
}

#[test]
fn refusals_name_the_server_and_what_to_do() {
    let server = Server::start(Files::new());
    let cache = tempfile::tempdir().unwrap();
    let hub = server.hub(cache.path());
    let refused = |model: &str, words: &[&str]| {
        let text = error(&hub, model);
        for word in words.iter().chain([&model]) {
            assert!(text.contains(word), "{text} lacks {word}");
        }
    };
    let address = server.address.as_str();
    refused("own/name", &["neither model.safetensors", address]);
    for (status, words) in [
        ("401 Unauthorized", "HF_TOKEN"),
        ("403 Forbidden", "ask for access"),
        ("404 Not Found", "check the id"),
        ("429 Too Many Requests", "try again later"),
        ("500 Internal Server Error", "try again later"),
    ] {
        server.set(|s| s.refuse = Some(status));
        refused("own/name", &[words, address]);
    }
    refused("no-such-file.gguf", &["check the path"]);
    refused("./own/name", &["check the path"]);
}

#[test]
fn an_absent_server_and_a_silent_one_are_named() {
    let cache = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let hub = Hub {
        endpoint: Some(address.clone()),
        cache: Some(cache.path().into()),
        patience: std::time::Duration::from_millis(300),
        ..Hub::default()
    };
    let silent = error(&hub, "own/name");
    assert!(
        silent.contains("silent") && silent.contains(&address),
        "{silent}"
    );
    drop(listener);
    let hub = Hub {
        patience: Hub::default().patience,
        ..hub
    };
    let absent = error(&hub, "own/name");
    assert!(
        absent.contains("HF_ENDPOINT") && absent.contains(&address),
        "{absent}"
    );
    let offline = Hub {
        offline: true,
        ..hub
    };
    let refused = error(&offline, "own/name");
    assert!(refused.contains("HF_HUB_OFFLINE"), "{refused}");
}
