//! An allocation in progress. Its caller may disappear (an HTTP client that disconnects, an aborted task): then the
//! allocation still runs to its end, and its nonce is recycled at once. Otherwise the nonce would be blocked until
//! its expiry.

use std::pin::Pin;
use std::task::{Context, Poll};

use domain::{LaneKey, Mark, Reservation};
use futures::future::BoxFuture;
use metrics::counter;
use tokio::runtime::Handle;

use super::active_calls::ActiveCall;
use super::{NonceComponent, result_label};
use crate::Result;
use crate::scheme::ReservationKey;

/// The allocation as a future.
pub(super) struct PendingAllocation {
    component: NonceComponent,
    /// `None` once it has answered.
    in_flight: Option<InFlight>,
}

struct InFlight {
    future: BoxFuture<'static, Result<Reservation>>,
    /// A shutdown waits for it.
    active_call: ActiveCall,
}

impl PendingAllocation {
    pub(super) fn start(component: &NonceComponent, lane: LaneKey) -> Result<Self> {
        let owner = component.clone();
        let in_flight = InFlight {
            active_call: component.inner.active_calls.begin_allocation()?,
            future: Box::pin(async move { owner.reserve(lane).await }),
        };
        Ok(Self {
            component: component.clone(),
            in_flight: Some(in_flight),
        })
    }
}

impl Future for PendingAllocation {
    type Output = Result<Reservation>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let in_flight = self.in_flight.as_mut().expect("polled after completion");
        let answer = std::task::ready!(in_flight.future.as_mut().poll(context));
        self.in_flight = None;
        counter!("lanekeeper_nonce_allocate_total", "result" => result_label(&answer)).increment(1);
        Poll::Ready(answer)
    }
}

impl Drop for PendingAllocation {
    fn drop(&mut self) {
        let Some(InFlight {
            future,
            active_call,
        }) = self.in_flight.take()
        else {
            return;
        };
        // Without a runtime nothing can be finished: the nonce is recycled after its expiry.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let component = self.component.clone();
        runtime.spawn(async move {
            if let Ok(reservation) = future.await {
                let key = ReservationKey::from(&reservation);
                let mark = Mark::Recyclable {
                    reason: "the caller was cancelled during the allocation".into(),
                    asked: None,
                };
                let release = || component.mark_reservation(key, mark.clone());
                if let Err(error) = component.retry_mark(release).await {
                    let ReservationKey { lane, nonce, .. } = key;
                    tracing::warn!(%lane, %nonce, %error, "cannot recycle the nonce of a cancelled allocation: it is blocked until it expires");
                }
            }
            drop(active_call);
        });
    }
}
