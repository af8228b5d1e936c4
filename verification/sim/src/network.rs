//! The network between a node and the services that it calls: requests and answers take time and get lost.
//!
//! A request that was sent stays in the network: it arrives even when its sender is frozen or crashes
//! meanwhile. That is how a commit succeeds whose answer is lost.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::oneshot;

use crate::rng::Rng;

/// Fault rates of a link, per thousand calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFaults {
    /// The maximum delay of each direction, in milliseconds.
    pub travel_ms_max: u64,
    /// The service is unreachable, and the caller knows it at once.
    pub refused: u64,
    /// The request never arrives.
    pub request_lost: u64,
    /// The request arrives and its answer does not.
    pub response_lost: u64,
    /// The caller gets "outcome unknown"; the request arrives afterwards.
    pub late: u64,
    /// A direction takes a hundred times as long.
    pub slow: u64,
    /// A requested row is locked by another client. (Links to a store only.)
    pub locked: u64,
    /// Nothing arrives at all; the caller knows it only sometimes.
    pub cut: bool,
}

impl LinkFaults {
    /// No delay and no loss.
    pub const NONE: Self = Self {
        travel_ms_max: 0,
        refused: 0,
        request_lost: 0,
        response_lost: 0,
        late: 0,
        slow: 0,
        locked: 0,
        cut: false,
    };

    /// No loss.
    #[must_use]
    pub const fn healthy(travel_ms_max: u64) -> Self {
        Self {
            travel_ms_max,
            ..Self::NONE
        }
    }
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The request certainly did not arrive.
    Refused,
    /// The outcome of the request is unknown.
    Lost,
}

/// The link of one node to one service. Clones are the same link.
#[derive(Clone, Debug)]
pub struct Link {
    rng: Rng,
    faults: Arc<Mutex<LinkFaults>>,
    has_failed: Arc<AtomicBool>,
}

/// The timeout of a caller whose answer is lost.
const TIMEOUT_MS: (u64, u64) = (200, 2_000);
/// How much later a late request arrives: possibly long after its sender's lease expired.
const LATE_MS: (u64, u64) = (0, 15_000);
/// How much longer a slow direction takes.
const SLOWNESS: u64 = 100;

enum Delivery {
    Answered,
    Refused,
    RequestLost,
    ResponseLost,
    Late,
}

impl Link {
    /// A link whose randomness comes from `rng`.
    #[must_use]
    pub fn new(rng: Rng, faults: LinkFaults) -> Self {
        Self {
            rng,
            faults: Arc::new(Mutex::new(faults)),
            has_failed: Arc::default(),
        }
    }

    /// Whether a call over it had no answer.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Changes the fault rates, from the next call on.
    pub fn set_faults(&self, faults: LinkFaults) {
        *self.lock() = faults;
    }

    /// Cuts the link, or restores it.
    pub fn cut(&self, is_cut: bool) {
        self.lock().cut = is_cut;
    }

    /// The present fault rates.
    #[must_use]
    pub fn faults(&self) -> LinkFaults {
        *self.lock()
    }

    /// The random stream of this link, for further draws about the same calls.
    #[must_use]
    pub fn rng(&self) -> &Rng {
        &self.rng
    }

