//! Request headers.

use axum::http::header::HeaderName;
use axum::http::{HeaderMap, HeaderValue};

use crate::parse::RuleViolation;
use crate::parse::page::event_cursor;
use crate::problem::Problem;

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The longest `X-Request-Id` that is accepted from a caller.
const TRACE_ID_LEN_MAX: usize = 128;

/// The client's idempotency key as a header.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    header_text(headers, &IDEMPOTENCY_KEY, "Idempotency-Key")
}

/// The cursor at which an interrupted stream continues.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    header_text(headers, &LAST_EVENT_ID, "Last-Event-ID")?
        // Browsers may send an empty one before they have received an event.
        .filter(|text| !text.is_empty())
        .map(|text| event_cursor(text, "Last-Event-ID"))
        .transpose()
}

/// The text of a header that may occur once.
pub(crate) fn header_text<'a>(
    headers: &'a HeaderMap,
    key: &HeaderName,
    name: &str,
) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(key).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(RuleViolation::new("is there twice: send it once").in_header(name));
    }
    match first.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(RuleViolation::new("must be visible ASCII characters").in_header(name)),
    }
}

/// The caller's `X-Request-Id`, if it can be logged and returned safely.
pub(crate) fn parse_trace_id(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?;
    let fits = (1..=TRACE_ID_LEN_MAX).contains(&text.len());
    (fits && text.bytes().all(|b| b.is_ascii_graphic())).then_some(text)
}

/// The caller's trace (W3C Trace Context). The specification says to ignore an invalid one: a request must not
/// fail because of its trace.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let text = header_text(headers, &TRACEPARENT, "traceparent").ok()??;
    let is_hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let mut parts = text.split('-');
    let (version, trace) = (parts.next()?, parts.next()?);
    let (span, flags) = (parts.next()?, parts.next()?);
    let is_valid = is_hex(version, 2)
        && version != "ff"
        && is_hex(trace, 32)
        && is_hex(span, 16)
        && is_hex(flags, 2)
        && parts.next().is_none();
    let is_zero = |part: &str| part.bytes().all(|b| b == b'0');
    (is_valid && !is_zero(trace) && !is_zero(span)).then_some(text)
}
