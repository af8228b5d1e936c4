//! Printing that never panics: the reader may close the pipe (`lanekeeper tx list | head`), and a node must
//! keep running without the process that collects its output.

use std::fmt;
use std::io::{self, Write as _};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::decode;
use crate::failure::Failure;
use crate::output::{Tone, paint};

/// Prints a line to stdout.
#[macro_export]
macro_rules! print_line {
    ($($arg:tt)*) => {
        $crate::output::print_arguments(format_args!($($arg)*))
    };
}

/// The function behind [`print_line!`].
pub fn print_arguments(line: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    // A closed stdout is no failure of the command.
    writeln!(out, "{line}").and_then(|()| out.flush()).ok();
}

/// Prints a less important line.
pub fn print_quiet(line: &str) {
    print_line!("{}", paint(Tone::Quiet, line));
}

/// Prints one JSON value in one line.
pub fn print_json(value: &Value) {
    print_line!("{value}");
}

/// Prints a node's answer: unchanged where `--json` is set, else as `describe` shows it.
pub fn print_answer<T: DeserializeOwned>(
    answer: &Value,
    json: bool,
    describe: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    if json {
        print_json(answer);
    } else {
        print_line!("{}", describe(&decode(answer)?));
    }
    Ok(())
}

/// Like [`print_answer`] for the list in a field of the answer.
pub fn print_list<T: DeserializeOwned>(
    answer: &Value,
    field: &str,
    json: bool,
    describe: impl FnOnce(&[T]) -> String,
) -> Result<(), Failure> {
    let shown = if json { answer } else { &answer[field] };
    print_answer(shown, json, |items: &Vec<T>| describe(items))
}

/// Prints a line to stderr.
pub fn print_error(line: &dyn fmt::Display) {
    // A closed stderr leaves no place for the message.
    writeln!(io::stderr(), "lanekeeper: {line}").ok();
}

/// Stderr for log lines. The standard writer panics when stderr is closed, which would end the task
/// that logs, and with it the node.
#[derive(Clone, Copy)]
pub struct LogLines;

impl io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(bytes).ok(); // see above
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
