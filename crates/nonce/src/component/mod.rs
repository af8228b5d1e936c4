//! The one face of the component, whatever the mode and whichever scheme keeps the books.

mod knowledge;
mod life;
mod loan;
mod with_nonce;
mod witness;

pub use with_nonce::{Borrowed, Outcome, WithNonceError};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{B256, Holder, LaneKey, Mark, MarkRefusal, Nonce, Reservation, ReservationState};
use engine::ports::{Clock, LaneReservations, NonceReservations, ReservationError};
use metrics::counter;

use crate::config::{BadSettings, LentChain, LentChains, Mode, Settings};
use crate::queue::WorkerQueue;
use crate::scheme::{Borrow, Scheme};
use crate::sweep::Sweep;
use knowledge::Knowledge;
use life::Life;
use loan::ReservationRules;

/// The longest reason that is kept; more is cut off.
pub const REASON_LEN_MAX: usize = 500;

/// Lends nonces. Cheap to clone: all clones are the same component.
#[derive(Clone)]
pub struct NonceComponent {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    scheme: Arc<dyn Scheme>,
    chains: LentChains,
    clock: Arc<dyn Clock>,
    knowledge: Arc<Knowledge>,
    /// `None` in basic mode: no worker, no lock, no task.
    queue: Option<WorkerQueue>,
    life: Arc<Life>,
}

impl NonceComponent {
    /// A component over these books. In worker-queue mode this starts the workers, so it must be called inside
    /// a tokio runtime. The sweep is not started: see [`NonceComponent::sweep`].
    pub fn start(
        settings: Settings,
        scheme: Arc<dyn Scheme>,
        chains: Vec<LentChain>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, BadSettings> {
        settings.check()?;
        let by_id = chains.into_iter().map(|lent| (lent.chain.id(), lent));
        let chains: LentChains = Arc::new(by_id.collect());
        let queue = match settings.mode {
            Mode::Basic => None,
            Mode::WorkerQueue(queue) => Some(WorkerQueue::start(queue, Arc::clone(&clock))),
        };
        let knowledge = Knowledge::new(
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
                knowledge: Arc::new(knowledge),
                queue,
                life: Arc::new(Life::default()),
            }),
        })
    }

    /// Lends the smallest free nonce of a lane. Its holder must have sent by `expires_at`, or have said that he
    /// did ([`Self::mark_submitted`]); after that it may be lent to somebody else.
    ///
    /// A caller that goes away before the answer keeps nothing: the nonce is given back.
    pub async fn allocate(&self, lane: LaneKey) -> Result<Reservation, ReservationError> {
        ReservationRules::start(self, lane)?.await
    }

    /// A transaction is about to be sent, or was. To be said before its bytes leave: from then on the nonce is
    /// never free by time alone.
    pub async fn mark_submitted(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        tx_hash: B256,
    ) -> Result<Reservation, ReservationError> {
        let mark = Mark::Submitted(tx_hash);
        self.mark(lane, nonce, holder, mark).await
    }

    /// The nonce is used, by this transaction. The same one twice is fine.
    pub async fn mark_used(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        tx_hash: B256,
    ) -> Result<Reservation, ReservationError> {
        self.mark(lane, nonce, holder, Mark::Used(tx_hash)).await
    }

    /// Nothing was sent, or nothing of it can be mined any more. Of a submitted nonce this is believed only if
    /// the chain shows nothing of it, and only if no more than one transaction was ever named.
    pub async fn mark_recyclable(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        reason: impl Into<String>,
    ) -> Result<Reservation, ReservationError> {
        let mark = Mark::Recyclable {
            reason: reason.into(),
            asked: None,
        };
        self.mark(lane, nonce, holder, mark).await
    }

    /// What is lent of a lane at present.
    pub async fn list_reservations(
        &self,
        lane: LaneKey,
    ) -> Result<LaneReservations, ReservationError> {
        self.inner.scheme.list_reservations(lane).await
    }

    /// What looks after overdue, submitted and closed nonces. Every process that borrows
    /// should run it; several do no harm.
    #[must_use]
    pub fn sweep(&self) -> Sweep {
        Sweep::new(
            &self.inner.settings,
            Arc::clone(&self.inner.scheme),
            Arc::clone(&self.inner.chains),
            Arc::clone(&self.inner.clock),
        )
    }

    /// Lends nothing any more, lets those inside `with_nonce` finish, then what waits in the queues, then the
    /// books: all within this time, of which the books have the last third for themselves. What is not finished
    /// then is cut off, and its callers are told that the answer was lost. No task of the component is left
    /// afterwards.
    pub async fn close(&self, within: Duration) -> Result<(), ReservationError> {
        let Inner {
            life, clock, queue, ..
        } = &*self.inner;
        let began = clock.monotonic();
        let left_of = |time: Duration| began.plus(time).since(clock.monotonic());
        let for_calls = within / 3 * 2;
        life.drain();
        tokio::select! {
            biased;
            () = life.nobody_is_inside() => {}
            () = clock.sleep(left_of(for_calls)) => {
                tracing::warn!("the nonce component closes while somebody is inside");
            }
        }
        life.end();
        if let Some(queue) = queue
            && !queue.close(left_of(for_calls)).await
        {
            tracing::warn!("the nonce component closes with calls that were not finished");
        }
        tokio::select! {
            biased;
            closed = self.inner.scheme.close() => closed,
            () = clock.sleep(left_of(within)) => {
                Err(ReservationError::Unknown("the books were not closed in time".into()))
            }
        }
    }

    /// Takes what a holder says. Worth repeating as often as one likes: the same word twice is fine.
    async fn take_mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        let _inside = self.inner.life.enter_to_mark()?;
        let mark = match mark {
            Mark::Recyclable { reason, .. } => {
                let asked = self.ask_before_it_is_free(lane, nonce, holder).await?;
                Mark::Recyclable { reason, asked }
            }
            said @ (Mark::Submitted(_) | Mark::Used(_)) => said,
        };
        self.write_mark(lane, nonce, holder, mark).await
    }

    /// Writes a mark down; of one that frees, the chain was asked.
    async fn write_mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        let mark = match mark {
            Mark::Recyclable { reason, asked } => Mark::Recyclable {
                reason: cut(reason),
                asked,
            },
            said @ (Mark::Submitted(_) | Mark::Used(_)) => said,
        };
        let scheme = Arc::clone(&self.inner.scheme);
        let call = async move { scheme.mark(lane, nonce, holder, mark).await };
        match self.run(lane, call).await {
            // The chain's answer was for another transaction: whoever asks again has it asked about this one.
            Err(ReservationError::Refused(refused @ MarkRefusal::NamedSince { .. })) => {
                let why = refused.to_string();
                Err(ReservationError::MayBeMined { nonce, why })
            }
            answer => answer,
        }
    }

    /// What was submitted is free only if no node shows anything of it. Gives the transaction that was asked about.
    async fn ask_before_it_is_free(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
    ) -> Result<Option<B256>, ReservationError> {
        let known = self.inner.scheme.reservation(lane, nonce, holder).await?;
        let submitted = known
            .filter(|known| known.holder == holder && known.state == ReservationState::Reserved);
        if submitted.as_ref().is_some_and(|known| known.was_replaced) {
            return Err(MarkRefusal::TwoNamed(nonce).into()); // the chain knows of one at a time only
        }
        let Some(tx_hash) = submitted.and_then(|known| known.tx_hash) else {
            return Ok(None);
        };
        self.ask_whether_unused(lane, nonce, Some(tx_hash)).await?;
        Ok(Some(tx_hash))
    }

    /// Fails when the chain shows something of a nonce, or cannot be asked.
    async fn ask_whether_unused(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        tx_hash: Option<B256>,
    ) -> Result<(), ReservationError> {
        let lent = knowledge::chain_of(&self.inner.chains, lane)?;
        let shown = witness::why_it_may_be_mined(&*lent.chain, lane, nonce, tx_hash).await;
        match shown {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(ReservationError::MayBeMined { nonce, why }),
            Err(error) => Err(ReservationError::MayBeMined {
                nonce,
                why: format!("whether its transaction may be mined is not known: {error}"),
            }),
        }
    }

    /// One call to the books, in the way of the mode.
    async fn run<T: Send + 'static>(
        &self,
        lane: LaneKey,
        call: impl Future<Output = Result<T, ReservationError>> + Send + 'static,
    ) -> Result<T, ReservationError> {
        match &self.inner.queue {
            None => call.await,
            Some(queue) => queue.run(lane, call).await,
        }
    }

    /// Lends, without regard to whether anybody still waits for it.
    async fn lend(&self, lane: LaneKey) -> Result<Reservation, ReservationError> {
        let at_least = self.inner.knowledge.at_least(lane).await?;
        let random = self.inner.clock.random().to_be_bytes();
        let borrow = Borrow {
            holder: Holder(uuid::Builder::from_random_bytes(random).into_uuid()),
            at_least,
            timeout: self.inner.settings.reservation_timeout,
        };
        let scheme = Arc::clone(&self.inner.scheme);
        let call = async move { scheme.allocate(lane, borrow).await };
        self.run(lane, call).await
    }
}

