//! Models of a hub that lives in this test: a server on a local port.

use rusty_loader::hub::Hub;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the server does and what it was asked.
#[derive(Default)]
struct State {
    files: HashMap<String, Vec<u8>>,
    requests: Vec<String>,
    /// Bodies longer than this are cut off here.
    cut_after: Option<usize>,
    /// Announce another checksum than the content has.
    wrong_checksum: bool,
    /// Answer everything with this status.
    refuse: Option<&'static str>,
}

struct Server {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn start(files: HashMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port");
        let address = format!("http://{}", listener.local_addr().expect("address"));
        let state = Arc::new(Mutex::new(State {
            files,
            ..State::default()
        }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || answer(stream, &shared));
            }
        });
        Self { address, state }
    }

    fn set(&self, edit: impl FnOnce(&mut State)) {
        edit(&mut self.state.lock().expect("state"));
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().expect("state").requests)
    }

    fn hub(&self, cache: &Path) -> Hub {
        Hub {
            endpoint: Some(self.address.clone()),
            token: Some("hf_test".into()),
            cache: Some(cache.into()),
            piece_bytes: 64 << 10,
            ..Hub::default()
        }
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut range = None;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_ascii_lowercase();
        if let Some(bytes) = header.strip_prefix("range: bytes=") {
            let (from, to) = bytes.split_once('-')?;
            range = Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok()? + 1));
        }
        if header.is_empty() {
            break;
        }
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?, words.next()?.to_string());
    let mut state = state.lock().expect("state");
    state.requests.push(match range {
        Some((from, _)) => format!("{method} {target} from {from}"),
        None => format!("{method} {target}"),
    });
    if let Some(status) = state.refuse {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return stream.write_all(head.as_bytes()).ok();
    }
    if target.starts_with("/api/models/own/name/tree/main") {
        let entries: Vec<_> = state
            .files
            .iter()
            .map(|(path, b)| serde_json::json!({"type": "file", "oid": "0", "size": b.len(), "path": path}))
            .collect();
        let body = serde_json::to_vec(&entries).ok()?;
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        return stream.write_all(&body).ok();
    }
    let file = target.strip_prefix("/own/name/resolve/main/");
    let Some(content) = file.and_then(|f| state.files.get(f)) else {
        let head = "HTTP/1.1 404 Not Found\r\nX-Error-Code: RepoNotFound\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        return stream.write_all(head.as_bytes()).ok();
    };
    let mut hash = Sha256::new();
    hash.update(content);
    if state.wrong_checksum {
        hash.update(b"!");
    }
    let etag: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    let (from, to) = range.unwrap_or((0, content.len()));
    let body = &content[from..to.min(content.len())];
    let status = if range.is_some() {
        "206 Partial Content"
    } else {
        "200 OK"
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nETag: \"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    if method != "HEAD" {
        let end = state
            .cut_after
            .map_or(body.len(), |cut| cut.saturating_sub(from).min(body.len()));
        stream.write_all(&body[..end]).ok()?;
    }
    Some(())
}

fn checkpoint(folder: &str) -> HashMap<String, Vec<u8>> {
    let folder =
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens")).join(folder);
    std::fs::read_dir(folder)
        .expect("folder")
        .map(|e| e.expect("entry").path())
        .map(|p| {
            let name = p
                .file_name()
                .and_then(|n| n.to_str())
                .expect("name")
                .to_string();
            (name, std::fs::read(p).expect("file"))
        })
        .collect()
}

fn quiet(_: &rusty_loader::hub::Progress) {}

#[test]
fn a_checkpoint_is_downloaded_once_and_opens() {
    for folder in ["models/qwen3-tied", "models/llama-llama3rope-sharded"] {
        let server = Server::start(checkpoint(folder));
        let cache = tempfile::tempdir().expect("cache");
        let seen = Mutex::new(Vec::new());
        let path = server
            .hub(cache.path())
            .resolve("own/name", &|p| seen.lock().expect("seen").push(p.clone()))
            .expect("downloaded");
        rusty_loader::open(&path).expect("opens");
        let seen = seen.into_inner().expect("seen");
        assert!(seen.iter().all(|p| p.done <= p.total));
        assert!(
            seen.iter()
                .any(|p| p.file.ends_with(".safetensors") && p.done == p.total)
        );
        // What a checkpoint does not need stays where it is.
        assert!(!path.join("expected.safetensors").exists());
        assert!(!server.requests().is_empty());
        let again = server
            .hub(cache.path())
            .resolve("own/name", &quiet)
            .expect("cached");
        assert_eq!(again, path);
        let offline = Hub {
            offline: true,
            ..server.hub(cache.path())
        };
        assert_eq!(offline.resolve("own/name", &quiet).expect("cached"), path);
        assert_eq!(server.requests(), Vec::<String>::new());
    }
}

