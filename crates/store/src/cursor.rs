//! The feed's cursor: opaque to clients.
//!
//! A page may end in the middle of a turn, so a cursor is a position and how many events of it were
//! delivered. It contains four bytes of its store: a cursor of another store is refused, because
//! continuing from it would silently skip events.

use std::sync::atomic::{AtomicU32, Ordering};

use domain::Event;
use engine::ports::EventFilter;

/// Four random bytes that identify a store.
pub(crate) type StoreTag = [u8; 4];

/// The tag of a store that several processes share. A declared restore changes it: a process follows with its next
/// heartbeat.
#[derive(Debug)]
pub(crate) struct CursorTag(AtomicU32);

impl CursorTag {
    pub(crate) fn new(tag: StoreTag) -> Self {
        Self(AtomicU32::new(u32::from_be_bytes(tag)))
    }

    pub(crate) fn get(&self) -> StoreTag {
        self.0.load(Ordering::Relaxed).to_be_bytes()
    }

    pub(crate) fn set(&self, tag: StoreTag) {
        self.0.store(u32::from_be_bytes(tag), Ordering::Relaxed);
    }
}

/// How far the feed was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeedCursor {
    /// The row.
    pub(crate) position: u64,
    /// How many of its events.
    delivered: u32,
}

impl FeedCursor {
    /// Before the first event.
    pub(crate) const START: Self = Self {
        position: 0,
        delivered: 0,
    };

    /// After the n-th event (from 0) of a row.
    pub(crate) fn after(position: u64, n: usize) -> Self {
        let delivered = u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1);
        Self {
            position,
            delivered,
        }
    }

    /// After all events of a row, however many they are, and of those before it.
    pub(crate) fn after_all(position: u64) -> Self {
        Self {
            position,
            delivered: if position == 0 { 0 } else { u32::MAX },
        }
    }

    /// How many events of this row were delivered.
    pub(crate) fn delivered_of(self, position: u64) -> usize {
        if position == self.position {
            self.delivered as usize
        } else {
            0
        }
    }

    pub(crate) fn to_text(self, tag: StoreTag) -> String {
        format!(
            "{:08x}{:016x}{:08x}",
            u32::from_be_bytes(tag),
            self.position,
            self.delivered
        )
    }

    /// Reads exactly what [`FeedCursor::to_text`] writes, of the same store.
    pub(crate) fn parse(tag: StoreTag, text: &str) -> Option<Self> {
        let position = u64::from_str_radix(text.get(8..24)?, 16).ok()?;
        let delivered = u32::from_str_radix(text.get(24..)?, 16).ok()?;
        let cursor = Self {
            position,
            delivered,
        };
        (cursor.to_text(tag) == text).then_some(cursor)
    }
}

pub(crate) fn matches_kind(filter: &EventFilter, event: &Event) -> bool {
    filter.kinds.is_empty() || filter.kinds.iter().any(|word| word == event.kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cursors_of_the_same_store_are_read() {
        let tag = [0xab, 0, 0, 1];
        let cursor = FeedCursor::after(300, 6);
        let text = cursor.to_text(tag);
        assert_eq!(FeedCursor::parse(tag, &text), Some(cursor));
        assert_eq!(
            FeedCursor::parse([1, 2, 3, 4], &text),
            None,
            "another store's"
        );
        let upper = text.to_uppercase();
        for bad in [
            "",
            "🙂🙂🙂🙂🙂🙂🙂🙂",
            &text[..31],
            &upper,
            &text.replacen('0', "+", 1),
        ] {
            assert_eq!(FeedCursor::parse(tag, bad), None, "{bad}");
        }
    }

    #[test]
    fn page_continues_in_the_middle_of_a_turn() {
        let cursor = FeedCursor::after(7, 1);
        assert_eq!((cursor.delivered_of(7), cursor.delivered_of(8)), (2, 0));
        assert_eq!(FeedCursor::after_all(0), FeedCursor::START);
    }
}
