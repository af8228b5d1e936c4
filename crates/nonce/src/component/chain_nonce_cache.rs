//! The chain's account nonces, cached per lane: at most one query per `stateTimeout` and lane, shared by all
//! callers that wait for it, and never while a lock is held.
//!
//! A lane without reservations accepts the chain's nonce as it is. Afterwards a jump that is too large, or that no
//! second endpoint confirms, is refused with instructions for the operator, and the lane's next nonce stays.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::lane::{ChainQuery, EndpointNonces};
use domain::{LaneKey, MonotonicTime, Nonce};
use engine::ports::{Chain, ChainError, Clock, Quorum, ReservationError};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;

use crate::Result;
use crate::config::{ReservationChain, ReservationChains, Settings};
use crate::scheme::Scheme;

/// Pause before a chain that did not answer, or not credibly, is queried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Number of cached lanes; beyond it, the entry that expires first is evicted.
const LANES_MAX: usize = 10_000;

/// Queries the chain, checks its answers against the ledger, and caches them.
pub(super) struct ChainNonceCache {
    query: ChainQuery,
    max_chain_jump: u64,
    state_timeout: Duration,
    scheme: Arc<dyn Scheme>,
    chains: ReservationChains,
    clock: Arc<dyn Clock>,
    lanes: Mutex<BTreeMap<LaneKey, CachedNonce>>,
}

type Answer = Result<Nonce>;

/// The cached answer for one lane.
#[derive(Default)]
struct CachedNonce {
    /// The last credible answer.
    at_least: Option<Nonce>,
    /// The answer for callers, and how long it is valid.
    answer: Option<(Answer, MonotonicTime)>,
    /// The query in flight, shared by all waiting callers.
    pending: Option<Shared<BoxFuture<'static, Answer>>>,
}

/// Why the chain's nonce is not available.
enum QueryFailure {
    /// No endpoint answered.
    Unreachable(ChainError),
    /// The answer is not credible, or the ledger cannot be read.
    Refused(ReservationError),
}

