//! Effects of a lane, dispatched once its writes are durable. Answers come back as inputs with its epoch.

use std::sync::Arc;

use domain::{Effect, Input, LaneId, LaneKey, LeaseGrant, Nonce, TxId};

use super::balance::query_balance_for_lane;
use super::chain_queries::{
    attribute_nonces, fetch_headers, fetch_receipts, find_consumer, query_chain_nonces,
};
use super::signing::sign_remotely;
use super::{Message, Shard};
use crate::core::Core;
use crate::draft::LaneDraft;
use crate::ports::StoreError;
use crate::revert_reasons::send_with_revert_reasons;

impl Shard {
    /// Dispatches the effects of a draft, and the signatures that a remote key makes.
    pub(crate) fn dispatch_effects(&self, draft: &mut LaneDraft) {
        let (key, epoch) = (draft.lane.key(), draft.epoch);
        let lease_grant = draft.lane.lease_grant();
        let id = lease_grant.lane;
        let watched = &self.core.chain(key.chain_id).watched;
        let core = || Arc::clone(&self.core);
        let mut outgoing = Vec::new();
        let mut unwatched = Vec::new();
        for effect in std::mem::take(&mut draft.effects) {
            match effect {
                Effect::Send(bytes) => outgoing.push(bytes),
                Effect::Watch(hash) => watched.add(key, std::iter::once(hash)),
                Effect::Unwatch(hash) => unwatched.push(hash),
                Effect::LoadBacklog { from, limit } => {
                    self.spawn_effect(key, epoch, load_backlog(core(), key, id, from, limit));
                }
                Effect::LoadQueued { limit } => {
                    self.spawn_effect(key, epoch, load_queued(core(), key, id, limit));
                }
                Effect::LoadFinals(ids) => {
                    self.spawn_effect(key, epoch, load_finals(core(), key, ids));
                }
                Effect::QueryChainNonces { twice, taken } => {
                    self.spawn_effect(key, epoch, query_chain_nonces(core(), key, twice, taken));
                }
                Effect::FindConsumer {
                    nonce,
                    up_to,
                    hashes,
                } => {
                    let found = find_consumer(core(), key, nonce, up_to, hashes);
                    self.spawn_effect(key, epoch, found);
                }
                Effect::AttributeNonces { nonces, up_to } => {
                    let found = attribute_nonces(core(), key, nonces, up_to);
                    self.spawn_effect(key, epoch, found);
                }
                Effect::Halt(reason) => {
                    let halted = halt_lane(core(), key, lease_grant, reason);
                    self.core.tasks.spawn("effect", halted);
                }
                Effect::MarkReconciled => {
                    let marked = mark_reconciled(core(), key, lease_grant);
                    self.core.tasks.spawn("effect", marked);
                }
                Effect::FetchHeaders(heights) => {
                    self.spawn_effect(key, epoch, fetch_headers(core(), key, heights));
                }
                Effect::QueryBalance => {
                    self.spawn_effect(key, epoch, query_balance_for_lane(core(), key));
                }
                Effect::FetchReceipts(hashes) => {
                    self.spawn_effect(key, epoch, fetch_receipts(core(), key, hashes));
                }
            }
        }
        let to_sign = std::mem::take(&mut draft.to_sign);
        if !to_sign.is_empty() {
            self.spawn_effect(key, epoch, sign_remotely(core(), to_sign));
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

    /// Runs an effect in a task, which sends its answers to the lane.
    fn spawn_effect<F>(&self, lane: LaneKey, epoch: u64, effect: F)
    where
        F: Future<Output = Vec<Input>> + Send + 'static,
    {
        let core = Arc::clone(&self.core);
        self.core.tasks.spawn("effect", async move {
            let inputs = effect.await;
            if !inputs.is_empty() {
                send_with_revert_reasons(&core, lane, Some(epoch), inputs).await;
            }
        });
    }
}

async fn load_backlog(
    core: Arc<Core>,
    lane: LaneKey,
    id: LaneId,
    from: Nonce,
    limit: u64,
) -> Vec<Input> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let load = || core.ports.store.load_backlog(id, from, limit);
    let txs = read_until_answered(&core, lane, load).await;
    let more = txs.len() >= limit;
    vec![Input::Backlog { txs, more }]
}

async fn load_queued(core: Arc<Core>, lane: LaneKey, id: LaneId, limit: u64) -> Vec<Input> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let load = || core.ports.store.load_queued(id, limit);
    let txs = read_until_answered(&core, lane, load).await;
    let more = txs.len() >= limit;
    vec![Input::Queued { txs, more }]
}

async fn load_finals(core: Arc<Core>, lane: LaneKey, ids: Vec<TxId>) -> Vec<Input> {
    let mut finals = Vec::with_capacity(ids.len());
    for id in ids {
        let record = read_until_answered(&core, lane, || core.ports.store.tx(id)).await;
        finals.extend(record.map(|record| (record.tx, record.attempts)));
    }
    vec![Input::Finals(finals)]
}

pub(super) async fn read_until_answered<T, F>(core: &Core, lane: LaneKey, read: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 0;
    loop {
        match read().await {
            Ok(found) => return found,
            Err(error) => {
                tracing::warn!(%lane, %error, "a lane could not be read from the store; retrying");
                core.back_off(&mut tries).await;
            }
        }
    }
}

/// Halts a lane that has lost commits. Durable, so that no other node opens it before an operator has decided; until
/// then the lane in memory allocates nothing.
async fn halt_lane(core: Arc<Core>, lane: LaneKey, lease_grant: LeaseGrant, reason: String) {
    let mut tries = 0;
    while core.leases.holds_grant(lane, lease_grant) {
        match core.ports.store.halt(lease_grant, &reason).await {
            Ok(true) => {
                tracing::error!(%lane, %reason, "the store has lost commits of this lane: it is halted");
                core.leases.forget_grant(lane, lease_grant);
                let halted = Message::LaneHalted {
                    lane,
                    lease_grant,
                    reason,
                };
                core.send_to_shard(lane, halted).await;
                return;
            }
            // Another grant: the lane is searched again by its keeper.
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%lane, %error, "the lane could not be halted; retrying");
                core.back_off(&mut tries).await;
            }
        }
    }
}

/// Records that nothing is open any more that the store may have lost. Until then no request is queued for this
/// lane, and a node that opens it compares it with its chain again.
async fn mark_reconciled(core: Arc<Core>, lane: LaneKey, lease_grant: LeaseGrant) {
    let mut tries = 0;
    while let Some(history) = core.leases.history_of(lane, lease_grant) {
        match core.ports.store.mark_reconciled(lease_grant, history).await {
            Ok(true) => {
                tracing::info!(%lane, %history, "the lane is reconciled under the store's new history");
                return;
            }
            // Another grant, or another history: the lane is opened, and compared with its chain, again.
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(%lane, %error, "the lane could not be marked as reconciled; retrying");
                core.back_off(&mut tries).await;
            }
        }
    }
}
