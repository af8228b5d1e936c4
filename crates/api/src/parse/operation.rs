//! The bodies of operations on lanes and reserved nonces.

use domain::{B256, Holder};
use serde::de::MapAccess;

use crate::parse::identifier::{hash, hyphenated_uuid};
use crate::parse::json::{Fields, Json, fill};
use crate::parse::tx::parse_fields;
use crate::parse::{RuleViolation, excerpt};
use crate::problem::Problem;

/// The longest reason for an operation, in bytes.
const REASON_BYTES_MAX: usize = 500;

/// Parses a body that may be left out: nothing, or an object without fields.
pub(crate) fn parse_empty_object(body: &[u8]) -> Result<(), Problem> {
    if body.is_empty() {
        return Ok(());
    }
    parse_fields::<NoFields>(body).map(|NoFields| ())
}

/// Parses a mark that names a transaction: who holds the nonce, and the hash.
pub(crate) fn parse_hash_mark(body: &[u8]) -> Result<(Holder, B256), Problem> {
    let raw: RawHashMark<'_> = parse_fields(body)?;
    let holder = required("holder", raw.holder, parse_holder)?;
    Ok((holder, required("txHash", raw.tx_hash, hash)?))
}

/// Parses the release of a nonce: who holds it, and the reason.
pub(crate) fn parse_release(body: &[u8]) -> Result<(Holder, String), Problem> {
    let raw: RawRelease<'_> = parse_fields(body)?;
    let holder = required("holder", raw.holder, parse_holder)?;
    Ok((holder, required("reason", raw.reason, parse_reason)?))
}

/// Parses the resumption of a halted lane: the reason of an operator who accepts the loss.
pub(crate) fn parse_resume(body: &[u8]) -> Result<String, Problem> {
    let raw: RawResume<'_> = parse_fields(body)?;
    let accepts = match raw.accept_loss {
        Some(Json::Bool(true)) => Ok(()),
        None | Some(Json::Null | Json::Bool(false)) => Err(RuleViolation::new(
            "must be true to resume a halted lane: compare it with the chain first",
        )),
        Some(other) => Err(other.type_mismatch("a boolean")),
    };
    accepts.map_err(|violation| violation.in_field("acceptLoss"))?;
    required("reason", raw.reason, parse_reason)
}

/// A field with a text that must be there.
fn required<T>(
    name: &str,
    json: Option<Json<'_>>,
    parse: impl FnOnce(&str) -> Result<T, RuleViolation>,
) -> Result<T, Problem> {
    let value = match json {
        None | Some(Json::Null) => Err(RuleViolation::new("is missing: it is required here")),
        Some(json) => json.text("a string").and_then(parse),
    };
    value.map_err(|violation| violation.in_field(name))
}

fn parse_holder(text: &str) -> Result<Holder, RuleViolation> {
    let expected = "the holder that was returned with the nonce";
    hyphenated_uuid(text)
        .map(Holder)
        .ok_or_else(|| RuleViolation::must_be(expected, text))
}

/// A reason is logged and listed, so it must not control a terminal.
fn parse_reason(text: &str) -> Result<String, RuleViolation> {
    if text.trim().is_empty() || text.len() > REASON_BYTES_MAX {
        return Err(RuleViolation::new(format!(
            "must have 1 to {REASON_BYTES_MAX} bytes: write why, for those who read it later"
        )));
    }
    if text.chars().any(char::is_control) {
        return Err(RuleViolation::new(format!(
            "must have no control characters such as line breaks, unlike {}",
            excerpt(text)
        )));
    }
    Ok(text.to_owned())
}

#[derive(Debug, Default)]
struct NoFields;

#[derive(Debug, Default)]
struct RawHashMark<'a> {
    holder: Option<Json<'a>>,
    tx_hash: Option<Json<'a>>,
}

#[derive(Debug, Default)]
struct RawRelease<'a> {
    holder: Option<Json<'a>>,
    reason: Option<Json<'a>>,
}

#[derive(Debug, Default)]
struct RawResume<'a> {
    reason: Option<Json<'a>>,
    accept_loss: Option<Json<'a>>,
}

/// Implements [`Fields`] for a struct of optional values.
macro_rules! fields {
    ($raw:ty, $known:literal $(, $name:literal => $slot:ident)*) => {
        impl<'de> Fields<'de> for $raw {
            const KNOWN: &'static str = $known;

            fn read_value<M: MapAccess<'de>>(
                &mut self,
                name: &str,
                map: &mut M,
            ) -> Result<Option<bool>, M::Error> {
                match name {
                    $($name => fill(&mut self.$slot, map),)*
                    _ => Ok(None),
                }
            }
        }
    };
}

fields!(RawHashMark<'de>, "holder, txHash", "holder" => holder, "txHash" => tx_hash);
fields!(RawRelease<'de>, "holder, reason", "holder" => holder, "reason" => reason);
fields!(RawResume<'de>, "reason, acceptLoss", "reason" => reason, "acceptLoss" => accept_loss);

impl<'de> Fields<'de> for NoFields {
    const KNOWN: &'static str = "none";

    fn read_value<M: MapAccess<'de>>(
        &mut self,
        _: &str,
        _: &mut M,
    ) -> Result<Option<bool>, M::Error> {
        Ok(None)
    }
}
