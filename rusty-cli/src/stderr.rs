//! What is said on stderr beside answers. No work depends on somebody reading it: where stderr is closed or full, it is dropped.

use std::fmt::Display;
use std::io::Write;

/// Says a line.
pub fn line(said: impl Display) {
    text(format_args!("{said}\n"));
}

/// Says text as it is, with no end of the line.
pub fn text(said: impl Display) {
    // In one piece: other threads say something, too.
    let said = said.to_string();
    let _ = std::io::stderr().write_all(said.as_bytes());
}
