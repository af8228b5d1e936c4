//! Printing that never panics: a reader may go away at any time (`lanekeeper tx list | head`), and a
//! node must outlive whoever collected its output.

use std::fmt;
use std::io::{self, Write as _};

/// Prints a line to stdout.
macro_rules! say {
    ($($arg:tt)*) => {
        $crate::output::say_line(format_args!($($arg)*))
    };
}
pub(crate) use say;

/// What [`say!`] does.
pub(crate) fn say_line(line: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    // Nobody reads any more: there is nobody to tell either.
    writeln!(out, "{line}").and_then(|()| out.flush()).ok();
}

/// Prints a line to stderr.
pub(crate) fn complain(line: &dyn fmt::Display) {
    // As above.
    writeln!(io::stderr(), "lanekeeper: {line}").ok();
}

/// Stderr for log lines. The usual writer panics when stderr is closed, which would end the task
/// that logs, and with it the node.
#[derive(Clone, Copy)]
pub(crate) struct LogLines;

impl io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // As above.
        io::stderr().write_all(bytes).ok();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
