//! The `rusty` command, started with arguments.

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub(crate) fn golden(path: &str) -> String {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens"));
    root.join(path).to_str().expect("path").into()
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rusty"));
    command
        .args(arguments)
        .env("RUST_LOG", "warn")
        .env("RUST_BACKTRACE", "0")
        .env_remove("RUSTY_CACHE")
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null());
    command
}

pub(crate) fn output(arguments: &[&str]) -> Output {
    command(arguments).output().expect("starts")
}

/// Standard output of a command that must succeed.
pub(crate) fn stdout(arguments: &[&str]) -> String {
    said(&mut command(arguments)).0
}

/// What it says with a cache of its own.
pub(crate) fn stdout_with_cache(cache: &Path, arguments: &[&str]) -> String {
    said(command(arguments).env("XDG_CACHE_HOME", cache)).0
}

/// Standard output and errors of a command that must succeed.
pub(crate) fn said(command: &mut Command) -> (String, String) {
    let output = command.output().expect("starts");
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success(), "{command:?}: {errors}");
    (String::from_utf8(output.stdout).expect("UTF-8"), errors)
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(arguments)).expect("JSON")
}

/// Exit code and message of a command that must fail.
pub(crate) fn failure(arguments: &[&str]) -> (i32, String) {
    let output = output(arguments);
    let errors = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(!errors.contains("panicked"), "{errors}");
    (output.status.code().expect("a code"), errors)
}

pub(crate) fn with_input(arguments: &[&str], input: &str) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(input.as_bytes()).expect("input");
    drop(stdin);
    child.wait_with_output().expect("ends")
}