    /// Executes `request` over the link.
    pub async fn call<T: Send + 'static>(
        &self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let (there, back) = (self.one_way_delay(), self.one_way_delay());
        let late = self.rng.millis(LATE_MS.0, LATE_MS.1);
        let (delivery, timeout) = (
            self.draw_delivery(),
            self.rng.millis(TIMEOUT_MS.0, TIMEOUT_MS.1),
        );
        let (answers, answer) = oneshot::channel();
        let delivered = async move {
            tokio::time::sleep(there).await;
            let response = match delivery {
                Delivery::Answered => {
                    let response = request.await;
                    tokio::time::sleep(back).await;
                    Ok(response)
                }
                Delivery::Refused => Err(NoAnswer::Refused),
                Delivery::RequestLost => {
                    tokio::time::sleep(timeout).await;
                    Err(NoAnswer::Lost)
                }
                Delivery::ResponseLost => {
                    drop(request.await);
                    tokio::time::sleep(timeout).await;
                    Err(NoAnswer::Lost)
                }
                Delivery::Late => {
                    // The caller may be gone; then the answer is not needed.
                    answers.send(Err(NoAnswer::Lost)).ok();
                    tokio::time::sleep(late).await;
                    drop(request.await);
                    return;
                }
            };
            // The caller may be gone; then the answer is not needed.
            answers.send(response).ok();
        };
        // Not in the caller's task group: the request lives in the network, so the handle is detached. Boxed, so that
        // the runtime's code for a task is compiled once and not for every kind of call.
        drop(tokio::spawn(delivered.boxed()));
        // The task of the link ends only with the world.
        answer.await.unwrap_or(Err(NoAnswer::Lost))
    }

    fn one_way_delay(&self) -> Duration {
        let LinkFaults {
            travel_ms_max,
            slow,
            ..
        } = self.faults();
        let delay_ms = self.rng.between(0, travel_ms_max);
        Duration::from_millis(if self.rng.permille(slow) {
            delay_ms * SLOWNESS
        } else {
            delay_ms
        })
    }

    fn draw_delivery(&self) -> Delivery {
        let faults = self.faults();
        if faults.cut {
            return if self.rng.permille(500) {
                Delivery::Refused
            } else {
                Delivery::RequestLost
            };
        }
        let mut draw = self.rng.below(1_000);
        let deliveries = [
            (faults.refused, Delivery::Refused),
            (faults.request_lost, Delivery::RequestLost),
            (faults.response_lost, Delivery::ResponseLost),
            (faults.late, Delivery::Late),
        ];
        for (chance, delivery) in deliveries {
            if draw < chance {
                self.has_failed.store(true, Ordering::Relaxed);
                return delivery;
            }
            draw -= chance;
        }
        Delivery::Answered
    }

    fn lock(&self) -> MutexGuard<'_, LinkFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use engine::tasks::Tasks;

    use super::*;

    fn counted(count: &Arc<AtomicU64>) -> impl Future<Output = u64> + Send + 'static {
        let count = Arc::clone(count);
        async move { count.fetch_add(1, Ordering::SeqCst) + 1 }
    }

    fn certain(change: impl FnOnce(&mut LinkFaults)) -> Link {
        let mut faults = LinkFaults::healthy(5);
        change(&mut faults);
        Link::new(Rng::new(3), faults)
    }

    #[tokio::test(start_paused = true)]
    async fn each_delivery_fault_acts_as_documented() {
        let count = Arc::new(AtomicU64::new(0));
        let seen = || count.load(Ordering::SeqCst);
        assert_eq!(certain(|_| {}).call(counted(&count)).await, Ok(1));
        let refused = certain(|faults| faults.refused = 1_000);
        assert_eq!(
            (refused.call(counted(&count)).await, seen()),
            (Err(NoAnswer::Refused), 1)
        );
        let lost = certain(|faults| faults.request_lost = 1_000);
        assert_eq!(
            (lost.call(counted(&count)).await, seen()),
            (Err(NoAnswer::Lost), 1)
        );
        let response_lost = certain(|faults| faults.response_lost = 1_000);
        assert_eq!(
            (response_lost.call(counted(&count)).await, seen()),
            (Err(NoAnswer::Lost), 2)
        );
        let late = certain(|faults| faults.late = 1_000);
        assert_eq!(
            (late.call(counted(&count)).await, seen()),
            (Err(NoAnswer::Lost), 2)
        );
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(seen(), 3, "it arrives after all");
        let cut = certain(|_| {});
        cut.cut(true);
        assert!(cut.call(counted(&count)).await.is_err());
        assert_eq!(seen(), 3);
        cut.cut(false);
        assert_eq!(cut.call(counted(&count)).await, Ok(4));
    }

    #[tokio::test(start_paused = true)]
    async fn request_of_a_crashed_node_still_arrives() {
        let count = Arc::new(AtomicU64::new(0));
        let link = certain(|faults| faults.travel_ms_max = 50);
        let (tasks, request) = (Tasks::new(), counted(&count));
        tasks.spawn("sender", async move {
            link.call(request).await.ok();
        });
        tokio::task::yield_now().await;
        tasks.kill();
        tasks.ended().await;
        assert_eq!(count.load(Ordering::SeqCst), 0);
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
