//! What is not known of a lane whose store may have lost commits, and how far the search for them is.
//!
//! Invariants: a nonce below the cursor leaves `unknown` only when the transaction that consumed it is recorded, or when
//! this keeper allocates it. Then it is `unproven` until its tx is mined: a lost transaction may wait in a pool there and be
//! mined in its place. Nothing is settled while a nonce of either kind is consumed or pending, and an answer that is not
//! clean ends what was settled. The search is over when the block that was newest at its settling is final, all that was
//! allocated until then has ended, and an answer after that is clean: an endpoint may have been behind, and a transaction
//! that waited behind a missing nonce shows when that nonce is mined.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use super::{AccountNonces, EndpointNonces};
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
    /// Nonces that a tx of the store holds, and at which a lost transaction may be mined in place of it.
    unproven: BTreeSet<Nonce>,
    /// Nonces that txs without an attempt held at load, as far as the chain has shown nothing there yet.
    unsigned: Vec<Range<u64>>,
    /// A report of one endpoint that two others contradict.
    lone_claim: Option<LoneClaim>,
    /// Whether there are more unknown nonces than a lane records.
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
    Settled(Aftermath),
    /// An operator has to accept the loss first.
    Halting,
}

/// What may still show a lost transaction after the search was settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Aftermath {
    /// The height of the tip when it was settled, or soon after.
    settled_at: Option<u64>,
    /// The cursor when that block became final.
    allocated_below: Option<Nonce>,
    /// Since when everything below has ended, and one more answer is awaited.
    ended_at: Option<Timestamp>,
    is_over: bool,
}

/// The heights of a lane's view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heights {
    pub(super) tip: u64,
    /// Up to here transactions count as foreign; `None` while the chain is too short.
    pub(super) final_height: Option<u64>,
}

/// The query for the transactions that consumed unknown nonces.
#[derive(Clone, Copy, Debug, Default)]
struct ConsumerQuery {
    is_under_way: bool,
    /// At lower heights the lowest unknown nonce is not consumed.
    from_height: u64,
    not_before: Timestamp,
}

/// What one endpoint of three reports, above what the two others do.
#[derive(Clone, Copy, Debug)]
struct LoneClaim {
    claimed: AccountNonces,
    /// The height of the tip when it was first seen.
    first_seen: u64,
}

