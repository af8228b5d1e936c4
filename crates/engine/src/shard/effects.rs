//! Effects of a lane, dispatched once its writes are durable. Answers come back as inputs with its epoch.

use std::sync::Arc;

use domain::{Effect, Input, LaneId, LaneKey, LeaseGrant, Nonce, TxId};

use super::Shard;
use super::chain_queries::{fetch_headers, fetch_receipts, find_consumer, query_chain_nonces};
use super::signing::sign_remotely;
use crate::core::Core;
use crate::draft::LaneDraft;
use crate::ports::StoreError;

impl Shard {
    /// Dispatches the effects of a draft, and the signatures that a remote key makes.
    pub(crate) fn dispatch_effects(&self, draft: &mut LaneDraft) {
        let (key, epoch) = (draft.lane.key(), draft.epoch);
        let lease_grant = draft.lane.lease_grant();
        let id = lease_grant.lane;
        let watched = &self.core.chain(key.chain_id).watched;
        let mut outgoing = Vec::new();
        let mut unwatched = Vec::new();
        for effect in std::mem::take(&mut draft.effects) {
            match effect {
                Effect::Send(bytes) => outgoing.push(bytes),
                Effect::Watch(hash) => watched.add(key, std::iter::once(hash)),
                Effect::Unwatch(hash) => unwatched.push(hash),
                Effect::LoadBacklog { from, limit } => {
                    self.spawn_effect(move |core| load_backlog(core, key, epoch, id, from, limit));
                }
                Effect::LoadQueued { limit } => {
                    self.spawn_effect(move |core| load_queued(core, key, epoch, id, limit));
                }
                Effect::LoadFinals(ids) => {
                    self.spawn_effect(move |core| load_finals(core, key, epoch, ids));
                }
                Effect::QueryChainNonces { twice, taken } => {
                    self.spawn_effect(move |core| {
                        query_chain_nonces(core, key, epoch, twice, taken)
                    });
                }
                Effect::FindConsumer {
                    nonce,
                    up_to,
                    hashes,
                } => {
                    self.spawn_effect(move |core| {
                        find_consumer(core, key, epoch, nonce, up_to, hashes)
                    });
                }
                Effect::MarkReconciled => {
                    self.spawn_effect(move |core| mark_reconciled(core, key, lease_grant));
                }
                Effect::FetchHeaders(heights) => {
                    self.spawn_effect(move |core| fetch_headers(core, key, epoch, heights));
                }
                Effect::FetchReceipts(hashes) => {
                    self.spawn_effect(move |core| fetch_receipts(core, key, epoch, hashes));
                }
            }
        }
        let to_sign = std::mem::take(&mut draft.to_sign);
        if !to_sign.is_empty() {
            self.spawn_effect(move |core| sign_remotely(core, key, epoch, to_sign));
        }
        if !outgoing.is_empty() {
            // A hash is watched before its bytes leave; other attempts at its nonce may be mined too.
            let hashes = outgoing.iter();
            let hashes = hashes.flat_map(|bytes| bytes.others.iter().copied().chain([bytes.hash]));
            watched.add(key, hashes);
            crate::broadcaster::enqueue_envelopes(&self.core, key, epoch, outgoing);
        }
        // After the sends: a hash that was sent and ended in one turn needs no watching.
        for hash in unwatched {
            watched.remove(hash);
        }
    }

    fn spawn_effect<F>(&self, effect: impl FnOnce(Arc<Core>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let effect = effect(Arc::clone(&self.core));
        self.core.tasks.spawn("effect", effect);
    }
}

async fn load_backlog(
    core: Arc<Core>,
    lane: LaneKey,
    epoch: u64,
    id: LaneId,
    from: Nonce,
    limit: u64,
) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut tries = 0;
    let txs = loop {
        match core.ports.store.load_backlog(id, from, limit).await {
            Ok(txs) => break txs,
            Err(error) => back_off_after(&core, &mut tries, lane, &error).await,
        }
    };
    let more = txs.len() >= limit;
    core.send_inputs(lane, epoch, vec![Input::Backlog { txs, more }])
        .await;
}

async fn load_queued(core: Arc<Core>, lane: LaneKey, epoch: u64, id: LaneId, limit: u64) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut tries = 0;
    let txs = loop {
        match core.ports.store.load_queued(id, limit).await {
            Ok(txs) => break txs,
            Err(error) => back_off_after(&core, &mut tries, lane, &error).await,
        }
    };
    let more = txs.len() >= limit;
    core.send_inputs(lane, epoch, vec![Input::Queued { txs, more }])
        .await;
}

async fn load_finals(core: Arc<Core>, lane: LaneKey, epoch: u64, ids: Vec<TxId>) {
    let mut finals = Vec::with_capacity(ids.len());
    let mut tries = 0;
    for id in ids {
        let record = loop {
            match core.ports.store.tx(id).await {
                Ok(record) => break record,
                Err(error) => back_off_after(&core, &mut tries, lane, &error).await,
            }
        };
        finals.extend(record.map(|record| (record.tx, record.attempts)));
    }
    core.send_inputs(lane, epoch, vec![Input::Finals(finals)])
        .await;
}

pub(super) async fn back_off_after(
    core: &Core,
    tries: &mut u32,
    lane: LaneKey,
    error: &StoreError,
) {
    tracing::warn!(%lane, %error, "a lane could not be read from the store; retrying");
    core.back_off(tries).await;
}

/// Records that nothing is open any more that the store may have lost. Until then no request is queued for this
/// lane, and a node that opens it compares it with its chain again.
async fn mark_reconciled(core: Arc<Core>, lane: LaneKey, lease_grant: LeaseGrant) {
    let mut tries = 0;
    while core.leases.holds_grant(lane, lease_grant) {
        match core.ports.store.mark_reconciled(lease_grant).await {
            Ok(()) => {
                tracing::info!(%lane, "the lane is reconciled under the store's new timeline");
                return;
            }
            Err(error) => {
                tracing::warn!(%lane, %error, "the lane could not be marked as reconciled; retrying");
                core.back_off(&mut tries).await;
            }
        }
    }
}
