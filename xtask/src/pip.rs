//! Packages of PyPI, each in a folder of its own below `target/`.

use std::path::Path;
use std::process::Command;

/// Python's pip, told to install a package, as a requirement names it, into a folder.
pub fn install(package: &str, folder: &Path) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet"])
        .args(["--disable-pip-version-check", "--root-user-action"])
        .args(["ignore", "--target"])
        .arg(folder)
        .arg(package);
    pip
}
