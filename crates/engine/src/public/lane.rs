//! A lane: who keeps it, where it stands, and why it does not move.

use domain::lane::AccountNonces;
use domain::lease::Lease;
use domain::{Nonce, Timestamp};
use serde::{Serialize, Serializer};

use super::form::{Account, At};
use crate::node::LaneStatus;

/// A lane as customers see it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lane<'a> {
    chain_id: u64,
    signer: Account,
    keeper: Option<Keeper<'a>>,
    next_nonce: u64,
    chain_nonce: Option<ChainNonce>,
    in_flight: u64,
    queued: u64,
    gaps: Gaps<'a>,
    paused: bool,
    waiting_for: Option<&'a str>,
}

impl<'a> Lane<'a> {
    /// The lane at `now`: a lease that has run out by then is nobody's.
    #[must_use]
    pub fn new(lane: &'a LaneStatus, now: Timestamp) -> Self {
        let record = &lane.record;
        let lease = record.lease.as_ref().filter(|lease| lease.expires_at > now);
        Self {
            chain_id: record.key.chain_id.0,
            signer: Account(record.key.signer),
            keeper: lease.map(Keeper::from),
            next_nonce: record.next_nonce.0,
            chain_nonce: lane.chain_nonces.map(ChainNonce::from),
            in_flight: record.in_flight,
            queued: record.queued,
            gaps: Gaps(&lane.gaps),
            paused: record.paused,
            waiting_for: lane.waiting_for.as_ref().map(|waiting| waiting.0.as_str()),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Keeper<'a> {
    node: &'a str,
    token: u64,
    expires_at: At,
}

impl<'a> From<&'a Lease> for Keeper<'a> {
    fn from(lease: &'a Lease) -> Self {
        Self {
            node: &lease.owner.0,
            token: lease.token.0,
            expires_at: At(lease.expires_at),
        }
    }
}

/// The account's nonces as the chain last told them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ChainNonce {
    latest: u64,
    pending: u64,
}

impl From<AccountNonces> for ChainNonce {
    fn from(nonces: AccountNonces) -> Self {
        Self {
            latest: nonces.latest.0,
            pending: nonces.pending.0,
        }
    }
}

struct Gaps<'a>(&'a [Nonce]);

impl Serialize for Gaps<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|nonce| nonce.0))
    }
}
