//! Colours, on a terminal only.

use std::io::IsTerminal as _;
use std::sync::LazyLock;

/// What a piece of text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Bad,
    Busy,
    Quiet,
    Strong,
}

/// Whether stdout shows colours: it is a terminal, and `NO_COLOR` is not set (<https://no-color.org>).
static COLOURED: LazyLock<bool> = LazyLock::new(|| {
    let is_disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !is_disabled && std::io::stdout().is_terminal()
});

/// Colours a text on a terminal.
pub fn paint(tone: Tone, text: &str) -> String {
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

/// Replaces control characters, which could rewrite the terminal, in text from a server.
pub fn safe(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
