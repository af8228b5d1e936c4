//! Sends transactions to several endpoints: first to the configured number, then to more while the outcome is
//! doubtful; and merges their answers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::attempt::OutgoingEnvelope;
use domain::{Address, SendOutcome};
use engine::ports::{SendTrust, send_share};
use futures::future::join_all;

use super::endpoint::Method;
use super::remote::RemoteChain;
use crate::event::WorldEvent;
use crate::network::NoAnswer;
use crate::world::Feature;

impl RemoteChain {
    pub(super) async fn send_in_order(
        &self,
        outgoing: &[OutgoingEnvelope],
        trust: SendTrust<'_>,
    ) -> Vec<SendOutcome> {
        let order = self.endpoint_order();
        let send_to = match outgoing.iter().any(|envelope| envelope.to_all) {
            true => order.len(),
            false => self.send_to,
        };
        let (at_once, on_doubt) = order.split_at(send_to.clamp(1, order.len()));
        let share = send_share(trust(), on_doubt.len());
        let sending = at_once
            .iter()
            .map(|at| self.send_to_one(*at, outgoing, share));
        let outcome = join_all(sending).await;
        let mut outcome = outcome.into_iter();
        let mut outcomes = outcome.next().expect("at least one endpoint is called");
        for answers in outcome {
            outcomes = outcomes.into_iter().zip(answers).map(merge).collect();
        }
        for (index, at) in on_doubt.iter().enumerate() {
            let open: Vec<usize> = (0..outgoing.len())
                .filter(|index| needs_more_endpoints(&outcomes[*index]))
                .collect();
            if open.is_empty() {
                break;
            }
            if trust().is_zero() {
                // The others were not asked, so nothing is rejected by all.
                return outcomes.into_iter().map(without_verdict).collect();
            }
            let items: Vec<OutgoingEnvelope> =
                open.iter().map(|index| outgoing[*index].clone()).collect();
            let share = send_share(trust(), on_doubt.len() - index - 1);
            let answers = self.send_to_one(*at, &items, share).await;
            for (index, answer) in open.into_iter().zip(answers) {
                outcomes[index] = merge((outcomes[index].clone(), answer));
            }
        }
        outcomes
    }

    /// Records which node sends what for which lane, before the first transaction leaves.
    pub(super) fn record_sending(&self, account: Address, outgoing: &[OutgoingEnvelope]) {
        let Some(node) = &self.owner else {
            return;
        };
        self.chain.record(|| WorldEvent::Sending {
            lane: self.chain.lane(account),
            node: node.clone(),
            nonces: outgoing.iter().map(|envelope| envelope.nonce).collect(),
        });
    }

    async fn send_to_one(
        &self,
        at: usize,
        outgoing: &[OutgoingEnvelope],
        share: Duration,
    ) -> Vec<SendOutcome> {
        let (link, moods) = (&self.links[at], self.staleness());
        let is_method_hung = self.chain.lock().endpoints[at].hung_method == Some(Method::Sends);
        let hangs = is_method_hung
            || self.chain.lock().endpoints[at].hangs_on_sends
            || self.hangs_on_sends.load(Ordering::SeqCst);
        if is_method_hung {
            self.chain.fire(Feature::HungMethods);
        }
        if hangs {
            tokio::time::sleep(share).await;
            return hung_outcomes(outgoing.len());
        }
        if link.rng().permille(moods.busy) {
            return vec![SendOutcome::Busy("the node is syncing".to_owned()); outgoing.len()];
        }
        if link.rng().permille(moods.refused) {
            let text = "the fee exceeds the configured cap".to_owned();
            return vec![SendOutcome::Refused(text); outgoing.len()];
        }
        let (chain, bytes) = (self.chain.clone(), outgoing.to_vec());
        let query = async move {
            let is_up = !chain.lock().endpoints[at].is_down;
            is_up.then(|| chain.receive(at, &bytes))
        };
        let outcome = match link.call(query).await {
            Ok(Some(outcomes)) => return outcomes,
            Ok(None) | Err(NoAnswer::Refused) => SendOutcome::Busy("connection refused".to_owned()),
            Err(NoAnswer::Lost) => SendOutcome::Unknown("the answer was lost".to_owned()),
        };
        vec![outcome; outgoing.len()]
    }
}

