//! How much of a lane may be in flight at once, and which nonces the chain waits for in vain.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::Nonce;

/// How many nonces may be allocated and unresolved. 0 in the configuration means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The limit; `None` is unlimited.
    pub limit: Option<u64>,
    /// When a nonce counts as resolved.
    pub releases: Release,
}

/// When a nonce leaves the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// When it is in a block.
    Mined,
    /// When it is final: with a window of 1 this is the strict single-in-flight mode.
    Final,
}

impl Window {
    /// How many more nonces may be allocated.
    #[must_use]
    pub fn room(&self, unresolved: u64) -> u64 {
        self.limit
            .map_or(u64::MAX, |limit| limit.saturating_sub(unresolved))
    }

    /// Whether one more nonce may be allocated.
    #[must_use]
    pub fn has_room(&self, unresolved: u64) -> bool {
        self.room(unresolved) > 0
    }
}

/// How many attempts of a lane may be in nodes' pools at once.
///
/// Nodes differ widely in what they hold for one account, and "ok" does not mean that they keep it. So `Auto`
/// starts small, doubles while the node's pending count shows that it holds all that was sent, and
/// narrows when it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MempoolDepth {
    /// A number from the configuration.
    Fixed(u64),
    /// Found by probing.
    Auto {
        /// The present limit.
        limit: u64,
        /// The most that a node reported it holds.
        most: Option<u64>,
    },
}

impl MempoolDepth {
    /// What every node holds for one account.
    pub const AUTO_START: u64 = 16;
    /// More than this in a node's pool gains nothing.
    pub const AUTO_MAX: u64 = 8_192;

    /// The limit that is to be found by probing.
    #[must_use]
    pub fn auto() -> Self {
        Self::Auto {
            limit: Self::AUTO_START,
            most: None,
        }
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self) -> u64 {
        match self {
            Self::Fixed(limit) | Self::Auto { limit, .. } => *limit,
        }
    }

    /// Whether a probe of the node can still raise the limit.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        matches!(self, Self::Auto { limit, most } if *limit < most.unwrap_or(Self::AUTO_MAX))
    }

    /// Applies the node's pending nonce, when `highest_sent` was sent and accepted.
    pub fn learn(&mut self, latest: Nonce, pending: Nonce, highest_sent: Nonce) {
        let Self::Auto { limit, most } = self else {
            return;
        };
        if pending > highest_sent {
            *limit = limit
                .saturating_mul(2)
                .min(most.unwrap_or(Self::AUTO_MAX))
                .min(Self::AUTO_MAX);
        } else {
            let held = latest.until(pending);
            *limit = held.clamp(1, *limit).max(Self::AUTO_START.min(*limit));
        }
    }

    /// A node accepts envelopes again: what every node holds may be sent.
    pub fn recover(&mut self) {
        if let Self::Auto { limit, most } = self {
            let start = most.map_or(Self::AUTO_START, |most| most.min(Self::AUTO_START));
            *limit = (*limit).max(start);
        }
    }

    /// A node refused for lack of room; `reported` is how much it holds, where it says so.
    pub fn narrow(&mut self, reported: Option<u64>) {
        if let Self::Auto { limit, most } = self {
            let half = limit.checked_div(2).unwrap_or(1);
            *limit = reported.unwrap_or(half).min(*limit).max(1);
            *most = reported.map(|most| most.max(1)).or(*most);
        }
    }
}

/// The nonces from `floor` to `cursor` that no tx holds: the chain waits for each of them. `None` when
/// there are more than `max`: then the floor is not credible.
///
/// `held` are the ranges of nonces that txs of ours hold, in order.
#[must_use]
pub fn gaps(floor: Nonce, cursor: Nonce, held: &[Range<u64>], max: u64) -> Option<BTreeSet<Nonce>> {
    let mut gaps = BTreeSet::new();
    let mut left = max;
    let mut next = floor.0;
    for end in held.iter().chain([&(cursor.0..cursor.0)]) {
        let until = end.start.min(cursor.0);
        left = left.checked_sub(until.saturating_sub(next))?;
        gaps.extend((next..until).map(Nonce));
        next = next.max(end.end);
    }
    Some(gaps)
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "an overflow fails the test")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gaps_are_the_nonces_not_held(
            held in proptest::collection::btree_set(0..60_u64, 0..40), floor in 0..60_u64, cursor in 0..60_u64,
        ) {
            let ranges: Vec<Range<u64>> = held.iter().map(|n| *n..*n + 1).collect();
            let naive: BTreeSet<Nonce> =
                (floor..cursor).filter(|n| !held.contains(n)).map(Nonce).collect();
            let count = naive.len() as u64;
            let found = |max| gaps(Nonce(floor), Nonce(cursor), &ranges, max);
            prop_assert_eq!(found(count), Some(naive));
            prop_assert!(count == 0 || found(count - 1).is_none());
        }
    }

    #[test]
    fn auto_mempool_depth_doubles_while_the_node_holds_everything() {
        let mut depth = MempoolDepth::auto();
        depth.learn(Nonce(0), Nonce(16), Nonce(15));
        assert_eq!(depth.limit(), 32);
        depth.learn(Nonce(0), Nonce(16), Nonce(31));
        assert_eq!(depth.limit(), 16);
        for _ in 0..20 {
            depth.learn(Nonce(0), Nonce(100_000), Nonce(5));
        }
        assert_eq!(depth.limit(), MempoolDepth::AUTO_MAX);
        assert!(!depth.is_growing());
        depth.narrow(None);
        assert_eq!(depth.limit(), MempoolDepth::AUTO_MAX / 2);
    }

    #[test]
    fn strict_window_has_room_for_one() {
        let window = Window {
            limit: Some(1),
            releases: Release::Final,
        };
        assert!(window.has_room(0) && !window.has_room(1));
    }
}
