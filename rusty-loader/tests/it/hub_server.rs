//! A hub on a local port: it answers as the public one does (weights lie behind a redirect to a server that
//! knows nothing of commits) and misbehaves as it is told.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rusty_loader::hub::Hub;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// File contents by path.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What the server does and what it was asked.
#[derive(Default)]
pub struct State {
    files: Files,
    requests: Vec<String>,
    /// Connections that send no byte of weights behind this position ...
    pub cut_after: usize,
    /// ... as many as this.
    pub cuts: usize,
    /// The file whose content is not what the listing says.
    pub spoilt: Option<&'static str>,
    /// Whether requests for a part get the whole.
    pub ignore_ranges: bool,
    /// Answer everything with this status.
    pub refuse: Option<&'static str>,
}

pub struct Server {
    pub address: String,
    state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    target: String,
    from: Option<usize>,
    token: bool,
}

impl Server {
    pub fn start(files: Files) -> Self {
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

    pub fn set(&self, edit: impl FnOnce(&mut State)) {
        edit(&mut self.state.lock().expect("state"));
    }

    /// What was asked since the last call: `METHOD TARGET [from BYTE]`.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().expect("state").requests)
    }

    pub fn hub(&self, cache: &Path) -> Hub {
        Hub {
            endpoint: Some(self.address.clone()),
            token: Some("hf_test".into()),
            cache: Some(cache.into()),
            ..Hub::default()
        }
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace().map(str::to_string);
    let mut request = Request {
        method: words.next()?,
        target: words.next()?,
        from: None,
        token: false,
    };
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_ascii_lowercase();
        if let Some(range) = header.strip_prefix("range: bytes=") {
            request.from = range.split_once('-')?.0.parse().ok();
        }
        request.token |= header == "authorization: bearer hf_test";
        if header.is_empty() {
            return Some(request);
        }
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let request = read_request(&stream)?;
    let mut state = state.lock().expect("state");
    let from = request.from.map(|from| format!(" from {from}"));
    state.requests.push(format!(
        "{} {}{}",
        request.method,
        request.target,
        from.unwrap_or_default()
    ));
    let mut send = |status: &str, headers: &str, length: usize, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body).ok()
    };
    if let Some(status) = state.refuse {
        return send(status, "", 0, b"");
    }
    if !request.token {
        return send("401 Unauthorized", "", 0, b"");
    }
    let path = request.target.split('?').next()?;
    if path == "/api/models/own/name/revision/main" {
        let body = serde_json::json!({"id": "own/name", "sha": COMMIT}).to_string();
        let json = "Content-Type: application/json\r\n";
        return send("200 OK", json, body.len(), body.as_bytes());
    }
    if path == format!("/api/models/own/name/tree/{COMMIT}") {
        let entries: Vec<_> = state.files.iter().map(|(p, b)| entry(p, b)).collect();
        let body = serde_json::to_vec(&entries).ok()?;
        let json = "Content-Type: application/json\r\n";
        return send("200 OK", json, body.len(), &body);
    }
    let resolved = path.strip_prefix(&format!("/own/name/resolve/{COMMIT}/"));
    let file = resolved.or(path.strip_prefix("/content/"))?.to_string();
    let Some(mut content) = state.files.get(&file).cloned() else {
        return send("404 Not Found", "X-Error-Code: RepoNotFound\r\n", 0, b"");
    };
    if resolved.is_some() && stored_large(&file) {
        let there = format!("X-Repo-Commit: {COMMIT}\r\nLocation: /content/{file}\r\n");
        return send("302 Found", &there, 0, b"");
    }
    if state.spoilt == Some(file.as_str()) {
        content[0] ^= 1;
    }
    let part = request.from.filter(|_| !state.ignore_ranges);
    let (status, from) = part.map_or(("200 OK", 0), |from| ("206 Partial Content", from));
    let mut end = content.len();
    if request.method == "HEAD" {
        end = from;
    } else if stored_large(&file) && state.cuts > 0 {
        state.cuts -= 1;
        end = end.min(state.cut_after.max(from));
    }
    send(status, "", content.len() - from, &content[from..end])
}

fn stored_large(path: &str) -> bool {
    path.ends_with(".safetensors") || path.ends_with(".gguf")
}

/// A line of the listing, as the public hub words it.
fn entry(path: &str, content: &[u8]) -> serde_json::Value {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let object = |content: &[u8]| {
        let mut hash = Sha1::new_with_prefix(format!("blob {}\0", content.len()));
        hash.update(content);
        hex(&hash.finalize())
    };
    let size = content.len();
    if !stored_large(path) {
        return serde_json::json!({"type": "file", "oid": object(content), "size": size, "path": path});
    }
    let digest = hex(&Sha256::digest(content));
    let pointer =
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n");
    serde_json::json!({
        "type": "file", "oid": object(pointer.as_bytes()), "size": size, "path": path,
        "lfs": {"oid": digest, "size": size, "pointerSize": pointer.len()},
    })
}
