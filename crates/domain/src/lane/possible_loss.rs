//! What is not known of a lane whose store may have lost commits, and how far the search for them is.
//!
//! Invariants: a nonce leaves `unknown` only when the transaction that consumed it is recorded, or when this keeper
//! allocates it (then its tx shows what consumes it). Nothing is settled while a consumed nonce is unknown, and an answer
//! that is not clean ends what was settled.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use crate::{Nonce, Timestamp};

/// Two clean answers this far apart settle a search: an endpoint may be behind, or a transaction between two mempools.
pub(super) const SECOND_ANSWER_AFTER: Duration = Duration::from_secs(1);
/// The delay after a query for consumers that too few endpoints answered.
const QUERY_RETRY_AFTER: Duration = Duration::from_secs(3);
/// The most nonces of one query.
const QUERY_PAGE: u64 = 100;

/// The search for lost commits of a lane.
#[derive(Clone, Debug)]
pub(super) struct PossibleLoss {
    pub(super) cursor_at_load: Nonce,
    /// Whether an operator has accepted the loss.
    pub(super) is_accepted: bool,
    /// Nonces that no tx of the store holds, and whose consumer is not known: a lost commit may have allocated them.
    unknown: BTreeSet<Nonce>,
    /// Whether there are more of them than a lane records.
    is_too_large: bool,
    /// The lowest unknown nonce, where endpoints with its block do not show what consumed it.
    unattributed: Option<Nonce>,
    state: SearchState,
    query: ConsumerQuery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchState {
    /// Consumed nonces are unknown, something unknown is pending, or too few endpoints have answered.
    Open,
    /// Since this time every answer shows that every consumed nonce is known and nothing else is pending.
    Clean { since: Timestamp },
    /// Nonces may be allocated.
    Settled,
    /// An operator has to accept the loss first.
    Halting,
}

/// The query for the transactions that consumed unknown nonces.
#[derive(Clone, Copy, Debug, Default)]
struct ConsumerQuery {
    is_under_way: bool,
    /// At lower heights the lowest unknown nonce is not consumed.
    from_height: u64,
    not_before: Timestamp,
}

impl PossibleLoss {
    /// Unless the loss is accepted, the cursor agreed with the chain when the lane was opened: one clean answer settles
    /// then.
    pub(super) fn new(cursor_at_load: Nonce, unknown: BTreeSet<Nonce>, is_accepted: bool) -> Self {
        let state = match is_accepted {
            true => SearchState::Open,
            false => SearchState::Clean {
                since: Timestamp(0),
            },
        };
        Self {
            cursor_at_load,
            is_accepted,
            unknown,
            is_too_large: false,
            unattributed: None,
            state,
            query: ConsumerQuery::default(),
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.state == SearchState::Settled
    }

    pub(super) fn is_halting(&self) -> bool {
        self.state == SearchState::Halting
    }

    /// Whether a clean answer waits for a second one.
    pub(super) fn is_clean(&self) -> bool {
        matches!(self.state, SearchState::Clean { .. })
    }

    pub(super) fn unattributed(&self) -> Option<Nonce> {
        self.unattributed
    }

    pub(super) fn set_unattributed(&mut self, nonce: Option<Nonce>) {
        self.unattributed = nonce;
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// There are more unknown nonces than a lane records.
    pub(super) fn mark_too_large(&mut self) {
        self.is_too_large = true;
    }

    /// The lowest and the highest unknown nonce below this one.
    pub(super) fn unknown_below(&self, used: Nonce) -> Option<(Nonce, Nonce)> {
        let mut below = self.unknown.range(..used);
        let lowest = *below.next()?;
        Some((lowest, below.next_back().copied().unwrap_or(lowest)))
    }

    /// Nonces that are consumed, or were given up for a consumer that is not recorded.
    pub(super) fn add_unknown(&mut self, nonces: impl IntoIterator<Item = Nonce>) {
        let before = self.unknown.len();
        self.unknown.extend(nonces);
        if self.unknown.len() > before {
            self.query.from_height = 0;
            self.reopen();
        }
    }

    /// Its consumer is recorded, or this keeper allocates it.
    pub(super) fn remove_unknown(&mut self, nonce: Nonce) -> bool {
        self.unknown.remove(&nonce)
    }

    /// An answer of the chain shows something that is not known.
    pub(super) fn reopen(&mut self) {
        if !self.is_halting() {
            self.state = SearchState::Open;
        }
    }

    /// A complete answer shows nothing unknown. Returns whether it is the second one, after which the search is settled
    /// by [`PossibleLoss::settle`] or [`PossibleLoss::halt`].
    pub(super) fn note_clean_answer(&mut self, now: Timestamp) -> bool {
        match self.state {
            SearchState::Open => {
                self.state = SearchState::Clean { since: now };
                false
            }
            SearchState::Clean { since } => now.since(since) >= SECOND_ANSWER_AFTER,
            SearchState::Settled | SearchState::Halting => false,
        }
    }

    pub(super) fn settle(&mut self) {
        self.state = SearchState::Settled;
    }

    pub(super) fn halt(&mut self) {
        self.state = SearchState::Halting;
    }

    /// Whether everything that may have been lost is resolved: below this floor no tx is open.
    pub(super) fn is_over(&self, floor: Nonce) -> bool {
        self.is_settled() && self.unknown.is_empty() && floor >= self.cursor_at_load
    }

    /// The next nonces whose consumers are to be found in blocks up to this height; `None` while an answer is awaited,
    /// or nothing new is final.
    pub(super) fn next_query(
        &mut self,
        used: Nonce,
        final_height: u64,
        now: Timestamp,
    ) -> Option<Range<u64>> {
        let query = &mut self.query;
        if query.is_under_way || final_height < query.from_height || now < query.not_before {
            return None;
        }
        let mut below = self.unknown.range(..used);
        let first = below.next()?.0;
        let run = below.zip(first.saturating_add(1)..first.saturating_add(QUERY_PAGE));
        let end = run.take_while(|(nonce, next)| nonce.0 == *next).last();
        query.is_under_way = true;
        Some(first..end.map_or(first, |(nonce, _)| nonce.0).saturating_add(1))
    }

    /// Counts an answer to that query: `is_found` when it shows at least one consumer up to the height.
    pub(super) fn finish_query(&mut self, up_to: u64, is_found: Option<bool>, now: Timestamp) {
        self.query.is_under_way = false;
        match is_found {
            Some(true) => {}
            Some(false) => self.query.from_height = up_to.saturating_add(1),
            None => self.query.not_before = now.plus(QUERY_RETRY_AFTER),
        }
    }

    /// Recorded times never lie ahead of a wall clock that was set back.
    pub(super) fn clamp_times(&mut self, now: Timestamp) {
        if let SearchState::Clean { since } = &mut self.state {
            *since = (*since).min(now);
        }
        let latest = now.plus(QUERY_RETRY_AFTER);
        self.query.not_before = self.query.not_before.min(latest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(unknown: &[u64]) -> PossibleLoss {
        let unknown = unknown.iter().copied().map(Nonce).collect();
        PossibleLoss::new(Nonce(9), unknown, true)
    }

    #[test]
    fn two_clean_answers_settle_and_an_unclean_one_reopens() {
        let mut loss = loss(&[]);
        assert!(!loss.note_clean_answer(Timestamp(0)));
        assert!(!loss.note_clean_answer(Timestamp(999)), "too soon");
        loss.reopen();
        assert!(!loss.note_clean_answer(Timestamp(2_000)));
        assert!(loss.note_clean_answer(Timestamp(3_000)));
        loss.settle();
        assert!(!loss.is_over(Nonce(8)), "a tx below is open");
        assert!(loss.is_over(Nonce(9)));
        loss.add_unknown([Nonce(4)]);
        assert!(!loss.is_settled() && !loss.is_over(Nonce(9)));
    }

    #[test]
    fn one_run_of_unknown_nonces_is_queried_at_a_time() {
        let mut loss = loss(&[3, 4, 5, 7, 8]);
        let now = Timestamp(0);
        assert_eq!(loss.next_query(Nonce(3), 20, now), None, "none is used");
        assert_eq!(loss.next_query(Nonce(5), 20, now), Some(3..5));
        assert_eq!(loss.next_query(Nonce(9), 20, now), None, "under way");
        loss.finish_query(20, Some(false), now);
        assert_eq!(loss.next_query(Nonce(9), 20, now), None, "nothing new");
        assert_eq!(loss.next_query(Nonce(9), 21, now), Some(3..6));
        loss.finish_query(21, None, now);
        assert_eq!(loss.next_query(Nonce(9), 21, now), None, "retried later");
        let later = now.plus(QUERY_RETRY_AFTER);
        assert_eq!(loss.next_query(Nonce(9), 21, later), Some(3..6));
    }

    #[test]
    fn long_runs_are_queried_in_pages() {
        let all: Vec<u64> = (0..1_000).collect();
        let mut loss = loss(&all);
        let page = loss.next_query(Nonce(1_000), 1, Timestamp(0));
        assert_eq!(page, Some(0..QUERY_PAGE));
    }
}
