//! A problem with the configuration, with its location. The message must be enough to fix it.

use std::fmt;
use std::path::Path;

use super::reader::Origin;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// A file or a variable.
    location: Option<Origin>,
    message: String,
}

impl Problem {
    pub(crate) fn in_file(path: &Path, line: usize, message: String) -> Self {
        let path = path.to_owned();
        Self::at_origin(&Origin::File { path, line }, message)
    }

    pub(crate) fn in_env(variable: &str, message: String) -> Self {
        Self::at_origin(&Origin::Env(variable.to_owned()), message)
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
        let location = match origin {
            Origin::File { .. } | Origin::Env(_) => Some(origin.clone()),
            Origin::Default | Origin::Dev | Origin::Flag => None,
        };
        Self { location, message }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
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
