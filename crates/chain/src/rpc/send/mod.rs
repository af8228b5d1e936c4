//! Sends signed bytes to nodes, in order, and returns an outcome for each.
//!
//! Bytes that may have left this process and were not answered are [`SendOutcome::Unknown`]; bytes that certainly
//! did not leave are [`SendOutcome::Busy`].

mod deliver;
mod report;
mod strategy;
mod tally;

use std::iter;
use std::time::Duration;

use domain::SendOutcome;
use domain::attempt::OutgoingEnvelope;
use futures::future::join_all;
use tokio::time::Instant;

use super::endpoint::Endpoint;
use deliver::deliver;
use tally::Tally;

pub(super) use strategy::SendStrategy;

/// Sends to `send_to` endpoints concurrently, then the undecided envelopes to the other endpoints one by one. No
/// request starts later than `start_within` after the call: the lease was checked just before it, and slow
/// endpoints must not extend that check.
pub(super) async fn send(
    endpoints: &[&Endpoint],
    send_to: usize,
    outgoing: &[OutgoingEnvelope],
    start_within: Duration,
) -> Vec<SendOutcome> {
    let deadline = SendDeadline {
        began: Instant::now(),
        start_within,
    };
    let mut tallies = vec![Tally::default(); outgoing.len()];
    let (first, others) = endpoints.split_at(send_to.min(endpoints.len()));
    for wave in iter::once(first).chain(others.chunks(1)) {
        let undecided: Vec<usize> = (0..outgoing.len())
            .filter(|index| tallies[*index].is_undecided())
            .collect();
        if undecided.is_empty() || deadline.is_over() {
            break;
        }
        let items: Vec<&OutgoingEnvelope> =
            undecided.iter().map(|index| &outgoing[*index]).collect();
        let sending = wave.iter().map(|one| deliver(one, &items, deadline));
        for reports in join_all(sending).await {
            for (index, report) in undecided.iter().zip(reports) {
                tallies[*index].add_report(report);
            }
        }
    }
    let endpoints = endpoints.len();
    let result = tallies.into_iter().map(|tally| tally.outcome(endpoints));
    result.collect()
}

/// Until when requests may start.
#[derive(Clone, Copy)]
struct SendDeadline {
    began: Instant,
    start_within: Duration,
}

impl SendDeadline {
    fn is_over(self) -> bool {
        self.began.elapsed() > self.start_within
    }
}
