//! A nonce for as long as a piece of business code runs, given back however that ends.

use std::any::Any;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::{B256, LaneKey, Mark, MonotonicTime, Reservation};
use engine::ports::{NonceReservations, ReservationError};
use futures::FutureExt;
use thiserror::Error;
use tokio::runtime::Handle;

use super::NonceComponent;
use super::life::Inside;
use super::loan::ReservationRules;
use crate::queue::nested;

/// How often the last word is tried before it is left to the sweep.
const LAST_WORD_TRIES: u32 = 3;
/// The pause between two tries.
const LAST_WORD_PAUSE: Duration = Duration::from_millis(100);

/// What became of a borrowed nonce, and what its business brings back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It is used, by this transaction.
    Used(B256, T),
    /// Nothing was sent: it is free, for this reason.
    Release(String, T),
    /// Not decided yet: the holder keeps it, and says so later by itself.
    Hold(T),
}

/// Why `with_nonce` brings nothing back.
#[derive(Debug, Error)]
pub enum WithNonceError<T, E> {
    /// No nonce was lent; the business did not run.
    #[error("no nonce was lent")]
    NotLent(#[source] ReservationError),
    /// The business failed. Its nonce is given back unless it was submitted.
    #[error("the business failed")]
    Business(E),
    /// The business came to its end, but what became of its nonce could not be written down. The sweep will ask
    /// the chain.
    #[error("what became of the nonce was not written down")]
    NotMarked {
        /// What the business brought back.
        value: T,
        /// Why not.
        #[source]
        cause: ReservationError,
    },
}

/// A borrowed nonce, in the hands of the business.
#[derive(Clone)]
pub struct Borrowed {
    component: NonceComponent,
    reservation: Reservation,
    /// Whether something may be out, from the moment before it is written down.
    is_submitted: Arc<AtomicBool>,
    trusted_until: MonotonicTime,
}

impl Borrowed {
    /// Writes down that this transaction is about to be sent. Call it before the bytes leave: whatever happens
    /// then, the nonce is not given to anybody else while the transaction may be mined. What is not announced
    /// counts as not sent.
    pub async fn submitted(&self, tx_hash: B256) -> Result<Reservation, ReservationError> {
        self.is_submitted.store(true, Ordering::SeqCst);
        let Reservation {
            lane,
            nonce,
            holder,
            ..
        } = self.reservation;
        let mark = Mark::Submitted(tx_hash);
        self.component.mark(lane, nonce, holder, mark).await
    }

    /// How much time is left to send without having announced it. Nothing may be sent when it is zero.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.trusted_until
            .since(self.component.inner.clock.monotonic())
    }

    /// Makes a future that will be spawned count as part of this business: what it calls runs in place. Without
    /// it, a nested `with_nonce` of the same lane waits for as long as a section may stand still.
    pub fn inside<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        nested(future)
    }
}

impl Deref for Borrowed {
    type Target = Reservation;

    fn deref(&self) -> &Reservation {
        &self.reservation
    }
}

impl NonceComponent {
    /// Borrows a nonce, runs the business with it, and writes down what became of it. When the business fails or
    /// panics, or when this future is dropped, the nonce is given back, unless something was submitted
    /// ([`Borrowed::submitted`]) or the chain shows that something was sent.
    ///
    /// In worker-queue mode, those of one lane run one after the other in this process, and are refused like
    /// calls when too many wait (basic mode: nobody waits for anybody). That order is a courtesy that never waits
    /// for ever; nonces stay unique without it:
    /// - a section that is not polled for the patience ([`QueueSettings::section_patience`], 2 s), or whose business
    ///   does not come back from one await for as long (an RPC call that takes 3 s), loses its turn: the next one
    ///   begins beside it;
    /// - one that is nested takes no turn of its own, in whatever lane, and runs beside whoever has it there.
    ///
    /// [`QueueSettings::section_patience`]: crate::QueueSettings::section_patience
    pub async fn with_nonce<T, E, Fut>(
        &self,
        lane: LaneKey,
        business: impl FnOnce(Borrowed) -> Fut,
    ) -> Result<T, WithNonceError<T, E>>
    where
        Fut: Future<Output = Result<Outcome<T>, E>>,
    {
        let inside = self.inner.life.enter().map_err(WithNonceError::NotLent)?;
        // Boxed, so that whoever nests these does not carry them all in one future.
        let section = Box::pin(self.section(lane, inside, business));
        match &self.inner.queue {
            None => section.await,
            Some(queue) => {
                let turn = queue.turn(lane).await.map_err(WithNonceError::NotLent)?;
                turn.during(section).await
            }
        }
    }

