//! `?wait=…&timeout=…`: how far a caller wants to wait, and how long.

use std::time::Duration;

use engine::node::WaitFor;

use crate::parse::{Broken, Query, excerpt};
use crate::problem::Problem;

/// The longest wait.
const TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// The wait of a caller that does not say how long.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// How far to wait, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) until: WaitFor,
    pub(crate) timeout: Duration,
}

/// Reads both parameters; without `wait` nothing is waited for.
pub(crate) fn wait(query: &Query<'_>) -> Result<Wait, Problem> {
    Ok(Wait {
        until: query.optional("wait", until)?.unwrap_or(WaitFor::Accepted),
        timeout: query
            .optional("timeout", timeout)?
            .unwrap_or(TIMEOUT_DEFAULT),
    })
}

fn until(text: &str) -> Result<WaitFor, Broken> {
    match text {
        "accepted" => Ok(WaitFor::Accepted),
        "submitted" => Ok(WaitFor::Submitted),
        "mined" => Ok(WaitFor::Mined),
        "confirmed" => Ok(WaitFor::Confirmed),
        other => Err(Broken::by(format!(
            "must be accepted, submitted, mined or confirmed, not {}",
            excerpt(other)
        ))),
    }
}

fn timeout(text: &str) -> Result<Duration, Broken> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let unit_ms: u64 = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err(no_duration(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(no_duration(text));
    }
    // Too many digits for a number is too long as well.
    let ms = digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(unit_ms));
    match ms.map(Duration::from_millis) {
        Some(timeout) if timeout <= TIMEOUT_MAX => Ok(timeout),
        Some(_) | None => Err(Broken::by(format!(
            "is too long: at most {}s, not {}; ask again when it is over",
            TIMEOUT_MAX.as_secs(),
            excerpt(text)
        ))),
    }
}

fn no_duration(text: &str) -> Broken {
    Broken::by(format!(
        "must be a duration such as 500ms, 30s or 2m, not {}",
        excerpt(text)
    ))
}
