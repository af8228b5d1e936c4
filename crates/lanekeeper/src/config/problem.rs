//! A problem with the configuration, with its location. The message must be enough to fix it.

use std::fmt;
use std::path::{Path, PathBuf};

use super::reader::Origin;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    location: Option<Location>,
    message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Location {
    File { path: PathBuf, line: usize },
    Env(String),
}

impl Problem {
    pub(crate) fn in_file(path: &Path, line: usize, message: String) -> Self {
        Self {
            location: Some(Location::File {
                path: path.to_owned(),
                line,
            }),
            message,
        }
    }

    pub(crate) fn in_env(variable: &str, message: String) -> Self {
        Self {
            location: Some(Location::Env(variable.to_owned())),
            message,
        }
    }

    /// A problem without a location: something is missing.
    pub(crate) fn without_location(message: impl Into<String>) -> Self {
        Self {
            location: None,
            message: message.into(),
        }
    }

    /// A problem with a value of this origin.
    pub(crate) fn at_origin(origin: &Origin, message: String) -> Self {
        match origin {
            Origin::File { path, line } => Self::in_file(path, *line, message),
            Origin::Env(variable) => Self::in_env(variable, message),
            Origin::Default | Origin::Dev | Origin::Flag => Self::without_location(message),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            Some(Location::File { path, line }) => write!(f, "{}:{line}: ", path.display())?,
            Some(Location::Env(variable)) => write!(f, "${variable}: ")?,
            None => {}
        }
        f.write_str(&self.message)
    }
}

/// Longer keys are no typo of a known key, and the comparison takes quadratic time.
const TYPO_BYTES_MAX: usize = 64;

/// The known name that was probably intended.
pub(crate) fn nearest<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if wrong.len() > TYPO_BYTES_MAX {
        return None;
    }
    let folded = wrong.to_lowercase();
    known
        .into_iter()
        .map(|candidate| (distance(&folded, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= 2.max(candidate.len() / 3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// The Levenshtein distance, row by row.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_typos_and_nothing_unrelated() {
        let known = ["duration", "renewInterval", "idleRelease"];
        assert_eq!(nearest("durtion", known), Some("duration"));
        assert_eq!(nearest("renew_interval", known), Some("renewInterval"));
        assert_eq!(nearest("RENEWINTERVAL", known), Some("renewInterval"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest(&"duration".repeat(9), known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
