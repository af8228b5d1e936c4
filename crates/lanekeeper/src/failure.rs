//! How a command ends badly, and the exit code that says so.

use std::fmt;
use std::process::ExitCode;

/// Why a command did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Understood and refused, or it did not come out well.
    Refused(String),
    /// The command line or the configuration is wrong.
    Usage(String),
    /// Nobody answered.
    Unreachable(String),
}

impl Failure {
    /// The exit code: a part of the contract with scripts.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Self::Refused(_) => ExitCode::from(1),
            Self::Usage(_) => ExitCode::from(2),
            Self::Unreachable(_) => ExitCode::from(3),
        }
    }

    /// Refused, for the reason that an error gives, with its sources.
    pub(crate) fn refused(what: &str, error: &dyn std::error::Error) -> Self {
        Self::Refused(format!("{what}: {}", with_sources(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Refused(message) | Self::Usage(message) | Self::Unreachable(message)) = self;
        f.write_str(message)
    }
}

/// What an error comes down to: "connection refused", without the layers above it.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// An error with all that caused it. A source whose words its parent already says is left out.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let words = source.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = source.source();
    }
    text
}
