//! Names under which findings about a device are kept.

use rusty_backend::cuda::nvrtc;
use rusty_backend::{Family, Target};
use std::time::UNIX_EPOCH;

/// Where findings about `what` are kept: by device, driver, compiler and build of this program; none where this program
/// cannot tell its build.
pub(crate) fn name(folder: &str, target: &Target, what: &str) -> Option<String> {
    let program = std::env::current_exe().ok()?.metadata().ok()?;
    let built = program.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let compiler = match target.family {
        Family::Cuda => nvrtc::version().unwrap_or_default(),
        _ => String::new(),
    };
    let build = format!(
        "{}-{}-{}",
        env!("CARGO_PKG_VERSION"),
        program.len(),
        built.as_nanos()
    );
    let device = format!(
        "{} {:?} {} {compiler}",
        target.name, target.family, target.driver
    );
    let words = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let (device, build) = (words(&device), words(&build));
    Some(format!("{folder}/{device}/{build}/{}", words(what)))
}
