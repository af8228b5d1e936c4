//! The component: one interface over both modes and all schemes.

mod active_calls;
mod chain_check;
mod chain_nonce_cache;
mod pending_allocation;
mod with_nonce;

pub use with_nonce::{HeldNonce, Outcome, WithNonceError};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{B256, Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation, ReservationState};
use engine::ports::{Clock, LaneReservations, NonceReservations, ReservationError};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use metrics::counter;

use crate::Result;
use crate::config::{Mode, ReservationChain, ReservationChains, Settings, SettingsError};
use crate::queue::WorkerQueue;
use crate::scheme::{ReservationKey, ReserveRequest, Scheme};
use crate::sweep::Sweep;
use active_calls::ActiveCalls;
use chain_nonce_cache::ChainNonceCache;
use pending_allocation::PendingAllocation;

/// Maximum length of a recycle reason in characters; longer ones are truncated.
pub const REASON_LEN_MAX: usize = 500;

/// Reserves nonces. Cheap to clone: all clones share one component.
#[derive(Clone)]
pub struct NonceComponent {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    scheme: Arc<dyn Scheme>,
    chains: ReservationChains,
    clock: Arc<dyn Clock>,
    chain_nonces: Arc<ChainNonceCache>,
    /// `None` in basic mode: no worker, no lock, no task.
    queue: Option<WorkerQueue>,
    active_calls: Arc<ActiveCalls>,
}

impl NonceComponent {
    /// Starts a component over a scheme. Worker-queue mode spawns the workers, so this must be called inside a
    /// tokio runtime. The sweep is not started: see [`NonceComponent::sweep`].
    pub fn start(
        settings: Settings,
        scheme: Arc<dyn Scheme>,
        chains: Vec<ReservationChain>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, SettingsError> {
        settings.validate()?;
        let by_id = chains.into_iter().map(|chain| (chain.chain.id(), chain));
        let chains: ReservationChains = Arc::new(by_id.collect());
        let queue = match settings.mode {
            Mode::Basic => None,
            Mode::WorkerQueue(queue) => Some(WorkerQueue::start(queue, Arc::clone(&clock))),
        };
        let chain_nonces = ChainNonceCache::new(
            &settings,
            Arc::clone(&scheme),
            Arc::clone(&chains),
            Arc::clone(&clock),
        );
        Ok(Self {
            inner: Arc::new(Inner {
                settings,
                scheme,
                chains,
                clock,
                chain_nonces: Arc::new(chain_nonces),
                queue,
                active_calls: Arc::new(ActiveCalls::default()),
            }),
        })
    }

    /// Reserves the smallest free nonce of a lane. The holder must send by `expires_at` or call
    /// [`Self::mark_submitted`] before; afterwards the nonce may be reserved for another holder.
    ///
    /// If the caller is cancelled before the answer, the nonce is recycled.
    pub async fn allocate(&self, lane: LaneKey) -> Result<Reservation> {
        PendingAllocation::start(self, lane)?.await
    }

    /// Records that a transaction is about to be sent, or was. Call it before the bytes leave: from then on the
    /// nonce never expires.
    pub async fn mark_submitted(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        tx_hash: B256,
    ) -> Result<Reservation> {
        let mark = Mark::Submitted(tx_hash);
        self.mark(lane, nonce, holder, mark).await
    }

    /// Records that this transaction uses the nonce. Idempotent for the same hash.
    pub async fn mark_used(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        tx_hash: B256,
    ) -> Result<Reservation> {
        self.mark(lane, nonce, holder, Mark::Used(tx_hash)).await
    }

    /// Recycles a nonce: nothing was sent, or nothing of it can be mined any more. A submitted nonce is recycled
    /// only if the chain shows nothing of it, and only if no more than one hash was ever submitted.
    pub async fn mark_recyclable(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        reason: impl Into<String>,
    ) -> Result<Reservation> {
        let mark = Mark::Recyclable {
            reason: reason.into(),
            asked: None,
        };
        self.mark(lane, nonce, holder, mark).await
    }

    /// Lists the open reservations of a lane.
    pub async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations> {
        self.inner.scheme.list_reservations(lane).await
    }

    /// The sweep over expired, submitted and closed reservations. Every process that reserves nonces should run
    /// one; several are harmless.
    #[must_use]
    pub fn sweep(&self) -> Sweep {
        Sweep::new(
            &self.inner.settings,
            Arc::clone(&self.inner.scheme),
            Arc::clone(&self.inner.chains),
            Arc::clone(&self.inner.clock),
        )
    }

    /// Stops reserving, waits for running `with_nonce` sections and queued calls, then closes the scheme. The
    /// calls get two thirds of the time, the scheme the rest. Unfinished calls are aborted and return
    /// [`ReservationError::Unknown`]. No task of the component is left afterwards.
    pub fn close(&self, within: Duration) -> BoxFuture<'_, Result<()>> {
        async move {
            let Inner {
                active_calls,
                clock,
                queue,
                ..
            } = &*self.inner;
            let began = clock.monotonic();
            let left_of = |time: Duration| began.plus(time).since(clock.monotonic());
            let for_calls = within / 3 * 2;
            active_calls.drain();
            tokio::select! {
                biased;
                () = active_calls.wait_until_idle() => {}
                () = clock.sleep(left_of(for_calls)) => {
                    tracing::warn!("the nonce component closes with sections in progress");
                }
            }
            active_calls.close();
            if let Some(queue) = queue
                && !queue.close(left_of(for_calls)).await
            {
                tracing::warn!("the nonce component closes with unfinished calls");
            }
            tokio::select! {
                biased;
                closed = self.inner.scheme.close() => closed,
                () = clock.sleep(left_of(within)) => {
                    Err(ReservationError::Unknown("the ledger was not closed in time".into()))
                }
            }
        }
        .boxed()
    }