impl ChainNonceCache {
    pub(super) fn new(
        settings: &Settings,
        scheme: Arc<dyn Scheme>,
        chains: ReservationChains,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            query: settings.chain_query,
            max_chain_jump: settings.max_chain_jump,
            state_timeout: settings.state_timeout,
            scheme,
            chains,
            clock,
            lanes: Mutex::default(),
        }
    }

    /// The lowest nonce that may be reserved in a lane.
    pub(super) async fn lowest_reservable(self: &Arc<Self>, lane: LaneKey) -> Answer {
        chain_of(&self.chains, lane)?;
        if self.query == ChainQuery::Off {
            return Ok(Nonce(0));
        }
        let pending = {
            let mut lanes = self.lanes.lock();
            evict_oldest_if_full(&mut lanes, lane);
            let cached = lanes.entry(lane).or_default();
            let now = self.clock.monotonic();
            if let Some((answer, until)) = &cached.answer
                && now < *until
            {
                return answer.clone();
            }
            let refresh = || {
                Arc::clone(self)
                    .refresh(lane, cached.at_least)
                    .boxed()
                    .shared()
            };
            cached.pending.get_or_insert_with(refresh).clone()
        };
        pending.await
    }

    async fn refresh(self: Arc<Self>, lane: LaneKey, before: Option<Nonce>) -> Answer {
        let requested_at = self.clock.monotonic();
        let answer = self.query_chain_nonce(lane, before).await;
        let soon = self.clock.monotonic().plus(RETRY_AFTER);
        let (answer, until) = match (answer, before) {
            (Ok(answer), _) => (Ok(answer), requested_at.plus(self.state_timeout)),
            // The chain only protects against foreign use of the account, so the last answer serves while it is unreachable.
            (Err(QueryFailure::Unreachable(error)), Some(before)) => {
                tracing::warn!(%lane, %error, "chain unreachable: nonces are reserved with the last known chain nonce");
                (Ok(before), soon)
            }
            (Err(QueryFailure::Unreachable(error)), None) => (Err(unavailable(error)), soon),
            (Err(QueryFailure::Refused(error)), _) => (Err(error), soon),
        };
        let mut lanes = self.lanes.lock();
        let cached = lanes.entry(lane).or_default();
        cached.pending = None;
        cached.at_least = answer.as_ref().ok().copied().or(cached.at_least);
        cached.answer = Some((answer.clone(), until));
        answer
    }

    async fn query_chain_nonce(
        &self,
        lane: LaneKey,
        before: Option<Nonce>,
    ) -> Result<Nonce, QueryFailure> {
        let reservation_chain = chain_of(&self.chains, lane).map_err(QueryFailure::Refused)?;
        let chain = &*reservation_chain.chain;
        let nonces = self.account_nonces(chain, lane, Quorum::One).await?;
        let first = self.query.next_nonce(nonces.first);
        let next = self.next_nonce(lane).await?;
        let is_new = next == Nonce(0);
        let decreased = before.is_some_and(|before| first < before);
        if is_new || (first <= next && !decreased) {
            return Ok(first);
        }
        let nonces = self.account_nonces(chain, lane, Quorum::Two).await?;
        let next = self.next_nonce(lane).await?;
        self.check_jump(&nonces, next)
            .map_err(QueryFailure::Refused)
    }

    /// Checks the answers of two endpoints for a lane that already has reservations.
    fn check_jump(&self, nonces: &EndpointNonces, next: Nonce) -> Answer {
        let agreed = self.query.next_nonce(nonces.confirmed());
        let highest = self.query.next_nonce(nonces.highest());
        if nonces.third.is_some() && agreed <= next {
            return Ok(agreed); // two others contradict the one that reports more
        }
        let jump = next.until(highest);
        if jump == 0 {
            return Ok(highest);
        }
        if jump > self.max_chain_jump {
            return Err(ReservationError::Unavailable(format!(
                "the chain's next nonce is {highest}, {jump} above the next nonce to reserve ({next}); that is more than \
                 nonce.maxChainJump ({}): check which other software uses this account",
                self.max_chain_jump
            )));
        }
        if !nonces.is_complete() || agreed <= next {
            return Err(ReservationError::Unavailable(format!(
                "one endpoint reports {highest} as the next nonce, the next nonce to reserve is {next}, and \
                 no second endpoint confirms it: check that all endpoints are in sync"
            )));
        }
        Ok(agreed)
    }

    async fn account_nonces(
        &self,
        chain: &dyn Chain,
        lane: LaneKey,
        quorum: Quorum,
    ) -> Result<EndpointNonces, QueryFailure> {
        let nonces = chain.account_nonces(lane.signer, self.query, quorum).await;
        nonces.map_err(QueryFailure::Unreachable)
    }

    /// Must be read after the chain query: what was reserved and sent in between is no foreign use.
    async fn next_nonce(&self, lane: LaneKey) -> Result<Nonce, QueryFailure> {
        let reservations = self.scheme.list_reservations(lane).await;
        Ok(reservations.map_err(QueryFailure::Refused)?.next_nonce)
    }
}

pub(super) fn chain_of(chains: &ReservationChains, lane: LaneKey) -> Result<&ReservationChain> {
    let id = lane.chain_id;
    chains.get(&id).ok_or(ReservationError::UnknownChain(id))
}

fn unavailable(error: ChainError) -> ReservationError {
    ReservationError::Unavailable(format!("cannot query the chain's nonce: {error}"))
}

fn evict_oldest_if_full(lanes: &mut BTreeMap<LaneKey, CachedNonce>, wanted: LaneKey) {
    if lanes.len() < LANES_MAX || lanes.contains_key(&wanted) {
        return;
    }
    let idle = lanes.iter().filter(|(_, cached)| cached.pending.is_none());
    let oldest = idle.min_by_key(|(_, cached)| cached.answer.as_ref().map(|(_, until)| *until));
    if let Some(lane) = oldest.map(|(lane, _)| *lane) {
        lanes.remove(&lane);
    }
}
