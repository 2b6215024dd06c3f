//! Progress bars on a terminal, nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::OnceCell;
use std::io::IsTerminal;

/// A bar counting `unit` (bytes print as MiB); hidden where stderr is no terminal.
pub fn bar(what: &str, bytes: bool) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(None, target);
    let template = if bytes {
        "{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"
    } else {
        "{msg} [{bar:32}] {pos}/{len} {eta}"
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(what.to_string());
    bar
}

/// A bar that comes with the first measurement of a GPU's kernels and goes with this value.
#[derive(Default)]
pub struct Tuning(OnceCell<ProgressBar>);

impl Tuning {
    /// Shows that `done` of `total` measurements are made.
    pub fn show(&self, done: u64, total: u64) {
        let bar = self.0.get_or_init(|| bar("tuning", false));
        bar.set_length(total);
        bar.set_position(done);
    }
}

impl Drop for Tuning {
    fn drop(&mut self) {
        if let Some(bar) = self.0.get() {
            bar.finish_and_clear();
        }
    }
}
