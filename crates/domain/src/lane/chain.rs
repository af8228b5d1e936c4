//! What the lane knows of its chain: the followed headers, the account's nonces and balance as endpoints last reported
//! them, and what is being queried.
//!
//! Invariants: one nonce query is under way at a time. The account's nonces never fall below what a receipt has
//! proved since the last answer. A suspicion is about one nonce, and its query repeats one height until an
//! endpoint answers it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;

use super::funds::Funds;
use super::nonce_claims::NonceClaim;
use super::{AccountNonces, Agreement, ChainQuery, Effect, EndpointNonces, StepContext};
use crate::{ChainView, Header, Nonce, Timestamp};

/// How long the follower may take to deliver the receipts of a block.
const RECEIPT_PATIENCE: Duration = Duration::from_secs(3);

/// The lane's knowledge of its chain.
#[derive(Clone, Debug, Default)]
pub(super) struct ChainKnowledge {
    /// The followed headers at the newest head.
    pub(super) view: Option<Arc<ChainView>>,
    nonces: Option<KnownNonces>,
    /// A report of a nonce above the cursor that is not proven.
    pub(super) claim: Option<NonceClaim>,
    is_querying: bool,
    /// Whether the latest query needed a second endpoint to agree.
    was_queried_with_quorum: bool,
    /// Whether the next query, whenever it is made, needs that.
    pub(super) needs_quorum: bool,
    answers: Answers,
    suspicion: Option<Suspicion>,
    /// Nonces below the first are consumed since the second, while receipts of ours are missing.
    missing_receipts: Option<(Nonce, Timestamp)>,
    /// What is known of the account's money.
    pub(super) funds: Funds,
    /// Whether more receipts are to be fetched when those that were requested are in.
    pub(super) has_more_receipts: bool,
    reported: ReportedHeaders,
}

/// The headers that were reported as confirmations.
#[derive(Clone, Debug, Default)]
struct ReportedHeaders {
    /// By the keeper before this one, as the store has them; or by this one, and not in the view of its newest report.
    others: BTreeMap<B256, Header>,
    /// The view of the newest report of this keeper: the tip was counted.
    view: Option<Arc<ChainView>>,
    /// Whether the present step reports the tip of the present view.
    is_reporting: bool,
}

/// The answers to nonce queries since the lane was loaded.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    /// How many were complete.
    complete: u64,
    /// When the last one came, whatever it said.
    last_at: Option<Timestamp>,
}

/// The account's nonces, and how far the answer can be trusted.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownNonces {
    pub(super) nonces: AccountNonces,
    pub(super) agreement: Agreement,
    /// Whether pools were queried too: a query without quorum asks only for what `nonce.chainQuery` names.
    pub(super) includes_pools: bool,
    pub(super) at: Timestamp,
}

/// A nonce of ours that is consumed, and not by a transaction that is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    pub(super) nonce: Nonce,
    /// The tip's height when it was first seen.
    first_seen: u64,
    /// From which final height on the consumer is queried again.
    query_from: u64,
    /// The height of the query that is not answered. Where no endpoint could answer, the same height is queried
    /// again, so that one that is behind gets there.
    unanswered: Option<u64>,
    is_querying: bool,
}

impl ChainKnowledge {
    /// The knowledge of a lane that was just loaded: the headers that were reported for its txs.
    pub(super) fn load(reported: Vec<Header>) -> Self {
        let others = reported.into_iter().map(|header| (header.hash, header));
        Self {
            reported: ReportedHeaders {
                others: others.collect(),
                ..ReportedHeaders::default()
            },
            ..Self::default()
        }
    }

    /// The present step reports the tip of the present view.
    pub(super) fn note_report(&mut self) {
        self.reported.is_reporting = true;
    }

    /// The step is over: what it has reported is compared with the next views. Not sooner, because other txs of the step
    /// compare their last report with this view. Returns whether headers of another branch were kept, for the txs that
    /// were reported with them and not in this step.
    pub(super) fn finish_reports(&mut self) -> bool {
        if !std::mem::take(&mut self.reported.is_reporting) {
            return false;
        }
        let before = std::mem::replace(&mut self.reported.view, self.view.clone());
        let (Some(before), Some(view)) = (before, &self.view) else {
            return false;
        };
        let is_on_view = |header: &Header| view.headers.at(header.number) == Some(header);
        if before.headers.tip().is_none_or(is_on_view) {
            return false;
        }
        let left = before.headers.iter().filter(|header| !is_on_view(header));
        let left = left.map(|header| (header.hash, *header));
        self.reported.others.extend(left);
        true
    }

    /// No tx is mined below this block any more, so none was reported with a header below it.
    pub(super) fn forget_reported_below(&mut self, lowest: u64) {
        let others = &mut self.reported.others;
        others.retain(|_, header| header.number >= lowest);
    }

