//! `with_nonce`: a nonce for the duration of a closure, with a mark recorded however the closure ends.

use std::any::Any;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::{B256, LaneKey, Mark, MonotonicTime, Reservation};
use engine::ports::ReservationError;
use futures::FutureExt;
use thiserror::Error;
use tokio::runtime::Handle;

use super::NonceComponent;
use super::active_calls::ActiveCall;
use super::pending_allocation::PendingAllocation;
use crate::Result;
use crate::queue::run_nested;
use crate::scheme::ReservationKey;

/// How often the final mark is tried before it is left to the sweep.
const FINAL_MARK_TRIES: u32 = 3;
/// Pause between two tries.
const FINAL_MARK_PAUSE: Duration = Duration::from_millis(100);

/// What the closure did with its nonce, and its return value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// This transaction uses the nonce.
    Used(B256, T),
    /// Nothing was sent: the nonce is recycled with this reason.
    Release(String, T),
    /// Undecided: the holder keeps the nonce and marks it later.
    Hold(T),
}

/// Why `with_nonce` failed.
#[derive(Debug, Error)]
pub enum WithNonceError<T, E> {
    /// No nonce was reserved; the closure did not run.
    #[error("no nonce was reserved")]
    NotReserved(#[source] ReservationError),
    /// The closure failed. Its nonce is recycled unless a transaction was submitted.
    #[error("the closure failed")]
    Closure(E),
    /// The closure ended, but the mark on its nonce was not recorded. The sweep decides by the chain.
    #[error("the mark on the nonce was not recorded")]
    NotMarked {
        /// The closure's return value.
        value: T,
        /// Why the mark was not recorded.
        #[source]
        cause: ReservationError,
    },
}

/// A reserved nonce, passed to the closure of [`NonceComponent::with_nonce`].
#[derive(Clone)]
pub struct HeldNonce {
    component: NonceComponent,
    reservation: Reservation,
    /// Whether a transaction may have been sent; set before the mark is recorded.
    is_submitted: Arc<AtomicBool>,
    trusted_until: MonotonicTime,
}

impl HeldNonce {
    /// Records that this transaction is about to be sent. Call it before the bytes leave: from then on the nonce
    /// is not reserved for another holder while the transaction may be mined. A transaction that is not announced
    /// counts as not sent.
    pub async fn submitted(&self, tx_hash: B256) -> Result<Reservation> {
        self.is_submitted.store(true, Ordering::SeqCst);
        let mark = Mark::Submitted(tx_hash);
        self.component.mark_reservation(self.key(), mark).await
    }

    /// Time left to send without having announced it. When it is zero, nothing may be sent.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.trusted_until
            .since(self.component.inner.clock.monotonic())
    }

    /// Marks a future that will be spawned as nested in this section: its calls run in place. Without it, a nested
    /// `with_nonce` of the same lane waits for the section idle timeout.
    pub fn nest<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        run_nested(future)
    }

    fn key(&self) -> ReservationKey {
        ReservationKey::from(&self.reservation)
    }
}

impl Deref for HeldNonce {
    type Target = Reservation;

    fn deref(&self) -> &Reservation {
        &self.reservation
    }
}

impl NonceComponent {
    /// Reserves a nonce, runs the closure with it and records the closure's outcome. When the closure fails or
    /// panics, or when this future is dropped, the nonce is recycled, unless a transaction was submitted
    /// ([`HeldNonce::submitted`]) or the chain shows one.
    ///
    /// In worker-queue mode the sections of one lane run one after the other in this process, and are refused like
    /// calls when too many wait (in basic mode sections never wait). The order is best effort and never blocks
    /// forever; nonces stay unique without it:
    /// - a section that is not polled for the idle timeout ([`QueueSettings::section_idle_timeout`], 2 s), for example
    ///   because one RPC call takes 3 s, loses its exclusivity: the next one starts beside it;
    /// - a nested section does not queue, in whichever lane, and runs beside the section that is active there.
    ///
    /// [`QueueSettings::section_idle_timeout`]: crate::QueueSettings::section_idle_timeout
    pub async fn with_nonce<T, E, Fut>(
        &self,
        lane: LaneKey,
        closure: impl FnOnce(HeldNonce) -> Fut,
    ) -> Result<T, WithNonceError<T, E>>
    where
        Fut: Future<Output = Result<Outcome<T>, E>>,
    {
        let active_call = self
            .inner
            .active_calls
            .begin_allocation()
            .map_err(WithNonceError::NotReserved)?;
        // Boxed, so that nested sections do not add up to one large future.
        let section = Box::pin(self.section(lane, active_call, closure));
        match &self.inner.queue {
            None => section.await,
            Some(queue) => {
                let permit = queue
                    .enter_section(lane)
                    .await
                    .map_err(WithNonceError::NotReserved)?;
                permit.run_section(section).await
            }
        }
    }

