//! A loan that is being made. Whoever asked for it may vanish meanwhile (an HTTP client that hangs up, a task
//! that is aborted): then it is made to the end all the same, and given back at once. Otherwise the nonce would
//! be lent to nobody until its time is over.

use std::pin::Pin;
use std::task::{Context, Poll};

use domain::{LaneKey, Mark, Reservation};
use engine::ports::{NonceReservations, ReservationError};
use futures::future::BoxFuture;
use metrics::counter;
use tokio::runtime::Handle;

use super::life::Inside;
use super::{NonceComponent, result_label};

/// The loan under way.
pub(super) struct ReservationRules {
    component: NonceComponent,
    lane: LaneKey,
    /// `None` once it has answered.
    under_way: Option<UnderWay>,
}

struct UnderWay {
    future: BoxFuture<'static, Result<Reservation, ReservationError>>,
    /// A shutdown waits for it.
    inside: Inside,
}

impl ReservationRules {
    pub(super) fn start(
        component: &NonceComponent,
        lane: LaneKey,
    ) -> Result<Self, ReservationError> {
        let lender = component.clone();
        let under_way = UnderWay {
            inside: component.inner.life.enter()?,
            future: Box::pin(async move { lender.lend(lane).await }),
        };
        Ok(Self {
            component: component.clone(),
            lane,
            under_way: Some(under_way),
        })
    }
}

impl Future for ReservationRules {
    type Output = Result<Reservation, ReservationError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let under_way = self.under_way.as_mut().expect("polled after its end");
        let answer = std::task::ready!(under_way.future.as_mut().poll(context));
        self.under_way = None;
        counter!("lanekeeper_nonce_allocate_total", "result" => result_label(&answer)).increment(1);
        Poll::Ready(answer)
    }
}

impl Drop for ReservationRules {
    fn drop(&mut self) {
        let Some(UnderWay { future, inside }) = self.under_way.take() else {
            return;
        };
        // Without a runtime nothing can be finished: the nonce comes back when its time is over.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let (component, lane) = (self.component.clone(), self.lane);
        runtime.spawn(async move {
            if let Ok(Reservation { nonce, holder, .. }) = future.await {
                let mark = Mark::Recyclable {
                    reason: "its caller went away before it was lent".into(),
                    asked: None,
                };
                let give_back = || component.mark(lane, nonce, holder, mark.clone());
                if let Err(error) = component.repeat(give_back).await {
                    tracing::warn!(%lane, %nonce, %error, "a nonce without a holder waits for its time-out");
                }
            }
            drop(inside);
        });
    }
}