    async fn section<T, E, Fut>(
        &self,
        lane: LaneKey,
        inside: Inside,
        business: impl FnOnce(Borrowed) -> Fut,
    ) -> Result<T, WithNonceError<T, E>>
    where
        Fut: Future<Output = Result<Outcome<T>, E>>,
    {
        let asked_at = self.inner.clock.monotonic();
        let reservations = ReservationRules::start(self, lane).map_err(WithNonceError::NotLent)?;
        let reservation = reservations.await.map_err(WithNonceError::NotLent)?;
        let borrowed = Borrowed {
            component: self.clone(),
            reservation,
            is_submitted: Arc::default(),
            trusted_until: asked_at.plus(self.inner.settings.reservation_timeout),
        };
        let mut last_word = LastWord {
            borrowed: borrowed.clone(),
            unsaid: Some((Word::Nothing("its business was cancelled"), inside)),
        };
        // In an async block, so that a panic of the closure itself is caught like one of its future.
        let business = async { business(borrowed).await };
        let ended = nested(AssertUnwindSafe(business).catch_unwind()).await;
        let (mark, value) = match ended {
            Ok(Ok(Outcome::Used(tx_hash, value))) => (Mark::Used(tx_hash), value),
            Ok(Ok(Outcome::Release(reason, value))) => {
                // What the chain must be asked about is found when it is said.
                let asked = None;
                (Mark::Recyclable { reason, asked }, value)
            }
            Ok(Ok(Outcome::Hold(value))) => {
                last_word.unsaid = None;
                return Ok(value);
            }
            Ok(Err(error)) => {
                last_word.say_nothing("its business failed").await;
                return Err(WithNonceError::Business(error));
            }
            Err(panic) => {
                last_word.say_nothing(&why_it_panicked(&*panic)).await;
                resume_unwind(panic);
            }
        };
        match last_word.say(mark).await {
            Ok(_) => Ok(value),
            Err(cause) => Err(WithNonceError::NotMarked { value, cause }),
        }
    }

    /// Says the last word of a business, more than once if need be.
    async fn say(&self, borrowed: &Borrowed, mark: &Mark) -> Result<Reservation, ReservationError> {
        let Reservation {
            lane,
            nonce,
            holder,
            ..
        } = borrowed.reservation;
        self.repeat(|| self.mark(lane, nonce, holder, mark.clone()))
            .await
    }

    /// Says what must be said although nobody may be there to say it again.
    pub(super) async fn repeat<Fut>(
        &self,
        mut call: impl FnMut() -> Fut,
    ) -> Result<Reservation, ReservationError>
    where
        Fut: Future<Output = Result<Reservation, ReservationError>>,
    {
        let mut tries = 1;
        loop {
            // In place, past the queue: what was sent must be told, also when the queue is full.
            let said = nested(call()).await;
            let may_help = |error: &ReservationError| match error {
                ReservationError::Busy
                | ReservationError::Unavailable(_)
                | ReservationError::Unknown(_) => true,
                ReservationError::Refused(_)
                | ReservationError::MayBeMined { .. }
                | ReservationError::NotReservable(_) => false,
            };
            match said {
                Err(error) if tries < LAST_WORD_TRIES && may_help(&error) => {
                    tries += 1;
                    self.inner.clock.sleep(LAST_WORD_PAUSE).await;
                }
                said => return said,
            }
        }
    }

    /// A business ended without a word. Unless it announced a transaction, its nonce is free if the chain shows
    /// nothing of it; else its time-out decides.
    async fn give_back_unsaid(&self, borrowed: &Borrowed, why: &str) {
        if borrowed.is_submitted.load(Ordering::SeqCst) {
            return;
        }
        let Reservation {
            lane,
            nonce,
            holder,
            ..
        } = borrowed.reservation;
        // Written as it was asked: whatever is announced from here on keeps the nonce.
        let free = Mark::Recyclable {
            reason: why.to_owned(),
            asked: None,
        };
        let freed = match self.ask_whether_unused(lane, nonce, None).await {
            Ok(()) => {
                self.repeat(|| self.write_mark(lane, nonce, holder, free.clone()))
                    .await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = freed {
            tracing::warn!(%lane, %nonce, %error, why, "a nonce was not given back: its time-out decides");
        }
    }
}

/// What is said of a nonce in the end: also when nobody is there any more to say it.
struct LastWord {
    borrowed: Borrowed,
    /// `None` once it is said. A shutdown waits for it.
    unsaid: Option<(Word, Inside)>,
}

enum Word {
    /// The business said nothing; why.
    Nothing(&'static str),
    /// What it said.
    Said(Mark),
}

impl LastWord {
    async fn say(&mut self, mark: Mark) -> Result<Reservation, ReservationError> {
        // Should this future be dropped meanwhile, a task says it.
        if let Some((word, _)) = &mut self.unsaid {
            *word = Word::Said(mark.clone());
        }
        let said = self.borrowed.component.say(&self.borrowed, &mark).await;
        self.unsaid = None;
        said
    }

    async fn say_nothing(&mut self, why: &str) {
        let component = &self.borrowed.component;
        component.give_back_unsaid(&self.borrowed, why).await;
        self.unsaid = None;
    }
}

impl Drop for LastWord {
    fn drop(&mut self) {
        let Some((word, inside)) = self.unsaid.take() else {
            return;
        };
        // Without a runtime nothing can be said: the nonce comes back when its time is over.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let borrowed = self.borrowed.clone();
        runtime.spawn(async move {
            let component = &borrowed.component;
            match word {
                Word::Nothing(why) => component.give_back_unsaid(&borrowed, why).await,
                Word::Said(mark) => {
                    if let Err(error) = component.say(&borrowed, &mark).await {
                        let Reservation { lane, nonce, .. } = borrowed.reservation;
                        tracing::warn!(%lane, %nonce, %error, "the last word on a nonce was lost");
                    }
                }
            }
            drop(inside);
        });
    }
}

fn why_it_panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("its business panicked: {}", text.unwrap_or("(no message)"))
}