    /// Whether a header that was reported is not on the followed chain any more. `None` while that is unknown: a view
    /// that is behind it proves nothing, unless the header's own ancestors are known.
    pub(super) fn is_reported_replaced(&self, hash: B256) -> Option<bool> {
        let headers = &self.view.as_ref()?.headers;
        if headers.contains(hash) {
            return Some(false);
        }
        let tip = headers.tip()?;
        let ancestor = self.reported.ancestor(hash, tip.number)?;
        let on_chain = headers.at(ancestor.number)?;
        Some(on_chain.hash != ancestor.hash)
    }

    /// The height of a header that was reported, where it is known.
    pub(super) fn reported_height(&self, hash: B256) -> Option<u64> {
        let newest = self.reported.ancestor(hash, u64::MAX)?;
        Some(newest.number)
    }

    pub(super) fn nonces(&self) -> Option<KnownNonces> {
        self.nonces
    }

    /// The account's nonce in mined blocks, 0 while it is unknown.
    pub(super) fn latest(&self) -> Nonce {
        self.nonces.map_or(Nonce(0), |known| known.nonces.latest)
    }

    /// Below this everything is consumed or pending, as far as is known.
    pub(super) fn used_below(&self) -> Nonce {
        self.nonces.map_or(Nonce(0), |known| {
            known.nonces.latest.max(known.nonces.pending)
        })
    }

    /// Whether there is no answer yet, or the last one is at least this old.
    pub(super) fn is_older_than(&self, age: Duration, now: Timestamp) -> bool {
        self.answers.last_at.is_none_or(|at| now.since(at) >= age)
    }

    /// Whether every endpoint agrees that nothing at or above this nonce is pending.
    pub(super) fn shows_nothing_pending_at(&self, nonce: Nonce) -> bool {
        self.nonces.is_some_and(|known| {
            known.agreement == Agreement::Quorum && known.nonces.pending <= nonce
        })
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers.complete
    }

    pub(super) fn is_querying(&self) -> bool {
        self.is_querying
    }

    pub(super) fn was_queried_with_quorum(&self) -> bool {
        self.was_queried_with_quorum
    }

    /// Queries the account's nonces, unless an answer is awaited already.
    pub(super) fn query_nonces(&mut self, taken: Option<(Nonce, B256)>, cx: &mut StepContext) {
        if !self.is_querying {
            let twice = self.needs_quorum;
            self.is_querying = true;
            self.was_queried_with_quorum = twice;
            cx.effects.push(Effect::QueryChainNonces { twice, taken });
        }
    }

    /// Counts an answer, whatever it says.
    pub(super) fn finish_query(&mut self, agreement: Agreement, now: Timestamp) {
        self.is_querying = false;
        self.answers.last_at = Some(now);
        if agreement == Agreement::Quorum {
            self.needs_quorum = false;
            self.answers.complete = self.answers.complete.saturating_add(1);
        }
    }

    /// Takes the highest nonces that any endpoint has seen.
    pub(super) fn set_nonces(&mut self, answer: &EndpointNonces, rule: ChainQuery, now: Timestamp) {
        let asked_pools = self.was_queried_with_quorum || rule == ChainQuery::Pending;
        self.nonces = Some(KnownNonces {
            nonces: answer.highest(),
            agreement: answer.agreement,
            includes_pools: answer.agreement == Agreement::Quorum && asked_pools,
            at: now,
        });
    }

    /// A mined nonce proves what the account's nonce is at least.
    pub(super) fn raise_to_mined(&mut self, nonce: Nonce) {
        if let Some(known) = &mut self.nonces {
            known.nonces.latest = known.nonces.latest.max(nonce.next());
            known.nonces.pending = known.nonces.pending.max(nonce.next());
        }
    }

    /// Receipts below the chain's nonce that the follower does not deliver in time are fetched by hash.
    pub(super) fn await_receipts(&mut self, latest: Nonce, now: Timestamp) {
        self.missing_receipts.get_or_insert((latest, now));
    }

    /// The nonce below which receipts are overdue, once.
    pub(super) fn take_overdue_receipts(&mut self, now: Timestamp) -> Option<Nonce> {
        let is_overdue =
            |(_, since): &mut (Nonce, Timestamp)| now.since(*since) >= RECEIPT_PATIENCE;
        let missing = self.missing_receipts.take_if(is_overdue);
        missing.map(|(latest, _)| latest)
    }

    /// Suspects foreign use of a nonce, which is first seen at this height unless it is suspected already.
    pub(super) fn suspect(&mut self, nonce: Nonce, tip: u64) -> &mut Suspicion {
        let before = self.suspicion.filter(|held| held.nonce == nonce);
        self.suspicion.insert(before.unwrap_or(Suspicion {
            nonce,
            first_seen: tip,
            query_from: 0,
            unanswered: None,
            is_querying: false,
        }))
    }

    pub(super) fn suspicion_of(&mut self, nonce: Nonce) -> Option<&mut Suspicion> {
        self.suspicion.as_mut().filter(|held| held.nonce == nonce)
    }

    pub(super) fn drop_suspicion(&mut self) {
        self.suspicion = None;
    }

