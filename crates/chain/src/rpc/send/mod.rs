//! Handing signed bytes to nodes, in order, and saying of each what came of it.
//!
//! What may have left this process and was not answered is [`SendOutcome::Unknown`]; what
//! certainly did not leave is [`SendOutcome::Busy`].

mod deliver;
mod judge;
mod tally;
mod ways;

use std::iter;
use std::time::Duration;

use domain::SendOutcome;
use domain::attempt::OutgoingEnvelope;
use futures::future::join_all;
use tokio::time::Instant;

use super::endpoint::Endpoint;
use deliver::deliver;
use tally::Tally;

pub(super) use ways::Ways;

/// Sends everything: to `send_to` endpoints at once, and what is in doubt then to one more after
/// the other. No request starts later than `start_within` after the call: the right to send was
/// checked just before it and must not be stretched by slow endpoints.
pub(super) async fn send(
    endpoints: &[&Endpoint],
    send_to: usize,
    outgoing: &[OutgoingEnvelope],
    start_within: Duration,
) -> Vec<SendOutcome> {
    let allowance = Allowance {
        began: Instant::now(),
        start_within,
    };
    let mut tallies = vec![Tally::default(); outgoing.len()];
    let (first, others) = endpoints.split_at(send_to.min(endpoints.len()));
    for wave in iter::once(first).chain(others.chunks(1)) {
        let open: Vec<usize> = (0..outgoing.len())
            .filter(|index| tallies[*index].is_open())
            .collect();
        if open.is_empty() || allowance.is_used_up() {
            break;
        }
        let items: Vec<&OutgoingEnvelope> = open.iter().map(|index| &outgoing[*index]).collect();
        let sending = wave.iter().map(|one| deliver(one, &items, allowance));
        for answers in join_all(sending).await {
            for (index, answer) in open.iter().zip(answers) {
                tallies[*index].hear(answer);
            }
        }
    }
    let endpoints = endpoints.len();
    let result = tallies.into_iter().map(|tally| tally.outcome(endpoints));
    result.collect()
}

/// The time in which requests may start.
#[derive(Clone, Copy)]
struct Allowance {
    began: Instant,
    start_within: Duration,
}

impl Allowance {
    fn is_used_up(self) -> bool {
        self.began.elapsed() > self.start_within
    }
}