    /// Records a holder's mark, and counts it.
    async fn mark_reservation(&self, key: ReservationKey, mark: Mark) -> Result<Reservation> {
        let what = match &mark {
            Mark::Submitted(_) => "submitted",
            Mark::Used(_) => "used",
            Mark::Recyclable { .. } => "recyclable",
        };
        let taken = self.check_and_record_mark(key, mark).await;
        let result = result_label(&taken);
        counter!("lanekeeper_nonce_mark_total", "mark" => what, "result" => result).increment(1);
        taken
    }

    /// Records a holder's mark; a recycling mark needs a chain check first. Idempotent.
    async fn check_and_record_mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation> {
        let _inside = self.inner.active_calls.begin_mark()?;
        let mark = match mark {
            Mark::Recyclable { reason, .. } => {
                let asked = self.check_chain_before_recycling(key).await?;
                Mark::Recyclable { reason, asked }
            }
            mark @ (Mark::Submitted(_) | Mark::Used(_)) => mark,
        };
        self.record_mark(key, mark).await
    }

    /// Records a mark whose chain check, if it needs one, is done.
    async fn record_mark(&self, key: ReservationKey, mark: Mark) -> Result<Reservation> {
        let mark = match mark {
            Mark::Recyclable { reason, asked } => Mark::Recyclable {
                reason: truncate_reason(reason),
                asked,
            },
            mark @ (Mark::Submitted(_) | Mark::Used(_)) => mark,
        };
        let scheme = Arc::clone(&self.inner.scheme);
        let call = async move { scheme.mark(key, mark).await };
        match self.run_call(key.lane, call).await {
            // The chain was checked for another hash; a retry checks it for the present one.
            Err(ReservationError::Refused(refused @ MarkRefusal::NamedSince { .. })) => {
                let (nonce, why) = (key.nonce, refused.to_string());
                Err(ReservationError::MayBeMined { nonce, why })
            }
            answer => answer,
        }
    }

