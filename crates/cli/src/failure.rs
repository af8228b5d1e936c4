//! Why a command fails, and its exit code.

use std::fmt;
use std::process::ExitCode;

/// Why a command did not do what was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request was understood and refused, or the operation failed.
    Refused(String),
    /// The command line or the configuration is wrong.
    Usage(String),
    /// The node, database or chain did not answer.
    Unreachable(String),
}

impl Failure {
    /// The exit code, which scripts rely on.
    #[must_use]
    pub fn code(&self) -> ExitCode {
        match self {
            Self::Refused(_) => ExitCode::from(1),
            Self::Usage(_) => ExitCode::from(2),
            Self::Unreachable(_) => ExitCode::from(3),
        }
    }

    /// [`Failure::Refused`] with the text of an error and its sources.
    pub fn refused(what: &str, error: &dyn std::error::Error) -> Self {
        Self::Refused(format!("{what}: {}", with_sources(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(message) | Self::Usage(message) | Self::Unreachable(message)) = self;
        f.write_str(message)
    }
}

/// The innermost source of an error: "connection refused" without the layers above it.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// An error with its sources. A source whose text its parent already contains is left out.
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let source_text = source.to_string();
        if !text.contains(&source_text) {
            text = format!("{text}: {source_text}");
        }
        next = source.source();
    }
    text
}
