//! The calls, one file per noun. Each parses, asks the node, and answers.

pub(crate) mod events;
pub(crate) mod lanes;
pub(crate) mod nonces;
pub(crate) mod operations;
pub(crate) mod stream;
pub(crate) mod tx;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;

use crate::parse::Broken;
use crate::problem::Problem;

/// The parts of a path, which may be badly encoded.
type PathParts<T> = Result<Path<T>, PathRejection>;

/// A part of the path that keeps its rule.
fn path_part<T>(
    parts: PathParts<String>,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, Broken>,
) -> Result<T, Problem> {
    match parts {
        Ok(Path(text)) => parse(&text).map_err(|broken| broken.path(name)),
        Err(_) => Err(badly_encoded().path(name)),
    }
}

fn badly_encoded() -> Broken {
    Broken::rule("is not percent-encoded UTF-8: check the path")
}
