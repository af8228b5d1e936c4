//! What is known of the chain's nonces, lane by lane: asked for at most once per `stateTimeout` and lane,
//! whoever waits for it, and never while a lock is held.
//!
//! A lane that never lent takes the chain's nonce as it is. Afterwards the chain only raises doubts: a jump that
//! is too far, or that no second endpoint confirms, is refused with what to look at, and nothing moves.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::lane::{AccountNonces, ChainQuery, EndpointNonces};
use domain::{LaneKey, MonotonicTime, Nonce};
use engine::ports::{Chain, ChainError, Clock, Quorum, ReservationError};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use crate::config::{LentChain, LentChains, Settings};
use crate::scheme::Scheme;

/// After how long a chain that did not answer, or not credibly, is asked again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How many lanes are remembered; beyond, those asked about longest ago are forgotten and asked about again.
const LANES_MAX: usize = 10_000;

/// What is known, and how to learn more.
pub(super) struct Knowledge {
    asker: Asker,
    state_timeout: Duration,
    lanes: Mutex<BTreeMap<LaneKey, Known>>,
}

/// Asks the chain.
struct Asker {
    query: ChainQuery,
    max_chain_jump: u64,
    scheme: Arc<dyn Scheme>,
    chains: LentChains,
    clock: Arc<dyn Clock>,
}

type Answer = Result<Nonce, ReservationError>;

/// What is known of one lane.
#[derive(Default)]
struct Known {
    /// The last credible answer.
    at_least: Option<Nonce>,
    /// What is answered until then.
    answer: Option<(Answer, MonotonicTime)>,
    /// The question under way, for all who wait.
    asking: Option<Shared<BoxFuture<'static, Answer>>>,
}

impl Knowledge {
    pub(super) fn new(
        settings: &Settings,
        scheme: Arc<dyn Scheme>,
        chains: LentChains,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            asker: Asker {
                query: settings.chain_query,
                max_chain_jump: settings.max_chain_jump,
                scheme,
                chains,
                clock,
            },
            state_timeout: settings.state_timeout,
            lanes: Mutex::default(),
        }
    }

    /// Below which nothing of a lane may be lent.
    pub(super) async fn at_least(self: &Arc<Self>, lane: LaneKey) -> Answer {
        chain_of(&self.asker.chains, lane)?;
        if self.asker.query == ChainQuery::Off {
            return Ok(Nonce(0));
        }
        let asking = {
            let mut lanes = self.lock();
            forget_one_if_full(&mut lanes, lane);
            let known = lanes.entry(lane).or_default();
            let now = self.asker.clock.monotonic();
            if let Some((answer, until)) = &known.answer
                && now < *until
            {
                return answer.clone();
            }
            let ask = || Arc::clone(self).ask(lane, known.at_least).boxed().shared();
            known.asking.get_or_insert_with(ask).clone()
        };
        asking.await
    }

    async fn ask(self: Arc<Self>, lane: LaneKey, before: Option<Nonce>) -> Answer {
        let asked_at = self.asker.clock.monotonic();
        let said = self.asker.ask(lane, before).await;
        let soon = self.asker.clock.monotonic().plus(ASK_AGAIN_AFTER);
        let (answer, until) = match (said, before) {
            (Ok(said), _) => (Ok(said), asked_at.plus(self.state_timeout)),
            // The chain only guards against use by others: what was known must do while it does not answer.
            (Err(NotTold::Silent(error)), Some(before)) => {
                tracing::warn!(%lane, %error, "nonces are lent by older knowledge of the chain");
                (Ok(before), soon)
            }
            (Err(NotTold::Silent(error)), None) => (Err(unavailable(error)), soon),
            (Err(NotTold::Refused(error)), _) => (Err(error), soon),
        };
        let mut lanes = self.lock();
        let known = lanes.entry(lane).or_default();
        known.asking = None;
        known.at_least = answer.as_ref().ok().copied().or(known.at_least);
        known.answer = Some((answer.clone(), until));
        answer
    }

    /// A poisoned lock is taken all the same: nothing panics while it is held.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LaneKey, Known>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why the chain's nonce is not known.
