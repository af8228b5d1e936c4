//! The calls, one file per resource. Each parses its input, calls the node and renders the response.

pub(crate) mod events;
pub(crate) mod lanes;
pub(crate) mod nonces;
pub(crate) mod operations;
pub(crate) mod stream;
pub(crate) mod tx;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;

use crate::parse::RuleViolation;
use crate::problem::Problem;

/// The parts of a path; percent-encoding may be invalid.
type PathParts<T> = Result<Path<T>, PathRejection>;

/// Parses one part of the path.
fn parse_path_part<T>(
    parts: PathParts<String>,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, RuleViolation>,
) -> Result<T, Problem> {
    match parts {
        Ok(Path(text)) => parse(&text).map_err(|violation| violation.in_path(name)),
        Err(_) => Err(invalid_encoding().in_path(name)),
    }
}

fn invalid_encoding() -> RuleViolation {
    RuleViolation::new("is not percent-encoded UTF-8: check the path")
}
