//! From an endpoint's deliveries to send reports. If an error may be caused by a tx that the node already has, the
//! node is queried for the lane's own txs.

use std::collections::BTreeSet;

use domain::attempt::OutgoingEnvelope;
use domain::lane::ChainQuery;
use domain::{Address, B256, Nonce, SendOutcome};
use serde_json::{Value, json};

use super::SendDeadline;
use super::deliver::{Delivery, error_kind, unanswered};
use super::tally::SendReport;
use crate::classify::NodeErrorKind;
use crate::rpc::answers::KnownTx;
use crate::rpc::endpoint::Endpoint;
use crate::rpc::failure::Failure;
use crate::rpc::read;
use crate::rpc::wire::NodeError;

/// The reports, in the order of the envelopes.
pub(super) async fn build_reports(
    endpoint: &Endpoint,
    account: Address,
    items: &[&OutgoingEnvelope],
    deliveries: Vec<Delivery>,
    deadline: SendDeadline,
) -> Vec<SendReport> {
    let mut outcomes = Vec::with_capacity(items.len());
    let mut ambiguous = Vec::new();
    for (item, delivery) in items.iter().zip(deliveries) {
        let about = error_kind(&delivery).and_then(Ambiguity::from_kind);
        ambiguous.extend(about.map(|ambiguity| (outcomes.len(), *item, ambiguity)));
        outcomes.push(delivery_outcome(endpoint, item, delivery));
    }
    if !ambiguous.is_empty() {
        let pool = deadline.wait_for(query_pool(endpoint, account, &ambiguous));
        let pool = pool.await.unwrap_or_else(|| Err(unanswered()));
        for (index, item, ambiguity) in ambiguous {
            let outcome = outcomes[index].clone();
            outcomes[index] = match &pool {
                Ok(pool) => ambiguity.decide_with_pool(outcome, item, pool),
                Err(failure) => ambiguity.decide_without_pool(outcome, failure),
            };
        }
    }
    outcomes.into_iter().map(SendReport::Outcome).collect()
}

fn delivery_outcome(
    endpoint: &Endpoint,
    item: &OutgoingEnvelope,
    delivery: Delivery,
) -> SendOutcome {
    let (from, hash) = (endpoint.name(), item.hash);
    match delivery {
        Delivery::NotStarted => SendOutcome::Busy(with_endpoint_name(
            endpoint,
            "not sent, because an earlier envelope failed or there was no time left",
        )),
        Delivery::Unanswered => SendOutcome::Unknown(with_endpoint_name(
            endpoint,
            "its answer lacks this envelope",
        )),
        Delivery::Hung => failure_outcome(endpoint, &unanswered()),
        Delivery::Failed(failure) => failure_outcome(endpoint, &failure),
        Delivery::Answer(Ok(answer)) => {
            if serde_json::from_str(answer.get()).ok() == Some(hash) {
                return SendOutcome::Accepted;
            }
            tracing::warn!(endpoint = from, %hash, "the node returned another tx hash than the signed one");
            SendOutcome::Unknown(with_endpoint_name(endpoint, "it returned another tx hash"))
        }
        Delivery::Answer(Err(error)) => {
            if error.kind() == NodeErrorKind::Unknown {
                let NodeError { code, message, .. } = &error;
                tracing::warn!(endpoint = from, %hash, code, message, "this error text is not in the table of node errors; the send outcome is unknown");
            }
            error.as_rpc_error().send_outcome()
        }
    }
}

/// The tx that may have caused an error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ambiguity {
    /// This tx itself may have consumed the nonce; hardhat and ganache return the execution's error.
    SameBytes,
    /// A tx with its nonce is in the pool: this one, another of the lane, or a foreign one.
    Replacement,
    /// The fee is too low for the pool; some nodes also return this for an underpriced replacement.
    LowFee,
}

impl Ambiguity {
    fn from_kind(kind: NodeErrorKind) -> Option<Self> {
        match kind {
            NodeErrorKind::NonceTooLow
            | NodeErrorKind::ExecutionFailed
            | NodeErrorKind::Unknown => Some(Self::SameBytes),
            NodeErrorKind::ReplacementUnderpriced => Some(Self::Replacement),
            NodeErrorKind::BelowPoolMinimum | NodeErrorKind::BelowBaseFee => Some(Self::LowFee),
            NodeErrorKind::AlreadyKnown
            | NodeErrorKind::PoolFull
            | NodeErrorKind::AccountLimit
            | NodeErrorKind::NonceTooHigh
            | NodeErrorKind::Delegated
            | NodeErrorKind::TypeConflict
            | NodeErrorKind::InsufficientFunds
            | NodeErrorKind::GasTooLow
            | NodeErrorKind::GasTooHigh
            | NodeErrorKind::InvalidEncoding
            | NodeErrorKind::InvalidSender
            | NodeErrorKind::NodePolicy
            | NodeErrorKind::NotReady
            | NodeErrorKind::RateLimited
            | NodeErrorKind::ForwardFailed => None,
        }
    }

