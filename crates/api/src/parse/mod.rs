//! Parsing of requests: a value is valid by its type, or the caller gets a problem document.
//!
//! Every message names the value, the rule and what to do. Invalid input never panics.

mod amount;
mod batch;
mod body;
mod field_path;
mod header;
mod identifier;
mod json;
mod operation;
mod page;
mod payload;
mod query;
mod tx;
mod wait;

pub(crate) use amount::{chain_id, plain_decimal};
pub(crate) use batch::parse_batch;
pub(crate) use body::{check_content_type, read_json_body};
pub(crate) use field_path::FieldPath;
pub(crate) use header::{
    IDEMPOTENCY_KEY, header_text, idempotency_key, last_event_id, parse_trace_id, traceparent,
};
pub(crate) use identifier::{address, hash, tx_id};
pub(crate) use operation::{parse_empty_object, parse_hash_mark, parse_release, parse_resume};
pub(crate) use page::{event_filter, lane_page, tx_cursor_text, tx_filter};
pub(crate) use query::Query;
pub(crate) use tx::{RequestContext, parse_new_tx, request_id};
pub(crate) use wait::{Wait, parse_wait};

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::problem::{FieldError, Problem, ProblemKind};

/// The rule that a value breaks, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleViolation {
    /// A clause that follows the value's name in a message.
    text: Cow<'static, str>,
    /// The kind of problem where the value is a field.
    field_problem: ProblemKind,
}

impl RuleViolation {
    pub(crate) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self::of_kind(ProblemKind::InvalidField, text)
    }

    /// The violation of a rule whose problem has a type of its own: callers handle it in code.
    pub(crate) fn of_kind(kind: ProblemKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            text: text.into(),
            field_problem: kind,
        }
    }

    /// The violation of a text that does not have the expected form.
    pub(crate) fn must_be(expected: &str, text: &str) -> Self {
        Self::new(format!("must be {expected}, not {}", excerpt(text)))
    }

    /// The violation of a field of the body.
    pub(crate) fn in_field(self, name: &str) -> Problem {
        self.in_body(FieldPath::new(&[name]))
    }

    /// The violation of a value anywhere in the body.
    pub(crate) fn in_body(self, path: FieldPath<'_>) -> Problem {
        Problem {
            field_error: Some(FieldError {
                pointer: path.pointer(),
                rule: self.text.clone().into_owned(),
            }),
            ..Problem::new(self.field_problem, format!("{path} {}", self.text))
        }
    }

    pub(crate) fn in_query(self, name: &str) -> Problem {
        Problem::new(
            ProblemKind::InvalidQuery,
            format!("query parameter `{name}` {}", self.text),
        )
    }

    pub(crate) fn in_path(self, name: &str) -> Problem {
        Problem::new(
            ProblemKind::InvalidPath,
            format!("`{name}` in the path {}", self.text),
        )
    }

    pub(crate) fn in_header(self, name: &str) -> Problem {
        Problem::new(
            ProblemKind::InvalidHeader,
            format!("header `{name}` {}", self.text),
        )
    }
}

/// Characters of a caller's text that a response repeats.
const EXCERPT_CHARS: usize = 48;

/// A caller's text for a message: quoted, escaped and shortened.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
