//! Query strings. Unknown parameters are refused: a misspelt filter must not silently select everything.

use std::borrow::Cow;

use crate::parse::{RuleViolation, excerpt};
use crate::problem::{Problem, ProblemKind};

/// The parameters of a call, each known and present once.
#[derive(Debug)]
pub(crate) struct Query<'a> {
    pairs: Vec<(&'static str, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Parses a query string; `known` are the parameters of the call.
    pub(crate) fn parse(
        raw: Option<&'a str>,
        known: &'static [&'static str],
    ) -> Result<Self, Problem> {
        let mut pairs: Vec<(&'static str, Cow<'a, str>)> = Vec::new();
        for pair in raw
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = percent_decode(name)?;
            let Some(known_name) = known.iter().find(|known| **known == name) else {
                return Err(unknown(&name, known));
            };
            if pairs.iter().any(|(seen, _)| seen == known_name) {
                return Err(RuleViolation::new("is there twice: send it once").in_query(known_name));
            }
            pairs.push((known_name, percent_decode(value)?));
        }
        Ok(Self { pairs })
    }

    pub(crate) fn get(&self, name: &'static str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| &**value)
    }

    pub(crate) fn optional<T>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, RuleViolation>,
    ) -> Result<Option<T>, Problem> {
        self.get(name)
            .map(parse)
            .transpose()
            .map_err(|violation| violation.in_query(name))
    }

    pub(crate) fn required<T>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, RuleViolation>,
    ) -> Result<T, Problem> {
        self.optional(name, parse)?
            .ok_or_else(|| RuleViolation::new("is missing: it is required here").in_query(name))
    }
}

fn unknown(name: &str, known: &[&str]) -> Problem {
    let help = match known {
        [] => "this call has none".to_owned(),
        known => format!("known parameters are {}", known.join(", ")),
    };
    let name = excerpt(name);
    Problem::new(
        ProblemKind::InvalidQuery,
        format!("query parameter {name} is not known here: remove it ({help})"),
    )
}

/// Also decodes `+` as a space.
fn percent_decode(text: &str) -> Result<Cow<'_, str>, Problem> {
    if !text.bytes().any(|b| b == b'%' || b == b'+') {
        return Ok(Cow::Borrowed(text));
    }
    let violation = || {
        Problem::new(
            ProblemKind::InvalidQuery,
            format!(
                "{} in the query is not percent-encoded UTF-8",
                excerpt(text)
            ),
        )
    };
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = digit().zip(digit()).ok_or_else(violation)?;
                u8::try_from(high * 16 + low).expect("two hex digits are one byte")
            }
            plain => plain,
        });
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Cow::Owned(text)),
        Err(_) => Err(violation()),
    }
}