enum NotTold {
    /// No endpoint answered.
    Silent(ChainError),
    /// The answer is not credible, or the books cannot be read.
    Refused(ReservationError),
}

impl Asker {
    async fn ask(&self, lane: LaneKey, before: Option<Nonce>) -> Result<Nonce, NotTold> {
        let lent = chain_of(&self.chains, lane).map_err(NotTold::Refused)?;
        let chain = &*lent.chain;
        let first = self.count(self.account_nonces(chain, lane, Quorum::One).await?.first);
        let next = self.next_nonce(lane).await?;
        let is_new = next == Nonce(0);
        let went_back = before.is_some_and(|before| first < before);
        if is_new || (first <= next && !went_back) {
            return Ok(first);
        }
        let nonces = self.account_nonces(chain, lane, Quorum::Two).await?;
        let next = self.next_nonce(lane).await?;
        self.judge(&nonces, next).map_err(NotTold::Refused)
    }

    /// What two endpoints say of a lane that has lent before.
    fn judge(&self, nonces: &EndpointNonces, next: Nonce) -> Answer {
        let first = self.count(nonces.first);
        let second = nonces.second.map_or(first, |second| self.count(second));
        let (agreed, said) = (first.min(second), first.max(second));
        let jump = next.until(said);
        if jump == 0 {
            return Ok(said);
        }
        if jump > self.max_chain_jump {
            return Err(ReservationError::Unavailable(format!(
                "the chain says that nonce {said} is next, {jump} above what was lent ({next}); that is more \
                 than nonce.maxChainJump ({}): check who else uses this account",
                self.max_chain_jump
            )));
        }
        if !nonces.is_complete || agreed <= next {
            return Err(ReservationError::Unavailable(format!(
                "an endpoint says that nonce {said} is next, {next} is the next to lend, and no second endpoint \
                 confirms it: check that all endpoints are in sync"
            )));
        }
        Ok(agreed)
    }

    async fn account_nonces(
        &self,
        chain: &dyn Chain,
        lane: LaneKey,
        quorum: Quorum,
    ) -> Result<EndpointNonces, NotTold> {
        let told = chain.account_nonces(lane.signer, self.query, quorum).await;
        told.map_err(NotTold::Silent)
    }

    /// Always read after the chain was asked: what was lent and sent meanwhile is no foreign use.
    async fn next_nonce(&self, lane: LaneKey) -> Result<Nonce, NotTold> {
        let lent = self.scheme.list_reservations(lane).await;
        Ok(lent.map_err(NotTold::Refused)?.next_nonce)
    }

    fn count(&self, said: AccountNonces) -> Nonce {
        match self.query {
            ChainQuery::Pending => said.pending.max(said.latest),
            ChainQuery::Latest | ChainQuery::Off => said.latest,
        }
    }
}

/// The chain of a lane.
pub(super) fn chain_of(chains: &LentChains, lane: LaneKey) -> Result<&LentChain, ReservationError> {
    let id = lane.chain_id;
    let unknown =
        || ReservationError::NotReservable(format!("no nonces are lent on chain {id} here"));
    chains.get(&id).ok_or_else(unknown)
}

fn unavailable(error: ChainError) -> ReservationError {
    ReservationError::Unavailable(format!("the chain's nonce is not known: {error}"))
}

/// Makes room for one more.
fn forget_one_if_full(lanes: &mut BTreeMap<LaneKey, Known>, wanted: LaneKey) {
    if lanes.len() < LANES_MAX || lanes.contains_key(&wanted) {
        return;
    }
    let idle = lanes.iter().filter(|(_, known)| known.asking.is_none());
    let oldest = idle.min_by_key(|(_, known)| known.answer.as_ref().map(|(_, until)| *until));
    if let Some(lane) = oldest.map(|(lane, _)| *lane) {
        lanes.remove(&lane);
    }
}