#[async_trait]
impl NonceReservations for NonceComponent {
    async fn allocate(&self, lane: LaneKey) -> Result<Reservation, ReservationError> {
        Self::allocate(self, lane).await
    }

    async fn mark(
        &self,
        lane: LaneKey,
        nonce: Nonce,
        holder: Holder,
        mark: Mark,
    ) -> Result<Reservation, ReservationError> {
        let what = match &mark {
            Mark::Submitted(_) => "submitted",
            Mark::Used(_) => "used",
            Mark::Recyclable { .. } => "recyclable",
        };
        let taken = self.take_mark(lane, nonce, holder, mark).await;
        let result = result_label(&taken);
        counter!("lanekeeper_nonce_mark_total", "mark" => what, "result" => result).increment(1);
        taken
    }

    async fn list_reservations(&self, lane: LaneKey) -> Result<LaneReservations, ReservationError> {
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

/// How a call ended, for the counters.
fn result_label<T>(result: &Result<T, ReservationError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(ReservationError::Refused(_)) => "refused",
        Err(ReservationError::MayBeMined { .. }) => "may_be_mined",
        Err(ReservationError::NotReservable(_)) => "not_lendable",
        Err(ReservationError::Busy) => "busy",
        Err(ReservationError::Unavailable(_)) => "unavailable",
        Err(ReservationError::Unknown(_)) => "unknown",
    }
}

/// A reason is for people; nobody reads more than this.
fn cut(mut reason: String) -> String {
    if let Some((end, _)) = reason.char_indices().nth(REASON_LEN_MAX) {
        reason.truncate(end);
    }
    reason.retain(|c| c != '\0'); // PostgreSQL's text cannot hold it
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_between_characters_and_fits_into_a_text() {
        assert_eq!(
            cut("ü".repeat(REASON_LEN_MAX + 7)),
            "ü".repeat(REASON_LEN_MAX)
        );
        assert_eq!(cut("short".into()), "short");
        assert_eq!(cut("a\0b".into()), "ab");
    }
}
