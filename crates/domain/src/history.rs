//! Which history of commits a store is on.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// What must stay the same for a node's knowledge of a store to hold: as long as it does, nothing that was committed is
/// missing. Its text is `<store>.<timeline>.<restores>.<suspicions>`, the first in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct History {
    /// Which store it is. Of PostgreSQL the server's system identifier, combined with the random identity of the
    /// database: neither a dump in another server nor another database of the same server is taken for it.
    pub store: u64,
    /// PostgreSQL's timeline: another one after a standby was promoted.
    pub timeline: u64,
    /// How many restores of a backup were declared.
    pub restores: u64,
    /// How often a node has found that the store is older than what the node had seen of it.
    pub suspicions: u64,
}

impl History {
    /// Whether the store came to this history after it was on that one. Every lane was unreconciled at that time, so what
    /// was seen before is no reason to compare all of them once more.
    #[must_use]
    pub fn is_later_than(&self, seen: Self) -> bool {
        self.store != seen.store || seen.is_behind(*self)
    }

    /// Whether another history of the same store counts more of anything: a store's own counts never fall.
    pub(crate) fn is_behind(&self, other: Self) -> bool {
        self.timeline < other.timeline
            || self.restores < other.restores
            || self.suspicions < other.suspicions
    }
}

/// A text is not a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a history is <store in 16 hexadecimal digits>.<timeline>.<restores>.<suspicions>")]
pub struct BadHistory;

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            store,
            timeline,
            restores,
            suspicions,
        } = self;
        write!(f, "{store:016x}.{timeline}.{restores}.{suspicions}")
    }
}

impl FromStr for History {
    type Err = BadHistory;

    /// Reads exactly what `Display` writes.
    fn from_str(text: &str) -> Result<Self, BadHistory> {
        let mut parts = text.split('.');
        let mut next = |radix| {
            let part = parts.next().ok_or(BadHistory)?;
            u64::from_str_radix(part, radix).map_err(|_no_number| BadHistory)
        };
        let history = Self {
            store: next(16)?,
            timeline: next(10)?,
            restores: next(10)?,
            suspicions: next(10)?,
        };
        (history.to_string() == text)
            .then_some(history)
            .ok_or(BadHistory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_back_and_no_other_is_read() {
        let history = History {
            store: 0x00ab_0000_0000_0001,
            timeline: 12,
            restores: 3,
            suspicions: 4,
        };
        let text = "00ab000000000001.12.3.4";
        assert_eq!(history.to_string(), text);
        assert_eq!(text.parse(), Ok(history));
        for bad in [
            "",
            "1.12.3.4",
            "00AB000000000001.12.3.4",
            "00ab000000000001.12.3",
            "00ab000000000001.12.3.4.5",
            "00ab000000000001.+12.3.4",
            "00ab000000000001.12.03.4",
        ] {
            assert_eq!(bad.parse::<History>(), Err(BadHistory), "{bad}");
        }
    }

    #[test]
    fn history_is_later_when_any_count_rose_or_the_store_is_another_one() {
        let seen = History {
            store: 1,
            timeline: 2,
            restores: 3,
            suspicions: 4,
        };
        assert!(!seen.is_later_than(seen));
        let later = [
            History { store: 9, ..seen },
            History {
                timeline: 3,
                suspicions: 0,
                ..seen
            },
            History {
                restores: 4,
                ..seen
            },
            History {
                suspicions: 5,
                ..seen
            },
        ];
        for history in later {
            assert!(history.is_later_than(seen), "{history}");
        }
        let restored = History {
            suspicions: 3,
            ..seen
        };
        assert!(!restored.is_later_than(seen));
    }
}
