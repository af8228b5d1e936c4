//! What is wrong with a configuration, and where: a person must be able to mend it from the message.

use std::fmt;
use std::path::{Path, PathBuf};

use super::reader::Origin;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    place: Option<Place>,
    message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    File { path: PathBuf, line: usize },
    Env(String),
}

impl Problem {
    /// A problem at a line of a file.
    pub(crate) fn in_file(path: &Path, line: usize, message: String) -> Self {
        Self {
            place: Some(Place::File {
                path: path.to_owned(),
                line,
            }),
            message,
        }
    }

    /// A problem with an environment variable.
    pub(crate) fn in_env(variable: &str, message: String) -> Self {
        Self {
            place: Some(Place::Env(variable.to_owned())),
            message,
        }
    }

    /// A problem that stands nowhere: something is missing.
    pub(crate) fn nowhere(message: impl Into<String>) -> Self {
        Self {
            place: None,
            message: message.into(),
        }
    }

    /// A problem with a value, wherever that came from.
    pub(crate) fn of(origin: &Origin, message: String) -> Self {
        match origin {
            Origin::File { path, line } => Self::in_file(path, *line, message),
            Origin::Env(variable) => Self::in_env(variable, message),
            Origin::Default | Origin::Dev | Origin::Flag => Self::nowhere(message),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(Place::File { path, line }) => write!(f, "{}:{line}: ", path.display())?,
            Some(Place::Env(variable)) => write!(f, "${variable}: ")?,
            None => {}
        }
        f.write_str(&self.message)
    }
}

/// No slip makes a key longer than this, and comparing takes time for every letter.
const SLIP_BYTES_MAX: usize = 64;

/// The candidate that was probably meant.
pub(crate) fn nearest<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    if wrong.len() > SLIP_BYTES_MAX {
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

/// Levenshtein's distance, row by row.
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
    fn nearest_finds_slips_and_no_strangers() {
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
