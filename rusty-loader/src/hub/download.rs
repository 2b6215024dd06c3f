//! Downloading what a model needs, checked before it counts.
//!
//! The repository's listing at one commit says what each file is (size and checksum), so that headers of
//! content servers, which lie behind redirects and differ, are never asked. `hf-hub` knows the server's
//! addresses, tokens and transfer protocols; resuming and checking are done here, because its own download to
//! the cache does neither. It is asynchronous: a thread of its own drives it, so that callers need not be and
//! may be.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use futures::Stream;
use hf_hub::repository::{HFRepository, RepoTypeModel};
use hf_hub::{HFClient, HFError};

use super::cache::{Repository, shards};
use super::checksum::Hash;
use super::listing::{BESIDE_WEIGHTS, INDEX, RemoteFile, named, wanted};
use super::model_id::ModelId;
use super::{Hub, Progress};

/// Bytes between two reports of progress.
const REPORT_EVERY: u64 = 1 << 20;

type Done<T> = Result<T, String>;

/// Why a connection gave no file.
enum Failure {
    /// Another may do better, from where this one ended.
    Broken(String),
    /// No other will.
    Refused(String),
}

struct Download<'a> {
    remote: HFRepository<RepoTypeModel>,
    local: &'a Repository,
    id: &'a ModelId,
    attempts: u32,
    patience: Duration,
    reports: Sender<Progress>,
}

/// Downloads a model into the cache, at `commit` where that is known. `Err` says what happened and what to do.
pub(super) fn download(
    hub: &Hub,
    id: &ModelId,
    commit: Option<String>,
    local: &Repository,
    progress: &dyn Fn(&Progress),
) -> Done<()> {
    // Each broken connection is tried again here; the client's own second try covers the listing.
    let mut builder = HFClient::builder().retry_max_attempts(2);
    if let Some(endpoint) = &hub.endpoint {
        builder = builder.endpoint(endpoint);
    }
    if let Some(token) = &hub.token {
        builder = builder.token(token);
    }
    let client = builder.build().map_err(|e| explain(&e))?;
    let (reports, told) = mpsc::channel();
    let download = Download {
        remote: client.model(&id.owner, &id.name),
        local,
        id,
        attempts: hub.attempts.max(1),
        patience: hub.patience,
        reports,
    };
    let outcome = std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|e| format!("cannot be downloaded: {e}"))?;
            runtime.block_on(download.run(commit))
        });
        told.iter().for_each(|report| progress(&report));
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    outcome.map_err(|reason| {
        let server = super::without_credentials(client.endpoint());
        format!("{reason} ({server}/{}/{})", id.owner, id.name)
    })
}