    fn decide_with_pool(
        self,
        outcome: SendOutcome,
        item: &OutgoingEnvelope,
        pool: &PoolContents,
    ) -> SendOutcome {
        if pool.own_hashes.contains(&item.hash) {
            return SendOutcome::Accepted;
        }
        let text = outcome_text(&outcome);
        let has_other = item
            .others
            .iter()
            .any(|hash| pool.own_hashes.contains(hash));
        match self {
            Self::SameBytes => outcome,
            Self::Replacement | Self::LowFee if has_other => {
                SendOutcome::ReplacementUnderpriced(text)
            }
            Self::Replacement => SendOutcome::ForeignPending(text),
            Self::LowFee if item.nonce < pool.used_below => SendOutcome::ForeignPending(text),
            Self::LowFee => outcome,
        }
    }

    /// The fee must not be raised against an unknown tx, so the outcome is unknown.
    fn decide_without_pool(self, outcome: SendOutcome, failure: &Failure) -> SendOutcome {
        match self {
            Self::SameBytes => outcome,
            Self::Replacement | Self::LowFee => {
                let text = outcome_text(&outcome);
                SendOutcome::Unknown(format!("{text}; the pool could not be queried: {failure}"))
            }
        }
    }
}

/// The lane's txs that the node has.
struct PoolContents {
    own_hashes: BTreeSet<B256>,
    /// A mined or pending tx uses every nonce of the account below this one.
    used_below: Nonce,
}

async fn query_pool(
    endpoint: &Endpoint,
    account: Address,
    ambiguous: &[(usize, &OutgoingEnvelope, Ambiguity)],
) -> Result<PoolContents, Failure> {
    let hashes: BTreeSet<B256> = ambiguous
        .iter()
        .flat_map(|(_, item, ambiguity)| {
            let others = match ambiguity {
                Ambiguity::SameBytes => &[],
                Ambiguity::Replacement | Ambiguity::LowFee => item.others.as_slice(),
            };
            others.iter().copied().chain([item.hash])
        })
        .collect();
    let calls: Vec<Value> = hashes.iter().map(|hash| json!([hash])).collect();
    let found: Vec<Option<KnownTx>> = endpoint
        .call_many("eth_getTransactionByHash", &calls)
        .await?;
    let own_hashes: BTreeSet<B256> = found.into_iter().flatten().map(|tx| tx.hash).collect();
    let needs_nonces = ambiguous.iter().any(|(_, item, ambiguity)| {
        *ambiguity == Ambiguity::LowFee && !own_hashes.contains(&item.hash)
    });
    let used_below = if needs_nonces {
        let nonces = read::account_nonces(endpoint, account, ChainQuery::Pending).await?;
        nonces.pending
    } else {
        Nonce(0)
    };
    Ok(PoolContents {
        own_hashes,
        used_below,
    })
}

fn outcome_text(outcome: &SendOutcome) -> String {
    match outcome {
        SendOutcome::Underpriced(text)
        | SendOutcome::ReplacementUnderpriced(text)
        | SendOutcome::ForeignPending(text)
        | SendOutcome::Underfunded(text)
        | SendOutcome::Full { text, .. }
        | SendOutcome::Busy(text)
        | SendOutcome::Refused(text)
        | SendOutcome::Rejected(text)
        | SendOutcome::GasTooLow(text)
        | SendOutcome::Unknown(text) => text.clone(),
        SendOutcome::Accepted | SendOutcome::NonceTooLow | SendOutcome::NotSent(_) => String::new(),
    }
}

/// The outcome of an envelope whose request failed.
pub(super) fn failure_outcome(endpoint: &Endpoint, failure: &Failure) -> SendOutcome {
    let text = with_endpoint_name(endpoint, &failure.to_string());
    if failure.had_no_effect() {
        SendOutcome::Busy(text)
    } else {
        SendOutcome::Unknown(text)
    }
}

/// Puts the endpoint's name before a text.
pub(super) fn with_endpoint_name(endpoint: &Endpoint, text: &str) -> String {
    format!("{}: {text}", endpoint.name())
}