    /// A submitted nonce is recycled only if no node shows its transaction. Returns the hash that was checked.
    async fn check_chain_before_recycling(&self, key: ReservationKey) -> Result<Option<B256>> {
        let known = self.inner.scheme.find_reservation(key).await?;
        let submitted = known.filter(|known| {
            known.holder == key.holder && known.state == ReservationState::Reserved
        });
        if submitted.as_ref().is_some_and(|known| known.was_replaced) {
            return Err(MarkRefusal::TwoNamed(key.nonce).into()); // the chain check covers one hash only
        }
        let Some(tx_hash) = submitted.and_then(|known| known.tx_hash) else {
            return Ok(None);
        };
        self.require_no_chain_evidence(key, Some(tx_hash)).await?;
        Ok(Some(tx_hash))
    }

    /// Fails when the chain shows a transaction with this nonce, or cannot be queried.
    async fn require_no_chain_evidence(
        &self,
        ReservationKey { lane, nonce, .. }: ReservationKey,
        tx_hash: Option<B256>,
    ) -> Result<()> {
        let chain = chain_nonce_cache::chain_of(&self.inner.chains, lane)?;
        let shown = chain_check::find_chain_evidence(&*chain.chain, lane, nonce, tx_hash).await;
        let why = match shown {
            Ok(None) => return Ok(()),
            Ok(Some(why)) => why,
            Err(error) => format!("the chain check failed: {error}"),
        };
        Err(ReservationError::MayBeMined { nonce, why })
    }

    /// Runs a call to the scheme according to the mode.
    async fn run_call<T: Send + 'static>(
        &self,
        lane: LaneKey,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match &self.inner.queue {
            None => call.await,
            Some(queue) => queue.run(lane, call).await,
        }
    }

    /// Reserves a nonce whether or not a caller still waits for it.
    async fn reserve(&self, lane: LaneKey) -> Result<Reservation> {
        let at_least = self.inner.chain_nonces.lowest_reservable(lane).await?;
        let random = self.inner.clock.random().to_be_bytes();
        let request = ReserveRequest {
            holder: Holder(uuid::Builder::from_random_bytes(random).into_uuid()),
            at_least,
            timeout: self.inner.settings.reservation_timeout,
        };
        let scheme = Arc::clone(&self.inner.scheme);
        let call = async move { scheme.allocate(lane, request).await };
        self.run_call(lane, call).await
    }
}

#[async_trait]
impl NonceReservations for NonceComponent {
    async fn allocate(&self, lane: LaneKey) -> Result<Reservation> {
        Self::allocate(self, lane).await
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation> {
        let key = ReservationKey {
            lane,
            nonce,
            holder,
        };
        self.mark_reservation(key, mark).await
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations> {
        Self::list_reservations(self, lane).await
    }
}

impl fmt::Debug for NonceComponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NonceComponent")
            .field("scheme", &self.inner.scheme.kind())
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

/// The `result` label of the call counters.
fn result_label<T>(result: &Result<T>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(ReservationError::Refused(_)) => "refused",
        Err(ReservationError::MayBeMined { .. }) => "may_be_mined",
        Err(
            ReservationError::UnknownChain(_)
            | ReservationError::UnknownSigner(..)
            | ReservationError::NotReservable(_),
        ) => "not_lendable",
        Err(ReservationError::Busy) => "busy",
        Err(ReservationError::Unavailable(_)) => "unavailable",
        Err(ReservationError::Unknown(_)) => "unknown",
    }
}

/// Truncates a reason, which is for display only.
fn truncate_reason(mut reason: String) -> String {
    if let Some((end, _)) = reason.char_indices().nth(REASON_LEN_MAX) {
        reason.truncate(end);
    }
    reason.retain(|c| c != '\0'); // PostgreSQL's text type cannot store it
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_truncated_at_a_character_boundary_without_nul() {
        assert_eq!(
            truncate_reason("ü".repeat(REASON_LEN_MAX + 7)),
            "ü".repeat(REASON_LEN_MAX)
        );
        assert_eq!(truncate_reason("short".into()), "short");
        assert_eq!(truncate_reason("a\0b".into()), "ab");
    }
}