impl Download<'_> {
    async fn run(self, commit: Option<String>) -> Done<()> {
        let commit = match commit {
            Some(commit) => commit,
            None => self.commit().await?,
        };
        let files = self.list(&commit).await?;
        for file in wanted(&files, self.id)? {
            self.file(&commit, file).await?;
            if file.path == INDEX {
                for shard in self.shards(&commit)? {
                    let shard = named(&files, &shard)
                        .ok_or_else(|| format!("has no file '{shard}', which {INDEX} names"))?;
                    self.file(&commit, shard).await?;
                }
            }
        }
        for absent in BESIDE_WEIGHTS {
            if named(&files, absent).is_none()
                && let Err(error) = self.local.set_absent(&commit, absent)
            {
                tracing::debug!("{absent} cannot be marked as absent: {error}");
            }
        }
        if self.id.revision == commit {
            return Ok(());
        }
        self.local
            .set_revision(&self.id.revision, &commit)
            .map_err(|e| format!("cannot be entered into the cache: {e}"))
    }

    async fn commit(&self) -> Done<String> {
        let info = self.remote.info().revision(&self.id.revision).send();
        let info = self.within(info).await.map_err(Failure::words)?;
        let hex = |sha: &String| sha.len() == 40 && sha.bytes().all(|b| b.is_ascii_hexdigit());
        let commit = info.sha.filter(hex);
        commit.ok_or_else(|| "cannot be resolved: the server names no commit".into())
    }

    async fn list(&self, commit: &str) -> Done<Vec<RemoteFile>> {
        let gather = async {
            let tree = self.remote.list_tree().revision(commit).recursive(true);
            let mut entries = std::pin::pin!(tree.send()?);
            let mut files = Vec::new();
            while let Some(entry) = next(entries.as_mut()).await {
                files.extend(RemoteFile::new(entry?));
            }
            Ok(files)
        };
        self.within(gather).await.map_err(Failure::words)
    }

    fn shards(&self, commit: &str) -> Done<Vec<String>> {
        let index = self.local.snapshot(commit).join(INDEX);
        let bytes = std::fs::read(&index).map_err(|e| format!("{}: {e}", index.display()))?;
        shards(&bytes).ok_or_else(|| format!("cannot be used: {INDEX} has no weight_map of names"))
    }

    /// Brings one file into a commit's snapshot.
    async fn file(&self, commit: &str, file: &RemoteFile) -> Done<()> {
        let failed = |e: std::io::Error| format!("cannot be stored: {}: {e}", file.path);
        let blob = match self.local.blob_of(file) {
            Some(blob) => blob,
            None => {
                let _lock = self.local.lock(file).map_err(failed)?;
                // Another process may have brought it while this one waited.
                match self.local.blob_of(file) {
                    Some(blob) => blob,
                    None => {
                        let partial = self.local.partial(file).map_err(failed)?;
                        let blob = self.content(commit, file, &partial).await?;
                        self.local.keep(&partial, &blob).map_err(failed)?;
                        blob
                    }
                }
            }
        };
        self.report(file, file.size);
        self.local.link(commit, &file.path, &blob).map_err(failed)
    }

    /// Completes a file over as many connections as it takes, and returns its digest.
    async fn content(&self, commit: &str, file: &RemoteFile, partial: &Path) -> Done<String> {
        let mut attempt = 1;
        let digest = loop {
            match self.connection(commit, file, partial).await {
                Ok(digest) => break digest,
                Err(Failure::Broken(reason)) if attempt < self.attempts => {
                    tracing::warn!("{}, attempt {attempt}: {reason}", file.path);
                    tokio::time::sleep(Duration::from_millis(100 << attempt.min(6))).await;
                    attempt += 1;
                }
                Err(Failure::Broken(reason)) => {
                    let have = std::fs::metadata(partial).map_or(0, |m| m.len());
                    return Err(format!(
                        "is not complete: {}: {reason}; run the command again to go on after {have} of {} bytes",
                        file.path, file.size
                    ));
                }
                Err(Failure::Refused(reason)) => return Err(format!("{reason} [{}]", file.path)),
            }
        };
        if file.checksum.accepts(&digest, file.size) {
            return Ok(digest);
        }
        let removed = match std::fs::remove_file(partial) {
            Ok(()) => "it was removed".into(),
            Err(e) => format!("remove {}: {e}", partial.display()),
        };
        Err(format!(
            "was not downloaded whole: the checksum of {} is {digest}, which is not what the repository records \
             ({}); {removed}, run the command again",
            file.path,
            file.checksum.recorded()
        ))
    }

    /// Appends what one connection gives, and returns the digest once all is there.
    async fn connection(
        &self,
        commit: &str,
        file: &RemoteFile,
        partial: &Path,
    ) -> Result<String, Failure> {
        let stored = |e: std::io::Error| Failure::Refused(format!("cannot be stored: {e}"));
        let mut part = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(partial)
            .map_err(stored)?;
        if part.metadata().map_err(stored)?.len() > file.size {
            part.set_len(0).map_err(stored)?;
        }
        let have = part.metadata().map_err(stored)?.len();
        let mut hash = file.checksum.hash(file.size);
        hash.read(&part).map_err(stored)?;
        if have < file.size {
            self.receive(commit, file, have, &mut part, &mut hash)
                .await?;
        }
        part.sync_all().map_err(stored)?;
        Ok(hash.finish())
    }

    async fn receive(
        &self,
        commit: &str,
        file: &RemoteFile,
        mut have: u64,
        part: &mut File,
        hash: &mut Hash,
    ) -> Result<(), Failure> {
        let stored = |e: std::io::Error| Failure::Refused(format!("cannot be stored: {e}"));
        let rest = (have > 0).then_some(have..file.size);
        let request = self.remote.download_file_stream().filename(&file.path);
        let request = request.revision(commit).maybe_range(rest);
        let (_, mut content) = self.within(request.send()).await?;
        self.report(file, have);
        let mut reported = have;
        loop {
            let chunk = async { next(Pin::new(&mut content)).await.transpose() };
            let Some(chunk) = self.within(chunk).await? else {
                break;
            };
            if chunk.len() as u64 > file.size - have {
                // A server that does not know ranges sends all of it again.
                part.set_len(0).map_err(stored)?;
                return Err(Failure::Broken(format!(
                    "more than the {} bytes that it has came",
                    file.size
                )));
            }
            part.write_all(&chunk).map_err(stored)?;
            hash.update(&chunk);
            have += chunk.len() as u64;
            if have - reported >= REPORT_EVERY {
                self.report(file, have);
                reported = have;
            }
        }
        match have == file.size {
            true => Ok(()),
            false => Err(Failure::Broken(format!(
                "the connection ended after {have} of {} bytes",
                file.size
            ))),
        }
    }

    fn report(&self, file: &RemoteFile, done: u64) {
        // Nobody listens any more where the caller's report panicked.
        let _ = self.reports.send(Progress {
            file: file.path.clone(),
            done,
            total: file.size,
        });
    }

    /// What the server answers, unless it stays silent for too long.
    async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, HFError>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.patience, answer).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Failure::of(&error)),
            Err(_) => Err(Failure::Broken(format!(
                "cannot be reached: the server was silent for {} s; check the connection and HF_ENDPOINT",
                self.patience.as_secs()
            ))),
        }
    }
}

