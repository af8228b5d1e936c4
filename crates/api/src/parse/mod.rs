//! Parsing at the door: what comes through is right by its type, or told to the caller in words.
//!
//! Every message says which value, which rule, and what to do. Bad input never panics.

mod account;
mod amount;
mod batch;
mod body;
mod header;
mod json;
mod page;
mod payload;
mod query;
mod tx;
mod wait;

pub(crate) use account::{address, hash, tx_id};
pub(crate) use amount::chain_id;
pub(crate) use batch::batch;
pub(crate) use body::{discard, json_body};
pub(crate) use header::{header_text, idempotency_key, last_event_id, request_name, traceparent};
pub(crate) use page::{event_filter, lane_page, tx_filter};
pub(crate) use query::Query;
pub(crate) use tx::{Door, new_tx, request_id};
pub(crate) use wait::{Wait, wait};

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::problem::{Problem, ProblemKind};

/// The rule that a value breaks, and what to do: reads on after the value's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) Cow<'static, str>);

impl Broken {
    /// A rule in fixed words.
    pub(crate) fn rule(words: &'static str) -> Self {
        Self(Cow::Borrowed(words))
    }

    /// A rule with the offending value in it.
    pub(crate) fn by(words: String) -> Self {
        Self(Cow::Owned(words))
    }

    /// Broken by a field of the body.
    pub(crate) fn field(self, path: &str) -> Problem {
        Problem::new(ProblemKind::InvalidField, format!("`{path}` {}", self.0))
    }

    /// Broken by a query parameter.
    pub(crate) fn query(self, name: &str) -> Problem {
        Problem::new(
            ProblemKind::InvalidQuery,
            format!("query parameter `{name}` {}", self.0),
        )
    }

    /// Broken by a part of the path.
    pub(crate) fn path(self, name: &str) -> Problem {
        Problem::new(
            ProblemKind::InvalidPath,
            format!("`{name}` in the path {}", self.0),
        )
    }

    /// Broken by a header.
    pub(crate) fn header(self, name: &str) -> Problem {
        Problem::new(
            ProblemKind::InvalidHeader,
            format!("header `{name}` {}", self.0),
        )
    }
}

/// How much of a caller's text an answer repeats.
const EXCERPT_CHARS: usize = 48;

/// A caller's text for a message: quoted, escaped and short.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