#[test]
fn a_cut_download_goes_on_where_it_ended() {
    let server = Server::start(checkpoint("models/qwen3-tied"));
    let cache = tempfile::tempdir().expect("cache");
    let hub = server.hub(cache.path());
    let cut = 3 * hub.piece_bytes as usize + 100;
    server.set(|s| s.cut_after = Some(cut));
    let error = hub
        .resolve("own/name", &quiet)
        .expect_err("cut")
        .to_string();
    assert!(
        error.contains("own/name") && error.contains("run the command again"),
        "{error}"
    );
    server.set(|s| s.cut_after = None);
    server.requests();
    let path = hub.resolve("own/name", &quiet).expect("the rest");
    rusty_loader::open(&path).expect("opens");
    let asked = server.requests();
    let weights: Vec<_> = asked
        .iter()
        .filter(|r| r.starts_with("GET") && r.contains("model.safetensors"))
        .collect();
    let first = format!("from {}", 3 * hub.piece_bytes);
    assert!(weights[0].ends_with(&first), "{weights:?}");
}

#[test]
fn a_wrong_checksum_is_refused_and_removed() {
    let server = Server::start(checkpoint("models/qwen3-tied"));
    let cache = tempfile::tempdir().expect("cache");
    let hub = server.hub(cache.path());
    server.set(|s| s.wrong_checksum = true);
    let error = hub
        .resolve("own/name", &quiet)
        .expect_err("checksum")
        .to_string();
    assert!(
        error.contains("SHA-256") && error.contains("removed"),
        "{error}"
    );
    let blobs = std::fs::read_dir(cache.path().join("models--own--name/blobs")).expect("blobs");
    assert_eq!(blobs.count(), 0);
    server.set(|s| s.wrong_checksum = false);
    hub.resolve("own/name", &quiet).expect("whole now");
}

#[test]
fn one_of_several_gguf_files_must_be_named() {
    let gguf = |name: &str| {
        (
            name.to_string(),
            checkpoint("gguf/qwen3-float")["F16.gguf"].clone(),
        )
    };
    let server = Server::start(HashMap::from([gguf("a.gguf"), gguf("b.gguf")]));
    let cache = tempfile::tempdir().expect("cache");
    let hub = server.hub(cache.path());
    let error = hub
        .resolve("own/name", &quiet)
        .expect_err("two")
        .to_string();
    assert!(
        error.contains("a.gguf") && error.contains("b.gguf"),
        "{error}"
    );
    let path = hub.resolve("own/name:b.gguf", &quiet).expect("named");
    assert!(path.ends_with("b.gguf"));
    rusty_loader::open(&path).expect("opens");
    let error = hub
        .resolve("own/name:c.gguf", &quiet)
        .expect_err("none")
        .to_string();
    assert!(error.contains("c.gguf"), "{error}");
}

#[test]
fn refusals_say_what_to_do() {
    let server = Server::start(HashMap::new());
    let cache = tempfile::tempdir().expect("cache");
    let hub = server.hub(cache.path());
    let error = |model: &str| hub.resolve(model, &quiet).expect_err(model).to_string();
    assert!(error("own/name").contains("neither safetensors"));
    let other = error("own/other");
    assert!(other.contains("check the id"), "{other}");
    server.set(|s| s.refuse = Some("401 Unauthorized"));
    assert!(error("own/name").contains("HF_TOKEN"));
    server.set(|s| s.refuse = Some("403 Forbidden"));
    assert!(error("own/name").contains("ask for access"));
    assert!(error("no-such-file.gguf").contains("check the path"));
    let offline = Hub {
        offline: true,
        ..server.hub(cache.path())
    };
    let refused = offline
        .resolve("own/name", &quiet)
        .expect_err("offline")
        .to_string();
    assert!(refused.contains("HF_HUB_OFFLINE"), "{refused}");
}
