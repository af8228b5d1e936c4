//! A lane: its keeper, its nonces, and what it waits for.

use domain::Timestamp;
use serde::Serialize;

use crate::encoding::{ChecksumAddress, Rfc3339Time};
use engine::node::LaneStatus;

/// A lane in the public JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lane<'a> {
    chain_id: u64,
    signer: ChecksumAddress,
    keeper: Option<KeeperView<'a>>,
    next_nonce: u64,
    chain_nonce: Option<ChainNonceView>,
    in_flight: u64,
    queued: u64,
    gaps: Vec<u64>,
    paused: bool,
    waiting_for: Option<&'a str>,
}

impl<'a> Lane<'a> {
    /// The lane at `now`: a lease that has expired by then is not shown as a keeper.
    #[must_use]
    pub fn new(lane: &'a LaneStatus, now: Timestamp) -> Self {
        let record = &lane.record;
        let lease = record.lease.as_ref().filter(|lease| lease.expires_at > now);
        Self {
            chain_id: record.key.chain_id.0,
            signer: ChecksumAddress(record.key.signer),
            keeper: lease.map(|lease| KeeperView {
                node: &lease.owner.0,
                token: lease.token.0,
                expires_at: Rfc3339Time(lease.expires_at),
            }),
            next_nonce: record.next_nonce.0,
            chain_nonce: lane.chain_nonces.map(|nonces| ChainNonceView {
                latest: nonces.latest.0,
                pending: nonces.pending.0,
            }),
            in_flight: record.in_flight,
            queued: record.queued,
            gaps: lane.gaps.iter().map(|nonce| nonce.0).collect(),
            paused: record.paused,
            waiting_for: lane.waiting_for.as_deref(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct KeeperView<'a> {
    node: &'a str,
    token: u64,
    expires_at: Rfc3339Time,
}

/// The account's nonces as the chain last reported them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ChainNonceView {
    latest: u64,
    pending: u64,
}
