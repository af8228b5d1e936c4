//! Bytes to several endpoints: first to as many as are asked for, then to more while there is doubt; and
//! what their answers mean together.

use domain::SendOutcome;
use domain::attempt::OutgoingEnvelope;
use futures::future::join_all;

use super::pool::ChainTx;
use super::remote::RemoteChain;
use crate::event::WorldEvent;
use crate::wire::NoAnswer;

impl RemoteChain {
    pub(super) async fn send_in_order(&self, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
        let order = self.order();
        let (at_once, on_doubt) = order.split_at(self.send_to.clamp(1, order.len()));
        let told = join_all(at_once.iter().map(|at| self.send_to_one(*at, outgoing))).await;
        let mut told = told.into_iter();
        let mut outcomes = told.next().expect("at least one endpoint is asked");
        for answers in told {
            outcomes = outcomes.into_iter().zip(answers).map(merge).collect();
        }
        for at in on_doubt {
            let open: Vec<usize> = (0..outgoing.len())
                .filter(|index| is_doubtful(&outcomes[*index]))
                .collect();
            if open.is_empty() {
                break;
            }
            let items: Vec<OutgoingEnvelope> =
                open.iter().map(|index| outgoing[*index].clone()).collect();
            let answers = self.send_to_one(*at, &items).await;
            for (index, answer) in open.into_iter().zip(answers) {
                outcomes[index] = merge((outcomes[index].clone(), answer));
            }
        }
        outcomes
    }

    /// Says who sends for which lane, before the first byte leaves.
    pub(super) fn tell_sending(&self, outgoing: &[OutgoingEnvelope]) {
        let first = outgoing.first();
        let (Some(node), Some(first)) = (&self.owner, first) else {
            return;
        };
        let Some(tx) = ChainTx::decode(&first.raw) else {
            return;
        };
        self.chain.tell(|| WorldEvent::Sending {
            lane: self.chain.lane(tx.envelope.signer),
            node: node.clone(),
            nonce: first.nonce,
        });
    }

    async fn send_to_one(&self, at: usize, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
        let (wire, moods) = (&self.wires[at], self.staleness());
        if wire.rng().permille(moods.busy) {
            return vec![SendOutcome::Busy("the node is syncing".to_owned()); outgoing.len()];
        }
        if wire.rng().permille(moods.refused) {
            let text = "the fee exceeds the configured cap".to_owned();
            return vec![SendOutcome::Refused(text); outgoing.len()];
        }
        let (chain, bytes) = (self.chain.clone(), outgoing.to_vec());
        let question = async move {
            let is_up = !chain.lock().endpoints[at].is_down;
            is_up.then(|| chain.receive(at, &bytes))
        };
        let outcome = match wire.call(question).await {
            Ok(Some(outcomes)) => return outcomes,
            Ok(None) | Err(NoAnswer::Refused) => SendOutcome::Busy("connection refused".to_owned()),
            Err(NoAnswer::Lost) => SendOutcome::Unknown("the answer was lost".to_owned()),
        };
        vec![outcome; outgoing.len()]
    }
}

/// Whether another endpoint should get the bytes too.
fn is_doubtful(outcome: &SendOutcome) -> bool {
    match outcome {
        SendOutcome::Unknown(_)
        | SendOutcome::Rejected(_)
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

/// What two endpoints' answers mean together: one that may have taken the bytes wins over all that
/// refused them, and no node can ever take them only when both say so.
fn merge((one, other): (SendOutcome, SendOutcome)) -> SendOutcome {
    use SendOutcome::{
        Accepted, Busy, ForeignPending, Full, NonceTooLow, NotSent, Refused, Rejected,
        ReplacementUnderpriced, Underfunded, Underpriced, Unknown,
    };
    match (one, other) {
        (Accepted, _) | (_, Accepted) => Accepted,
        (Unknown(text), _) | (_, Unknown(text)) => Unknown(text),
        (NonceTooLow, _) | (_, NonceTooLow) => NonceTooLow,
        (Rejected(text), Rejected(_)) => Rejected(text),
        (Rejected(text), Busy(_) | NotSent(_)) | (Busy(_) | NotSent(_), Rejected(text)) => {
            Refused(text)
        }
        (Rejected(_) | Busy(_) | NotSent(_), told) | (told, Rejected(_) | Busy(_) | NotSent(_)) => {
            told
        }
        (
            told @ (Underpriced(_)
            | ReplacementUnderpriced(_)
            | ForeignPending(_)
            | Underfunded(_)
            | Full { .. }
            | Refused(_)),
            _,
        ) => told,
    }
}