impl PossibleLoss {
    /// Unless the loss is accepted, the cursor agreed with the chain when the lane was opened: one clean answer settles
    /// then. (A cursor of a lane that never had a tx is not compared.)
    pub(super) fn new(cursor_at_load: Nonce, unknown: BTreeSet<Nonce>, is_accepted: bool) -> Self {
        let state = match is_accepted || cursor_at_load == Nonce(0) {
            true => SearchState::Open,
            false => SearchState::Clean {
                since: Timestamp(0),
            },
        };
        Self {
            cursor_at_load,
            is_accepted,
            unknown,
            unproven: BTreeSet::new(),
            unsigned: Vec::new(),
            lone_claim: None,
            is_too_large: false,
            unattributed: None,
            state,
            query: ConsumerQuery::default(),
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        matches!(self.state, SearchState::Settled(_))
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

    /// Its consumer is recorded.
    pub(super) fn remove_unknown(&mut self, nonce: Nonce) -> bool {
        self.unknown.remove(&nonce)
    }

    /// Nonces from this one on are neither consumed nor held: an answer that showed them as consumed was wrong, or a reorg
    /// took them.
    pub(super) fn drop_unknown_from(&mut self, nonce: Nonce) {
        self.unknown.split_off(&nonce);
    }

    /// This keeper allocates a nonce that was unheld at some time: it is proven when its tx is mined.
    pub(super) fn hold_unknown(&mut self, nonce: Nonce) {
        self.unknown.remove(&nonce);
        self.unproven.insert(nonce);
    }

    pub(super) fn set_unsigned(&mut self, held: Vec<Range<u64>>) {
        self.unsigned = held;
    }

    /// Takes the nonces of unsigned txs below this one, at most so many.
    pub(super) fn take_unsigned_below(&mut self, used: Nonce, most: usize) -> Vec<Nonce> {
        let mut taken = Vec::new();
        while let Some(run) = self.unsigned.first_mut()
            && taken.len() < most
        {
            if run.is_empty() {
                self.unsigned.remove(0);
                continue;
            }
            if run.start >= used.0 {
                break;
            }
            taken.push(Nonce(run.start));
            run.start = run.start.saturating_add(1);
        }
        taken
    }

    /// Something is consumed or pending at these nonces, which txs of the store hold that have sent nothing.
    pub(super) fn add_unproven(&mut self, nonces: impl IntoIterator<Item = Nonce>) {
        self.unproven.extend(nonces);
    }

    /// Keeps the nonces at which a tx is still waiting to be mined. (One that gave its nonce up made it unknown.)
    pub(super) fn retain_unproven(&mut self, is_waiting: impl Fn(Nonce) -> bool) {
        self.unproven.retain(|nonce| is_waiting(*nonce));
    }

    /// The lowest nonce below this one at which a lost transaction may be mined in place of the tx that holds it.
    pub(super) fn unproven_below(&self, used: Nonce) -> Option<Nonce> {
        self.unproven.range(..used).next().copied()
    }

    /// Compares what one endpoint claims with what two of three confirm. Whether it does not count: the two others
    /// contradict it although the block that was the newest at its first sight is final.
    pub(super) fn is_outvoted(
        &mut self,
        nonces: &EndpointNonces,
        tip: u64,
        final_height: Option<u64>,
    ) -> bool {
        let (claimed, confirmed) = (nonces.highest(), nonces.confirmed());
        let was_right = |claim: &mut LoneClaim| {
            claim.claimed.latest <= confirmed.latest && claim.claimed.pending <= confirmed.pending
        };
        self.lone_claim.take_if(was_right);
        if nonces.third.is_none() || claimed == confirmed {
            return false;
        }
        let claim = self.lone_claim.get_or_insert(LoneClaim {
            claimed,
            first_seen: tip,
        });
        final_height.is_some_and(|height| height >= claim.first_seen)
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
            SearchState::Settled(_) | SearchState::Halting => false,
        }
    }

    pub(super) fn settle(&mut self) {
        self.state = SearchState::Settled(Aftermath::default());
    }

    pub(super) fn halt(&mut self) {
        self.state = SearchState::Halting;
    }

    /// Follows what may still show a lost transaction. Whether only one more answer is awaited.
    pub(super) fn follow_aftermath(
        &mut self,
        heights: Option<Heights>,
        (cursor, floor): (Nonce, Nonce),
        now: Timestamp,
    ) -> bool {
        let (SearchState::Settled(aftermath), Some(heights)) = (&mut self.state, heights) else {
            return false;
        };
        let settled_at = *aftermath.settled_at.get_or_insert(heights.tip);
        if aftermath.allocated_below.is_none() {
            let is_final = heights
                .final_height
                .is_some_and(|height| height >= settled_at);
            aftermath.allocated_below = is_final.then_some(cursor);
        }
        let Some(below) = aftermath.allocated_below else {
            return false;
        };
        let has_ended = self.unknown.is_empty() && floor >= below.max(self.cursor_at_load);
        match has_ended {
            true => _ = aftermath.ended_at.get_or_insert(now),
            false => aftermath.ended_at = None,
        }
        has_ended && !aftermath.is_over
    }

    /// A complete answer shows nothing unknown, and the search is settled.
    pub(super) fn note_last_answer(&mut self, now: Timestamp) {
        if let SearchState::Settled(aftermath) = &mut self.state {
            let ended_at = aftermath.ended_at;
            aftermath.is_over = ended_at.is_some_and(|at| now.since(at) >= SECOND_ANSWER_AFTER);
        }
    }

    /// Whether everything that may have been lost is resolved.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, SearchState::Settled(aftermath) if aftermath.is_over)
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
        match &mut self.state {
            SearchState::Clean { since } => *since = (*since).min(now),
            SearchState::Settled(aftermath) => {
                aftermath.ended_at = aftermath.ended_at.map(|at| at.min(now));
            }
            SearchState::Open | SearchState::Halting => {}
        }
        let latest = now.plus(QUERY_RETRY_AFTER);
        self.query.not_before = self.query.not_before.min(latest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::Agreement;

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
        assert!(loss.is_settled());
        loss.add_unknown([Nonce(4)]);
        assert!(!loss.is_settled());
    }

    #[test]
    fn search_is_over_after_a_clean_answer_behind_all_that_was_allocated() {
        let mut loss = loss(&[]);
        loss.settle();
        let mut follow = |tip: u64, nonces: (u64, u64), now: u64| {
            let heights = Heights {
                tip,
                final_height: tip.checked_sub(12),
            };
            let nonces = (Nonce(nonces.0), Nonce(nonces.1));
            let awaits = loss.follow_aftermath(Some(heights), nonces, Timestamp(now));
            loss.note_last_answer(Timestamp(now));
            (awaits, loss.is_over())
        };
        assert_eq!(follow(20, (10, 10), 0), (false, false));
        assert_eq!(follow(31, (11, 11), 0), (false, false), "it is not final");
        assert_eq!(follow(32, (12, 11), 0), (false, false), "a tx is open");
        assert_eq!(
            follow(40, (20, 12), 2_000),
            (true, false),
            "one more answer"
        );
        assert_eq!(follow(40, (21, 11), 4_000), (false, false), "a reorg");
        assert_eq!(follow(41, (21, 12), 5_000), (true, false));
        assert_eq!(follow(41, (21, 12), 6_000), (true, true));
        loss.reopen();
        assert!(!loss.is_over());
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
    fn claim_of_one_endpoint_counts_until_its_block_would_be_final() {
        let nonces = |nonce: u64| AccountNonces {
            latest: Nonce(nonce),
            pending: Nonce(nonce),
        };
        let mut reported = EndpointNonces::new(nonces(9), Some(nonces(3)), Agreement::Quorum);
        let mut loss = loss(&[]);
        assert!(!loss.is_outvoted(&reported, 20, Some(8)), "one against one");
        reported.third = Some(nonces(3));
        assert!(!loss.is_outvoted(&reported, 20, Some(8)));
        assert!(!loss.is_outvoted(&reported, 31, Some(19)));
        assert!(loss.is_outvoted(&reported, 32, Some(20)));
        let agreed = EndpointNonces::new(nonces(9), Some(nonces(9)), Agreement::Quorum);
        assert!(!loss.is_outvoted(&agreed, 33, Some(21)), "it was right");
        assert!(!loss.is_outvoted(&reported, 34, Some(22)), "another claim");
    }

    #[test]
    fn unsigned_nonces_are_taken_once_and_as_far_as_they_are_used() {
        let mut loss = loss(&[]);
        loss.set_unsigned(vec![3..6, 8..9]);
        assert_eq!(loss.take_unsigned_below(Nonce(5), 9), [Nonce(3), Nonce(4)]);
        assert_eq!(loss.take_unsigned_below(Nonce(9), 1), [Nonce(5)]);
        assert_eq!(loss.take_unsigned_below(Nonce(9), 9), [Nonce(8)]);
        assert_eq!(loss.take_unsigned_below(Nonce(9), 9), []);
    }

    #[test]
    fn long_runs_are_queried_in_pages() {
        let all: Vec<u64> = (0..1_000).collect();
        let mut loss = loss(&all);
        let page = loss.next_query(Nonce(1_000), 1, Timestamp(0));
        assert_eq!(page, Some(0..QUERY_PAGE));
    }
}
