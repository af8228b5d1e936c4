//! Sends signed bytes to nodes, in order, and returns an outcome for each.
//!
//! Bytes that may have left this process and were not answered are [`SendOutcome::Unknown`]; bytes that certainly
//! did not leave are [`SendOutcome::Busy`].

mod deliver;
mod report;
mod strategy;
mod tally;

use std::time::Duration;

use domain::attempt::OutgoingEnvelope;
use domain::{Address, SendOutcome};
use engine::ports::{SendTrust, send_share};
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, timeout_at};

use super::endpoint::Endpoint;
use super::limits::{SEND_TIME_MIN, WAVE_GRACE};
use deliver::deliver;
use tally::Tally;

pub(super) use strategy::SendStrategy;

/// The endpoints of a chain in the order in which they get envelopes: the first wave at once, then one after the other.
pub(super) struct Waves<'a> {
    endpoints: &'a [&'a Endpoint],
    first: usize,
}

impl<'a> Waves<'a> {
    pub(super) fn new(endpoints: &'a [&'a Endpoint], send_to: usize) -> Self {
        let first = send_to.min(endpoints.len());
        Self { endpoints, first }
    }

    /// Each wave, with the number of those after it.
    fn iter(&self) -> impl Iterator<Item = (&'a [&'a Endpoint], usize)> {
        let (first, others) = self.endpoints.split_at(self.first);
        let after = |index: usize| others.len().saturating_sub(index);
        let singles = others.chunks(1).enumerate();
        std::iter::once((first, others.len()))
            .chain(singles.map(move |(index, wave)| (wave, after(index.saturating_add(1)))))
    }
}

/// Sends to the first wave, then the undecided envelopes to the others one by one. The trust in the lease is read before
/// each wave; no request starts after its end, and no wave takes the time of those after it.
pub(super) async fn send(
    account: Address,
    outgoing: &[OutgoingEnvelope],
    waves: &Waves<'_>,
    trust: SendTrust<'_>,
) -> Vec<SendOutcome> {
    let mut tallies = vec![Tally::default(); outgoing.len()];
    for (wave, waves_after) in waves.iter() {
        let undecided: Vec<usize> = (0..outgoing.len())
            .filter(|index| tallies[*index].is_undecided())
            .collect();
        let left = trust();
        if undecided.is_empty() || left.is_zero() {
            break;
        }
        let deadline = SendDeadline::of_share(left, waves_after);
        let items: Vec<&OutgoingEnvelope> =
            undecided.iter().map(|index| &outgoing[*index]).collect();
        let mut sending: FuturesUnordered<_> = wave
            .iter()
            .map(|endpoint| deliver(endpoint, account, &items, deadline))
            .collect();
        let mut grace = None;
        while let Some(reports) = next_within(&mut sending, grace).await {
            for (index, report) in undecided.iter().zip(reports) {
                tallies[*index].add_report(report);
            }
            if !undecided.iter().any(|index| tallies[*index].is_undecided()) {
                // One endpoint has everything: the others of the wave need not be waited for.
                grace.get_or_insert_with(|| Instant::now() + WAVE_GRACE);
            }
        }
    }
    let endpoints = waves.endpoints.len();
    let result = tallies.into_iter().map(|tally| tally.outcome(endpoints));
    result.collect()
}

/// The reports of the next endpoint of a wave; `None` when all have reported, or the time is over.
async fn next_within<T>(
    sending: &mut (impl Stream<Item = T> + Unpin),
    until: Option<Instant>,
) -> Option<T> {
    match until {
        None => sending.next().await,
        Some(until) => timeout_at(until, sending.next()).await.ok().flatten(),
    }
}

/// Until when an endpoint may be sent to, and its answers are awaited.
#[derive(Clone, Copy)]
struct SendDeadline {
    until: Instant,
}

impl SendDeadline {
    /// For a wave after which so many others may have their turn.
    fn of_share(left: Duration, waves_after: usize) -> Self {
        let until = Instant::now() + send_share(left, waves_after);
        Self { until }
    }

    /// How long a send may wait until it starts, so that there is time for its answer.
    fn patience(self) -> Duration {
        let left = self.until.saturating_duration_since(Instant::now());
        left.saturating_sub(SEND_TIME_MIN)
    }

    /// Waits for an answer until the deadline; `None` after it.
    async fn wait_for<T>(self, answer: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.until, answer).await.ok()
    }
}
