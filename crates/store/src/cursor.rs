//! The feed's cursor: opaque to everyone outside, exact inside.
//!
//! A page may end in the middle of a turn, so a cursor is a position and how many events of it were
//! told. It carries four bytes of its store: a cursor of another store is refused, because going on
//! from it would silently skip events.

/// Four random bytes that a store was born with.
pub(crate) type StoreTag = [u8; 4];

/// How far the feed was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeedCursor {
    /// The row.
    pub(crate) position: u64,
    /// How many of its events.
    told: u32,
}

impl FeedCursor {
    /// Before everything.
    pub(crate) const START: Self = Self {
        position: 0,
        told: 0,
    };

    /// Behind the n-th event (from 0) of a row.
    pub(crate) fn behind(position: u64, n: usize) -> Self {
        let told = u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1);
        Self { position, told }
    }

    /// Behind all events of a row, however many they are, and of those before it.
    pub(crate) fn behind_all(position: u64) -> Self {
        Self {
            position,
            told: if position == 0 { 0 } else { u32::MAX },
        }
    }

    /// How many events of this row were told.
    pub(crate) fn told_of(self, position: u64) -> usize {
        if position == self.position {
            self.told as usize
        } else {
            0
        }
    }

    pub(crate) fn to_text(self, tag: StoreTag) -> String {
        format!(
            "{:08x}{:016x}{:08x}",
            u32::from_be_bytes(tag),
            self.position,
            self.told
        )
    }

    /// Reads exactly what [`FeedCursor::to_text`] writes, of the same store.
    pub(crate) fn parse(tag: StoreTag, text: &str) -> Option<Self> {
        let position = u64::from_str_radix(text.get(8..24)?, 16).ok()?;
        let told = u32::from_str_radix(text.get(24..)?, 16).ok()?;
        let cursor = Self { position, told };
        (cursor.to_text(tag) == text).then_some(cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_text_is_read() {
        let tag = [0xab, 0, 0, 1];
        let cursor = FeedCursor::behind(300, 6);
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
    fn a_turn_goes_on_where_it_was_left() {
        let cursor = FeedCursor::behind(7, 1);
        assert_eq!((cursor.told_of(7), cursor.told_of(8)), (2, 0));
        assert_eq!(FeedCursor::behind_all(0), FeedCursor::START);
    }
}
