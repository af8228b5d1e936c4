//! What an endpoint's answers to envelopes mean. Where a complaint may be about a transaction that
//! the node has already, it is asked which of ours it has.

use std::collections::BTreeSet;

use alloy_consensus::TxEnvelope;
use alloy_consensus::transaction::SignerRecoverable;
use alloy_eips::eip2718::Decodable2718;
use domain::attempt::OutgoingEnvelope;
use domain::lane::ChainQuery;
use domain::{Address, B256, Nonce, SendOutcome};
use serde_json::{Value, json};

use super::deliver::{Told, meaning};
use super::tally::Heard;
use crate::classify::Meaning;
use crate::rpc::answers::KnownTx;
use crate::rpc::endpoint::Endpoint;
use crate::rpc::failure::Failure;
use crate::rpc::read;
use crate::rpc::wire::NodeError;

/// The outcomes, in order.
pub(super) async fn judged(
    endpoint: &Endpoint,
    items: &[&OutgoingEnvelope],
    told: Vec<Told>,
) -> Vec<Heard> {
    let mut outcomes = Vec::with_capacity(items.len());
    let mut doubts = Vec::new();
    for (item, told) in items.iter().zip(told) {
        let about = meaning(&told).and_then(Doubt::of);
        doubts.extend(about.map(|doubt| (outcomes.len(), *item, doubt)));
        outcomes.push(judge(endpoint, item, told));
    }
    if !doubts.is_empty() {
        let pool = look(endpoint, &doubts).await;
        for (index, item, doubt) in doubts {
            let outcome = outcomes[index].clone();
            outcomes[index] = match &pool {
                Ok(pool) => doubt.resolved(outcome, item, pool),
                Err(failure) => doubt.unresolved(outcome, failure),
            };
        }
    }
    outcomes.into_iter().map(Heard::Outcome).collect()
}

fn judge(endpoint: &Endpoint, item: &OutgoingEnvelope, told: Told) -> SendOutcome {
    let (from, hash) = (endpoint.name(), item.hash);
    match told {
        Told::NotStarted => {
            SendOutcome::Busy(named(endpoint, "not sent after what goes before it"))
        }
        Told::LeftOut => SendOutcome::Unknown(named(endpoint, "it left this one out")),
        Told::Failed(failure) => failed(endpoint, &failure),
        Told::Answer(Ok(answer)) => {
            if serde_json::from_str(answer.get()).ok() == Some(hash) {
                return SendOutcome::Accepted;
            }
            tracing::warn!(endpoint = from, %hash, "a node named another hash than ours");
            SendOutcome::Unknown(named(endpoint, "it answered with another hash"))
        }
        Told::Answer(Err(error)) => {
            if error.complaint().meaning() == Meaning::Unknown {
                let NodeError { code, message, .. } = &error;
                tracing::warn!(endpoint = from, %hash, code, message, "not in the table of node errors");
            }
            error.complaint().send_outcome()
        }
    }
}

/// Which transaction a complaint may be about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// A used nonce may be used by this very one; hardhat and ganache tell how it ran.
    SameBytes,
    /// Something is in the pool at its nonce: this one, another of ours, or a foreign one.
    Replacement,
    /// The fee is too low for the pool; some say so too where it is too low for another's place.
    LowFee,
}

impl Doubt {
    fn of(meaning: Meaning) -> Option<Self> {
        match meaning {
            Meaning::NonceUsed | Meaning::Executed | Meaning::Unknown => Some(Self::SameBytes),
            Meaning::ReplacementTooCheap => Some(Self::Replacement),
            Meaning::BelowMinimum | Meaning::BelowBaseFee => Some(Self::LowFee),
            Meaning::Known
            | Meaning::PoolFull
            | Meaning::AccountLimit
            | Meaning::TooFarAhead
            | Meaning::Delegated
            | Meaning::TypeConflict
            | Meaning::Funds
            | Meaning::Gas
            | Meaning::Shape
            | Meaning::Identity
            | Meaning::NodePolicy
            | Meaning::NotReady
            | Meaning::Throttled
            | Meaning::Forwarded => None,
        }
    }

