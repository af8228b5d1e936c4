//! Blocks of the view whose receipts have not been read yet.

use std::collections::VecDeque;

use domain::Header;
use domain::headers::ViewChange;

/// How often a block's receipts are tried before the block is left to the lanes' own checks.
const TRIES_MAX: u32 = 5;
/// The most blocks; older ones are left to the lanes' own checks.
const BLOCKS_MAX: usize = 1_024;

/// Oldest first.
#[derive(Default)]
pub(super) struct UnreadBlocks {
    blocks: VecDeque<Header>,
    /// How often the oldest block could not be read.
    tries: u32,
}

impl UnreadBlocks {
    pub(super) fn apply_change(&mut self, change: &ViewChange) {
        if !change.dropped.is_empty() {
            self.blocks
                .retain(|header| !change.dropped.contains(header));
        }
        self.blocks.extend(change.added.iter().copied());
        let excess = self.blocks.len().saturating_sub(BLOCKS_MAX);
        self.blocks.drain(..excess);
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }

    pub(super) fn oldest(&self) -> Option<Header> {
        self.blocks.front().copied()
    }

    /// Counts a failure to read the oldest block; `false` once it was tried often enough.
    pub(super) fn should_retry(&mut self) -> bool {
        self.tries = self.tries.saturating_add(1);
        self.tries < TRIES_MAX
    }

    pub(super) fn remove_oldest(&mut self) {
        self.tries = 0;
        self.blocks.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use domain::B256;

    use super::*;

    fn header(number: u64) -> Header {
        Header {
            number,
            hash: B256::left_padding_from(&number.to_be_bytes()),
            parent_hash: B256::ZERO,
            timestamp: 0,
        }
    }

    fn added(numbers: std::ops::Range<u64>) -> ViewChange {
        ViewChange {
            dropped: Vec::new(),
            added: numbers.map(header).collect(),
        }
    }

    #[test]
    fn dropped_blocks_are_not_read() {
        let mut unread = UnreadBlocks::default();
        unread.apply_change(&added(1..4));
        unread.apply_change(&ViewChange {
            dropped: vec![header(1), header(3)],
            added: vec![header(13)],
        });
        let left: Vec<u64> = unread.blocks.iter().map(|header| header.number).collect();
        assert_eq!(left, [2, 13]);
    }

    #[test]
    fn oldest_blocks_are_dropped_beyond_the_bound() {
        let mut unread = UnreadBlocks::default();
        unread.apply_change(&added(0..1_034));
        assert_eq!(unread.blocks.len(), BLOCKS_MAX);
        assert_eq!(unread.oldest(), Some(header(10)));
    }

    #[test]
    fn unreadable_block_is_given_up_after_five_tries_and_the_next_starts_anew() {
        let mut unread = UnreadBlocks::default();
        unread.apply_change(&added(1..3));
        let tries =
            |unread: &mut UnreadBlocks| (1..20).take_while(|_| unread.should_retry()).count();
        assert_eq!(tries(&mut unread), 4);
        unread.remove_oldest();
        assert_eq!(unread.oldest(), Some(header(2)));
        assert_eq!(tries(&mut unread), 4);
    }
}