/// Of envelopes that are sent one at a time to an endpoint that hangs: only the first one leaves.
fn hung_outcomes(count: usize) -> Vec<SendOutcome> {
    let first = "no answer before the deadline of the send".to_owned();
    let others = "not sent, because an earlier envelope got no answer".to_owned();
    let mut outcomes = vec![SendOutcome::Busy(others); count];
    if let Some(outcome) = outcomes.first_mut() {
        *outcome = SendOutcome::Unknown(first);
    }
    outcomes
}

/// Whether another endpoint should get the transaction too.
fn needs_more_endpoints(outcome: &SendOutcome) -> bool {
    match outcome {
        SendOutcome::Unknown(_)
        | SendOutcome::Rejected(_)
        | SendOutcome::GasTooLow(_)
        | SendOutcome::Refused(_)
        | SendOutcome::Full { .. }
        | SendOutcome::Busy(_) => true,
        SendOutcome::Accepted
        | SendOutcome::NonceTooLow
        | SendOutcome::Underpriced(_)
        | SendOutcome::ReplacementUnderpriced(_)
        | SendOutcome::ForeignPending(_)
        | SendOutcome::Underfunded(_)
        | SendOutcome::NotSent(_) => false,
    }
}

/// A rejection that other endpoints have not repeated.
fn without_verdict(outcome: SendOutcome) -> SendOutcome {
    match outcome {
        SendOutcome::Rejected(text) | SendOutcome::GasTooLow(text) => SendOutcome::Refused(text),
        outcome @ (SendOutcome::Accepted
        | SendOutcome::NonceTooLow
        | SendOutcome::Underpriced(_)
        | SendOutcome::ReplacementUnderpriced(_)
        | SendOutcome::ForeignPending(_)
        | SendOutcome::Underfunded(_)
        | SendOutcome::Full { .. }
        | SendOutcome::Busy(_)
        | SendOutcome::Refused(_)
        | SendOutcome::Unknown(_)
        | SendOutcome::NotSent(_)) => outcome,
    }
}

/// Merges the answers of two endpoints: a possible acceptance wins over all refusals, and the transaction
/// is rejected for good only when both reject it.
fn merge((one, other): (SendOutcome, SendOutcome)) -> SendOutcome {
    use SendOutcome::{
        Accepted, Busy, ForeignPending, Full, GasTooLow, NonceTooLow, NotSent, Refused, Rejected,
        ReplacementUnderpriced, Underfunded, Underpriced, Unknown,
    };
    match (one, other) {
        (Accepted, _) | (_, Accepted) => Accepted,
        (Unknown(text), _) | (_, Unknown(text)) => Unknown(text),
        (NonceTooLow, _) | (_, NonceTooLow) => NonceTooLow,
        (GasTooLow(text), GasTooLow(_)) => GasTooLow(text),
        (Rejected(text), Rejected(_) | GasTooLow(_)) | (GasTooLow(_), Rejected(text)) => {
            Rejected(text)
        }
        (Rejected(text) | GasTooLow(text), Busy(_) | NotSent(_))
        | (Busy(_) | NotSent(_), Rejected(text) | GasTooLow(text)) => Refused(text),
        (Rejected(_) | GasTooLow(_) | Busy(_) | NotSent(_), outcome)
        | (outcome, Rejected(_) | GasTooLow(_) | Busy(_) | NotSent(_)) => outcome,
        (
            outcome @ (Underpriced(_)
            | ReplacementUnderpriced(_)
            | ForeignPending(_)
            | Underfunded(_)
            | Full { .. }
            | Refused(_)),
            _,
        ) => outcome,
    }
}
