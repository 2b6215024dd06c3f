//! Programs that answer questions line by line, so that a peer starts once for all that it is asked.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running program that is asked and answers.
pub struct Conversation {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    child: Child,
}

impl Conversation {
    /// Starts a program that answers each line that it is told with a line.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start(program: &mut Command) -> Self {
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        let (to, from) = (child.stdin.take(), child.stdout.take());
        Self {
            to: to.expect("was asked for"),
            from: BufReader::new(from.expect("was asked for")),
            child,
        }
    }

    /// The answer to a line: the next one with an object of JSON, as libraries may print what they like.
    ///
    /// # Errors
    /// The program has ended: it said why on this process's own standard error.
    pub fn ask(&mut self, line: &str) -> io::Result<String> {
        writeln!(self.to, "{line}")?;
        loop {
            let mut answer = String::new();
            if self.from.read_line(&mut answer)? == 0 {
                let ended = "the program ended without an answer";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, ended));
            }
            if answer.starts_with('{') {
                return Ok(answer);
            }
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // It waits for the next line, which never comes. One that ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
