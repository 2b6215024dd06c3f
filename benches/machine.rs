//! What a record says of where and when it was made.

use std::process::Command;
use std::sync::LazyLock;

/// The processor by its own account.
pub fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("model name"));
    line.map_or("an unknown CPU".into(), |l| {
        l.trim_start_matches([' ', '\t', ':']).to_owned()
    })
}

/// Day and minute.
pub fn now() -> String {
    said(Command::new("date").args(["-u", "+%F %H:%M UTC"]))
}

/// The commit that is checked out, and whether files differed from it when this was first asked: records do once they are written.
pub fn commit() -> &'static str {
    static COMMIT: LazyLock<String> = LazyLock::new(|| {
        said(Command::new("git").args(["describe", "--always", "--dirty", "--exclude=*"]))
    });
    &COMMIT
}

/// What a command prints.
fn said(command: &mut Command) -> String {
    let output = command.output().map(|o| o.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}