    async fn section<T, E, Fut>(
        &self,
        lane: LaneKey,
        active_call: ActiveCall,
        closure: impl FnOnce(HeldNonce) -> Fut,
    ) -> Result<T, WithNonceError<T, E>>
    where
        Fut: Future<Output = Result<Outcome<T>, E>>,
    {
        let requested_at = self.inner.clock.monotonic();
        let allocation =
            PendingAllocation::start(self, lane).map_err(WithNonceError::NotReserved)?;
        let reservation = allocation.await.map_err(WithNonceError::NotReserved)?;
        let held = HeldNonce {
            component: self.clone(),
            reservation,
            is_submitted: Arc::default(),
            trusted_until: requested_at.plus(self.inner.settings.reservation_timeout),
        };
        let mut final_mark = FinalMarkGuard {
            held: held.clone(),
            pending: Some((PendingMark::Release("the call was cancelled"), active_call)),
        };
        // In an async block, so that a panic of the closure itself is caught like one of its future.
        let closure = async { closure(held).await };
        let ended = run_nested(AssertUnwindSafe(closure).catch_unwind()).await;
        let (mark, value) = match ended {
            Ok(Ok(Outcome::Used(tx_hash, value))) => (Mark::Used(tx_hash), value),
            Ok(Ok(Outcome::Release(reason, value))) => {
                // The hash to check on the chain is read when the mark is recorded.
                let asked = None;
                (Mark::Recyclable { reason, asked }, value)
            }
            Ok(Ok(Outcome::Hold(value))) => {
                final_mark.pending = None;
                return Ok(value);
            }
            Ok(Err(error)) => {
                final_mark.release("the closure failed").await;
                return Err(WithNonceError::Closure(error));
            }
            Err(panic) => {
                final_mark.release(&panic_reason(&*panic)).await;
                resume_unwind(panic);
            }
        };
        match final_mark.record(mark).await {
            Ok(_) => Ok(value),
            Err(cause) => Err(WithNonceError::NotMarked { value, cause }),
        }
    }

    /// Records the final mark of a section, with retries.
    async fn record(&self, held: &HeldNonce, mark: &Mark) -> Result<Reservation> {
        self.retry_mark(|| self.mark_reservation(held.key(), mark.clone()))
            .await
    }

    /// Retries a mark that may have no caller left to repeat it.
    pub(super) async fn retry_mark<Fut>(&self, mut call: impl FnMut() -> Fut) -> Result<Reservation>
    where
        Fut: Future<Output = Result<Reservation>>,
    {
        let mut tries = 1;
        loop {
            // In place, past the queue: a submission must be recorded even when the queue is full.
            let outcome = run_nested(call()).await;
            let may_help = |error: &ReservationError| match error {
                ReservationError::Busy
                | ReservationError::Unavailable(_)
                | ReservationError::Unknown(_) => true,
                ReservationError::Refused(_)
                | ReservationError::MayBeMined { .. }
                | ReservationError::UnknownChain(_)
                | ReservationError::UnknownSigner(..)
                | ReservationError::NotReservable(_) => false,
            };
            match outcome {
                Err(error) if tries < FINAL_MARK_TRIES && may_help(&error) => {
                    tries += 1;
                    self.inner.clock.sleep(FINAL_MARK_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Recycles the nonce of a closure that ended without an outcome. If it announced a transaction, or the chain
    /// shows one, the nonce stays reserved until its expiry.
    async fn release_unmarked(&self, held: &HeldNonce, why: &str) {
        if held.is_submitted.load(Ordering::SeqCst) {
            return;
        }
        // Recorded with the hash that was checked (none): a hash that is announced from here on keeps the nonce.
        let free = Mark::Recyclable {
            reason: why.to_owned(),
            asked: None,
        };
        let key = held.key();
        let outcome = match self.require_no_chain_evidence(key, None).await {
            Ok(()) => {
                self.retry_mark(|| self.record_mark(key, free.clone()))
                    .await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            let ReservationKey { lane, nonce, .. } = key;
            tracing::warn!(%lane, %nonce, %error, why, "the nonce of a failed section is not recycled before its expiry");
        }
    }
}

/// Records the final mark of a section, also when its future is dropped.
struct FinalMarkGuard {
    held: HeldNonce,
    /// `None` once the mark is recorded. A shutdown waits for it.
    pending: Option<(PendingMark, ActiveCall)>,
}

enum PendingMark {
    /// The closure returned no outcome; why.
    Release(&'static str),
    /// The mark of the closure's outcome.
    Mark(Mark),
}

impl FinalMarkGuard {
    async fn record(&mut self, mark: Mark) -> Result<Reservation> {
        // If this future is dropped from here on, a task records the mark.
        if let Some((pending_mark, _)) = &mut self.pending {
            *pending_mark = PendingMark::Mark(mark.clone());
        }
        let outcome = self.held.component.record(&self.held, &mark).await;
        self.pending = None;
        outcome
    }

    async fn release(&mut self, why: &str) {
        let component = &self.held.component;
        component.release_unmarked(&self.held, why).await;
        self.pending = None;
    }
}

impl Drop for FinalMarkGuard {
    fn drop(&mut self) {
        let Some((pending_mark, active_call)) = self.pending.take() else {
            return;
        };
        // Without a runtime nothing can be recorded: the nonce is recycled after its expiry.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let held = self.held.clone();
        runtime.spawn(async move {
            let component = &held.component;
            match pending_mark {
                PendingMark::Release(why) => component.release_unmarked(&held, why).await,
                PendingMark::Mark(mark) => {
                    if let Err(error) = component.record(&held, &mark).await {
                        let Reservation { lane, nonce, .. } = held.reservation;
                        tracing::warn!(%lane, %nonce, %error, "the final mark of a section was not recorded");
                    }
                }
            }
            drop(active_call);
        });
    }
}

fn panic_reason(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the closure panicked: {}", text.unwrap_or("(no message)"))
}