/// The next item of a stream.
async fn next<S: Stream>(mut stream: Pin<&mut S>) -> Option<S::Item> {
    std::future::poll_fn(|context| stream.as_mut().poll_next(context)).await
}

impl Failure {
    fn of(error: &HFError) -> Self {
        let passing = match error {
            HFError::Request { .. } | HFError::RateLimited { .. } | HFError::Xet { .. } => true,
            HFError::Http { context } => context.status.is_server_error(),
            _ => false,
        };
        let words = explain(error);
        match passing {
            true => Failure::Broken(words),
            false => Failure::Refused(words),
        }
    }

    fn words(self) -> String {
        match self {
            Failure::Broken(words) | Failure::Refused(words) => words,
        }
    }
}

/// An error of the hub's client, and what to do about it, as the end of "model 'X' ..".
fn explain(error: &HFError) -> String {
    let unknown = |code: Option<&str>| match code {
        Some("RevisionNotFound" | "EntryNotFound") => {
            "is on the hub, but not with this revision or file; check what stands after '@' and ':'"
        }
        _ => "is not on the hub; check the id, or set HF_TOKEN if it is private",
    };
    let context = match error {
        HFError::AuthRequired { context }
        | HFError::Forbidden { context }
        | HFError::RateLimited { context, .. }
        | HFError::Http { context } => Some(context),
        HFError::RepoNotFound { context, .. }
        | HFError::RevisionNotFound { context, .. }
        | HFError::EntryNotFound { context, .. } => context.as_ref(),
        _ => None,
    };
    let Some(context) = context else {
        return format!(
            "cannot be downloaded: {}; check the connection and HF_ENDPOINT",
            with_causes(error)
        );
    };
    let what = match context.status.as_u16() {
        // To the unknown, the hub does not tell the absent from the private.
        401 => {
            "does not exist or is private; check the id, and set HF_TOKEN to a token that may read it"
        }
        403 => "may not be read with this token; ask for access on its page, then set HF_TOKEN",
        404 => unknown(context.error_code.as_deref()),
        429 => {
            "cannot be downloaded now: the server asks to wait; try again later, or set HF_TOKEN"
        }
        _ => "cannot be downloaded now; try again later",
    };
    let said = context.server_message.as_deref().unwrap_or_default();
    let (colon, said) = if said.is_empty() {
        ("", "")
    } else {
        (": ", said)
    };
    format!(
        "{what} [{} of {}{colon}{said}]",
        context.status, context.url
    )
}

fn with_causes(error: &HFError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text
}
