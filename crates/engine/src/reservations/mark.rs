//! Marks: a holder reports what became of its nonce.

use std::time::Duration;

use domain::lane::reservations::{MarkOutcome, reservation_request_id};
use domain::{Mark, MarkRefusal, Reservation, ReservationState};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::{MarkError, MarkRequest, PendingMark, find_reservation, reservation_rules};
use crate::cluster::Peer;
use crate::core::{Core, lock};
use crate::node::{NodeHandle, NonKeeper};
use crate::ports::{PeerError, ReservationError};
use crate::routing::{self, Route};
use crate::shard::Message;

/// How long a mark is retried while its lane is opened or taken over.
const MARK_PATIENCE: Duration = Duration::from_secs(10);
/// How long another node may take.
const PEER_PATIENCE: Duration = Duration::from_secs(3);
/// The delay before a mark is retried.
const RETRY_DELAY: Duration = Duration::from_millis(25);
/// For how long the hashes of marks are looked up after a mark failed.
const CHECK_HASHES_AFTER_FAILURE: Duration = Duration::from_secs(10);

impl NodeHandle {
    /// Applies a holder's mark, at the node that keeps the lane. Durable when this returns `Ok`.
    pub fn mark(&self, call: MarkRequest) -> BoxFuture<'_, Result<Reservation, ReservationError>> {
        async move {
            reservation_rules(&self.core, call.lane)?;
            let clock = &self.core.ports.clock;
            let deadline = clock.monotonic().plus(MARK_PATIENCE);
            loop {
                refuse_known_hash(&self.core, &call).await?;
                // To the keeper, also where requests are queued.
                let answer = match routing::choose_keeper_route(&self.core, call.lane) {
                    Route::Local => mark_locally(&self.core, &call).await,
                    Route::Peer(peer) if self.core.config.non_keeper == NonKeeper::Reject => {
                        let why = format!("node {} keeps this lane", peer.node);
                        return Err(ReservationError::Unavailable(why));
                    }
                    Route::Peer(peer) => mark_at_peer(&self.core, &call, &peer).await,
                    Route::Unavailable => Err(MarkError::Unavailable),
                };
                if matches!(answer, Err(MarkError::Unavailable)) {
                    // Its hash may be the cause, or that of another mark in its lane's commit.
                    let until = clock.monotonic().plus(CHECK_HASHES_AFTER_FAILURE);
                    *lock(&self.core.lanes.check_mark_hashes_until) = Some(until);
                }
                match answer {
                    Ok(reservation) => return Ok(reservation),
                    Err(MarkError::Refused(why)) => return Err(why),
                    Err(MarkError::Unavailable | MarkError::NotKeeper(_))
                        if clock.monotonic() >= deadline =>
                    {
                        let why = "no node applied the mark in time; repeat it".to_owned();
                        return Err(ReservationError::Unknown(why));
                    }
                    Err(MarkError::Unavailable | MarkError::NotKeeper(_)) => {
                        clock.sleep(RETRY_DELAY).await
                    }
                }
            }
        }
        .boxed()
    }

    /// Applies a mark that another node forwarded; it is not forwarded again.
    pub fn mark_forwarded<'a>(
        &'a self,
        call: &'a MarkRequest,
    ) -> BoxFuture<'a, Result<Reservation, MarkError>> {
        async move {
            reservation_rules(&self.core, call.lane)?;
            mark_locally(&self.core, call).await
        }
        .boxed()
    }
}

/// Forwards a mark to another node.
async fn mark_at_peer(
    core: &Core,
    call: &MarkRequest,
    peer: &Peer,
) -> Result<Reservation, MarkError> {
    let peers = &core.ports.peers;
    let answer = peers.mark(&peer.address, call, PEER_PATIENCE).await;
    let now = core.ports.clock.monotonic();
    match answer {
        Ok(Err(MarkError::NotKeeper(keeper))) => {
            let until = now.plus(core.config.lease.renew_interval);
            core.routes.record_keeper(call.lane, keeper, until);
            Err(MarkError::Unavailable)
        }
        Ok(answer) => answer,
        Err(PeerError::NotReached(_) | PeerError::Lost(_)) => {
            core.routes.forget_keeper(call.lane);
            core.cluster.mark_suspect(&peer.node, now);
            Err(MarkError::Unavailable)
        }
    }
}

/// Refuses a hash that is an attempt of another tx. In the lane it would make the commit conflict, and the lane would
/// be read again with every repeat.
///
/// As long as no mark failed for a while the lookup is left out: the store itself refuses a hash twice, and the usual
/// mark costs no read. A wrong hash costs one conflict, and none while it is repeated.
async fn refuse_known_hash(core: &Core, call: &MarkRequest) -> Result<(), ReservationError> {
    let hash = match &call.mark {
        Mark::Submitted(hash) | Mark::Used(hash) => *hash,
        Mark::Recyclable { .. } => return Ok(()),
    };
    let until = *lock(&core.lanes.check_mark_hashes_until);
    if until.is_none_or(|until| core.ports.clock.monotonic() >= until) {
        return Ok(());
    }
    let Some(record) = core.ports.store.tx_by_hash(hash).await? else {
        return Ok(());
    };
    let attempt = record.attempts.iter().find(|attempt| attempt.hash == hash);
    let nonce = attempt.map(|attempt| attempt.nonce).or(record.tx.nonce);
    let is_here = record.lane == call.lane && nonce == Some(call.nonce);
    let is_same_holder = record.tx.request.request_id == reservation_request_id(call.holder);
    // The lane itself knows the holder of an open reservation.
    if is_here && (is_same_holder || record.tx.is_open()) {
        return Ok(());
    }
    let nonce = nonce.unwrap_or(call.nonce);
    Err(MarkRefusal::HashElsewhere { hash, nonce }.into())
}

/// Applies a mark through this node's own shard.
async fn mark_locally(core: &Core, call: &MarkRequest) -> Result<Reservation, MarkError> {
    let (answer, answered) = oneshot::channel();
    let pending = PendingMark {
        call: call.clone(),
        answer,
    };
    core.send_to_shard(call.lane, Message::Mark(pending)).await;
    match answered.await {
        Ok(MarkOutcome::Taken(reservation)) => Ok(reservation),
        Ok(MarkOutcome::Refused(why)) => Err(MarkError::Refused(why.into())),
        Ok(MarkOutcome::NotOpen { is_free }) => answer_by_row(core, call, is_free).await,
        Err(_not_durable) => {
            let now = core.ports.clock.monotonic();
            let keeper = core.routes.known_keeper(call.lane, now);
            let other = keeper.filter(|keeper| *keeper != core.config.name);
            Err(other.map_or(MarkError::Unavailable, MarkError::NotKeeper))
        }
    }
}

/// The lane has no open reservation for the nonce: the holder's row decides, and nothing changes any more.
async fn answer_by_row(
    core: &Core,
    call: &MarkRequest,
    is_free: bool,
) -> Result<Reservation, MarkError> {
    let not_holder = || MarkError::Refused(MarkRefusal::NotHolder(call.nonce).into());
    let found = find_reservation(core, call.lane, call.holder, call.nonce).await?;
    let (mut reservation, tx) = found.ok_or_else(not_holder)?;
    if tx.is_open() {
        return Err(MarkError::Unavailable); // the lane is being read
    }
    if reservation.state == ReservationState::Recyclable && !is_free {
        return Err(not_holder()); // another holder had it since
    }
    let marked = reservation.mark(call.holder, &call.mark);
    marked.map_err(|refused| MarkError::Refused(refused.into()))?;
    Ok(reservation)
}