    fn resolved(self, outcome: SendOutcome, item: &OutgoingEnvelope, pool: &Pool) -> SendOutcome {
        if pool.ours.contains(&item.hash) {
            return SendOutcome::Accepted;
        }
        let text = text_of(&outcome);
        let has_other = item.others.iter().any(|hash| pool.ours.contains(hash));
        match self {
            Self::SameBytes => outcome,
            Self::Replacement | Self::LowFee if has_other => {
                SendOutcome::ReplacementUnderpriced(text)
            }
            Self::Replacement => SendOutcome::ForeignPending(text),
            Self::LowFee if item.nonce < pool.taken_below => SendOutcome::ForeignPending(text),
            Self::LowFee => outcome,
        }
    }

    /// A fee must not be raised against a transaction of which nothing is known.
    fn unresolved(self, outcome: SendOutcome, failure: &Failure) -> SendOutcome {
        match self {
            Self::SameBytes => outcome,
            Self::Replacement | Self::LowFee => {
                let text = text_of(&outcome);
                SendOutcome::Unknown(format!("{text}; what is there is not known: {failure}"))
            }
        }
    }
}

/// What a node has of ours.
struct Pool {
    ours: BTreeSet<B256>,
    /// Every nonce of the account below this is taken, by whomever.
    taken_below: Nonce,
}

async fn look(
    endpoint: &Endpoint,
    doubts: &[(usize, &OutgoingEnvelope, Doubt)],
) -> Result<Pool, Failure> {
    let hashes: BTreeSet<B256> = doubts
        .iter()
        .flat_map(|(_, item, doubt)| {
            let others = match doubt {
                Doubt::SameBytes => &[],
                Doubt::Replacement | Doubt::LowFee => item.others.as_slice(),
            };
            others.iter().copied().chain([item.hash])
        })
        .collect();
    let calls: Vec<Value> = hashes.iter().map(|hash| json!([hash])).collect();
    let found: Vec<Option<KnownTx>> = endpoint
        .call_many("eth_getTransactionByHash", &calls)
        .await?;
    let ours: BTreeSet<B256> = found.into_iter().flatten().map(|tx| tx.hash).collect();
    // All of them are of one account.
    let sender = doubts
        .iter()
        .filter(|(_, item, doubt)| *doubt == Doubt::LowFee && !ours.contains(&item.hash))
        .find_map(|(_, item, _)| sender(item));
    let taken_below = match sender {
        Some(account) => {
            let nonces = read::account_nonces(endpoint, account, ChainQuery::Pending).await?;
            nonces.pending
        }
        None => Nonce(0),
    };
    Ok(Pool { ours, taken_below })
}

/// The account that signed.
fn sender(item: &OutgoingEnvelope) -> Option<Address> {
    let envelope = TxEnvelope::decode_2718(&mut item.raw.as_ref()).ok()?;
    envelope.recover_signer().ok()
}

fn text_of(outcome: &SendOutcome) -> String {
    match outcome {
        SendOutcome::Underpriced(text)
        | SendOutcome::ReplacementUnderpriced(text)
        | SendOutcome::ForeignPending(text)
        | SendOutcome::Underfunded(text)
        | SendOutcome::Full { text, .. }
        | SendOutcome::Busy(text)
        | SendOutcome::Refused(text)
        | SendOutcome::Rejected(text)
        | SendOutcome::Unknown(text) => text.clone(),
        SendOutcome::Accepted | SendOutcome::NonceTooLow | SendOutcome::NotSent(_) => String::new(),
    }
}

/// What is known of an envelope whose request failed.
pub(super) fn failed(endpoint: &Endpoint, failure: &Failure) -> SendOutcome {
    let text = named(endpoint, &failure.to_string());
    if failure.had_no_effect() {
        SendOutcome::Busy(text)
    } else {
        SendOutcome::Unknown(text)
    }
}

/// A text with the name of the endpoint that it is about.
pub(super) fn named(endpoint: &Endpoint, text: &str) -> String {
    format!("{}: {text}", endpoint.name())
}
