//! `?wait=…&timeout=…`: the state that a caller waits for, and the longest wait.

use std::time::Duration;

use engine::node::WaitFor;

use crate::parse::{Query, RuleViolation, excerpt};
use crate::problem::Problem;

const TIMEOUT_MAX: Duration = Duration::from_secs(120);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) until: WaitFor,
    pub(crate) timeout: Duration,
}

/// Without `wait`, the call returns when the request is accepted.
pub(crate) fn parse_wait(query: &Query<'_>) -> Result<Wait, Problem> {
    Ok(Wait {
        until: query
            .optional("wait", parse_until)?
            .unwrap_or(WaitFor::Accepted),
        timeout: query
            .optional("timeout", parse_timeout)?
            .unwrap_or(TIMEOUT_DEFAULT),
    })
}

fn parse_until(text: &str) -> Result<WaitFor, RuleViolation> {
    match text {
        "accepted" => Ok(WaitFor::Accepted),
        "submitted" => Ok(WaitFor::Submitted),
        "mined" => Ok(WaitFor::Mined),
        "confirmed" => Ok(WaitFor::Confirmed),
        _ => Err(RuleViolation::must_be(
            "accepted, submitted, mined or confirmed",
            text,
        )),
    }
}

fn parse_timeout(text: &str) -> Result<Duration, RuleViolation> {
    let malformed = || RuleViolation::must_be("a duration such as 500ms, 30s or 2m", text);
    let digits = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let unit_ms: u64 = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err(malformed()),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(malformed());
    }
    // A number that overflows is too long as well.
    let ms = digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(unit_ms));
    match ms.map(Duration::from_millis) {
        Some(timeout) if timeout <= TIMEOUT_MAX => Ok(timeout),
        Some(_) | None => Err(RuleViolation::new(format!(
            "is too long: at most {}s, not {}; send another request afterwards",
            TIMEOUT_MAX.as_secs(),
            excerpt(text)
        ))),
    }
}