    /// Recorded times never lie ahead of a wall clock that was set back.
    pub(super) fn clamp_times(&mut self, now: Timestamp) {
        self.answers.last_at = self.answers.last_at.map(|at| at.min(now));
        if let Some(known) = &mut self.nonces {
            known.at = known.at.min(now);
        }
        if let Some(claim) = &mut self.claim {
            claim.clamp_times(now);
        }
        if let Some((_, since)) = &mut self.missing_receipts {
            *since = (*since).min(now);
        }
    }
}

impl ReportedHeaders {
    /// The reported header, or its ancestor at this height if that is lower.
    fn ancestor(&self, hash: B256, not_above: u64) -> Option<Header> {
        if let Some(view) = &self.view
            && let Some(header) = view.headers.find(hash)
        {
            return view.headers.at(header.number.min(not_above)).copied();
        }
        let mut header = self.others.get(&hash)?;
        while header.number > not_above {
            let parent = header.parent_hash;
            let on_view = || self.view.as_ref()?.headers.find(parent);
            header = self.others.get(&parent).or_else(on_view)?;
        }
        Some(*header)
    }
}

impl Suspicion {
    /// The height up to which the consumer is to be queried now, given the newest height that counts; `None` while
    /// an answer is awaited or nothing new is final.
    pub(super) fn next_query(&mut self, newest: u64) -> Option<u64> {
        if self.is_querying || newest < self.query_from {
            return None;
        }
        self.is_querying = true;
        Some(*self.unanswered.get_or_insert(newest))
    }

    /// The height to query is not in the view any more: another one is used at the next block.
    pub(super) fn reset_query(&mut self) {
        self.is_querying = false;
        self.unanswered = None;
    }

    /// Counts an answer. The next query follows when the newest block of first sight is final, and then at every
    /// block.
    pub(super) fn finish_query(&mut self, is_answered: bool) {
        self.is_querying = false;
        if is_answered {
            let queried = self.unanswered.take();
            let next = queried.map_or(0, |height| height.saturating_add(1));
            self.query_from = self.first_seen.max(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FeeQuote;
    use crate::headers::HeaderChain;

    #[test]
    fn one_nonce_query_is_under_way_at_a_time() {
        let mut chain = ChainKnowledge::default();
        let mut cx = StepContext::new(Timestamp(0));
        chain.query_nonces(None, &mut cx);
        chain.needs_quorum = true;
        chain.query_nonces(None, &mut cx);
        assert_eq!(cx.effects.len(), 1);
        chain.finish_query(Agreement::One, Timestamp(0));
        chain.query_nonces(None, &mut cx);
        assert_eq!(cx.effects.len(), 2);
        assert!(chain.was_queried_with_quorum());
    }

    fn header(number: u8, parent: u8) -> Header {
        Header {
            number: u64::from(number % 10),
            hash: B256::with_last_byte(number),
            parent_hash: B256::with_last_byte(parent),
            timestamp: 0,
        }
    }

    /// The step that reports the tip of this branch.
    fn report(chain: &mut ChainKnowledge, branch: &[Header]) -> bool {
        let mut headers = HeaderChain::new(64);
        headers.adopt(branch).expect("it is linked");
        chain.view = Some(Arc::new(ChainView {
            headers,
            fee: FeeQuote {
                base_fee: None,
                tip: 0,
                block_gas_limit: None,
                no_op_gas: None,
                has_data_floor: false,
                recent_max: None,
            },
            final_up_to: None,
            deep_forks: 0,
        }));
        chain.note_report();
        chain.finish_reports()
    }

    #[test]
    fn header_stays_known_after_a_report_on_another_branch() {
        let (one, two, three, four) = (header(1, 0), header(2, 1), header(3, 2), header(4, 3));
        let mut chain = ChainKnowledge::default();
        assert!(!report(&mut chain, &[one, two, three, four]));
        let is_replaced = |chain: &ChainKnowledge| chain.is_reported_replaced(four.hash);
        // An endpoint that is behind is followed, and another tx is reported.
        assert!(report(&mut chain, &[one, two]));
        assert_eq!(is_replaced(&chain), Some(false), "the view is only behind");
        assert!(report(&mut chain, &[one, header(12, 1), header(13, 12)]));
        assert_eq!(is_replaced(&chain), Some(true));
        chain.forget_reported_below(5);
        assert_eq!(is_replaced(&chain), None);
    }

    #[test]
    fn consumer_query_repeats_its_height_until_it_is_answered() {
        let mut chain = ChainKnowledge::default();
        let suspicion = chain.suspect(Nonce(3), 20);
        assert_eq!(suspicion.next_query(8), Some(8));
        assert_eq!(suspicion.next_query(9), None, "an answer is awaited");
        suspicion.finish_query(false);
        assert_eq!(suspicion.next_query(9), Some(8));
        suspicion.finish_query(true);
        assert_eq!(suspicion.next_query(19), None);
        assert_eq!(suspicion.next_query(20), Some(20));
    }
}
