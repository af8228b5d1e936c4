//! Colours, only where a person looks.

use std::io::IsTerminal as _;
use std::sync::LazyLock;

/// What a piece of text means to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Busy,
    Quiet,
    Strong,
}

/// Whether stdout shows colours: a terminal, and nobody said no (<https://no-color.org>).
static COLOURED: LazyLock<bool> = LazyLock::new(|| {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::io::stdout().is_terminal()
});

/// Colours a text when a person looks.
pub(crate) fn paint(tone: Tone, text: &str) -> String {
    if !*COLOURED {
        return text.to_owned();
    }
    let code = match tone {
        Tone::Plain => return text.to_owned(),
        Tone::Good => "32",
        Tone::Bad => "31",
        Tone::Busy => "33",
        Tone::Quiet => "2",
        Tone::Strong => "1",
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// Text from a server, safe to show: control characters could rewrite the terminal.
pub(crate) fn safe(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
