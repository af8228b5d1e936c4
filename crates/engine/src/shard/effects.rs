//! What a lane wants done once its writes are durable. Answers come back as inputs with its epoch.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::lane::{ChainQuery, NonceConsumer, OLD_DEPTH_MAX, Receipt};
use domain::{
    B256, Effect, Header, Inclusion, Input, Lane, LaneId, LaneKey, LeaseGrant, Nonce, TxId,
    UnsignedEnvelope,
};

use super::Shard;
use crate::core::Core;
use crate::gate::signed_input;
use crate::ports::{ChainError, Quorum, StoreError};

impl Shard {
    pub(super) fn let_out(&self, lane: &Lane, epoch: u64, effects: Vec<Effect>) {
        let key = lane.key();
        let id = lane.lease_grant().lane;
        let part = self.core.chain(key.chain_id);
        let mut outgoing = Vec::new();
        let mut unsigned = Vec::new();
        let mut unwatched = Vec::new();
        for effect in effects {
            match effect {
                Effect::Send(bytes) => outgoing.push(bytes),
                Effect::Sign(envelope) => unsigned.push(envelope),
                Effect::Watch(hash) => part.watched.add(key, std::iter::once(hash)),
                Effect::Unwatch(hash) => unwatched.push(hash),
                Effect::LoadBacklog { from, limit } => {
                    self.spawn(move |core| load_backlog(core, key, epoch, id, from, limit));
                }
                Effect::LoadQueued { limit } => {
                    self.spawn(move |core| load_queued(core, key, epoch, id, limit));
                }
                Effect::LoadFinals(ids) => {
                    self.spawn(move |core| load_finals(core, key, epoch, ids));
                }
                Effect::QueryChainNonces { twice, taken } => {
                    self.spawn(move |core| ask_chain(core, key, epoch, twice, taken));
                }
                Effect::FindConsumer {
                    nonce,
                    up_to,
                    hashes,
                } => {
                    self.spawn(move |core| find_consumer(core, key, epoch, nonce, up_to, hashes));
                }
                Effect::MarkReconciled => {
                    let lease_grant = lane.lease_grant();
                    self.spawn(move |core| settle(core, key, lease_grant));
                }
                Effect::FetchHeaders(heights) => {
                    self.spawn(move |core| fetch_headers(core, key, epoch, heights));
                }
                Effect::FetchReceipts(hashes) => {
                    self.spawn(move |core| fetch_receipts(core, key, epoch, hashes));
                }
            }
        }
        if !unsigned.is_empty() {
            self.spawn(move |core| sign_remotely(core, key, epoch, unsigned));
        }
        if !outgoing.is_empty() {
            // A hash is in the follower's set before its bytes leave; others at its nonce may be mined too.
            let hashes = outgoing.iter();
            let hashes = hashes.flat_map(|bytes| bytes.others.iter().copied().chain([bytes.hash]));
            part.watched.add(key, hashes);
            crate::broadcaster::hand_over(&self.core, key, epoch, outgoing);
        }
        // After the sends: what was sent and ended in one turn needs no watching.
        unwatched
            .into_iter()
            .for_each(|hash| part.watched.remove(hash));
    }

    fn spawn<F>(&self, part: impl FnOnce(Arc<Core>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.core
            .tasks
            .spawn("effect", part(Arc::clone(&self.core)));
    }
}

async fn sign_remotely(
    core: Arc<Core>,
    lane: LaneKey,
    epoch: u64,
    envelopes: Vec<UnsignedEnvelope>,
) {
    let nonces: Vec<Nonce> = envelopes.iter().map(|envelope| envelope.nonce).collect();
    let answers = core
        .ports
        .signer
        .sign(envelopes, core.ports.clock.now())
        .await;
    let inputs = nonces
        .into_iter()
        .zip(answers)
        .map(|(nonce, answer)| signed_input(nonce, answer));
    core.give(lane, epoch, inputs.collect()).await;
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
            Err(error) => pause_after(&core, &mut tries, lane, &error).await,
        }
    };
    let more = txs.len() >= limit;
    core.give(lane, epoch, vec![Input::Backlog { txs, more }])
        .await;
}

async fn load_queued(core: Arc<Core>, lane: LaneKey, epoch: u64, id: LaneId, limit: u64) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut tries = 0;
    let txs = loop {
        match core.ports.store.load_queued(id, limit).await {
            Ok(txs) => break txs,
            Err(error) => pause_after(&core, &mut tries, lane, &error).await,
        }
    };
    let more = txs.len() >= limit;
    core.give(lane, epoch, vec![Input::Queued { txs, more }])
        .await;
}

async fn load_finals(core: Arc<Core>, lane: LaneKey, epoch: u64, ids: Vec<TxId>) {
    let mut finals = Vec::with_capacity(ids.len());
    let mut tries = 0;
    for id in ids {
        let record = loop {
            match core.ports.store.tx(id).await {
                Ok(record) => break record,
                Err(error) => pause_after(&core, &mut tries, lane, &error).await,
            }
        };
        finals.extend(record.map(|record| (record.tx, record.attempts)));
    }
    core.give(lane, epoch, vec![Input::Finals(finals)]).await;
}

async fn pause_after(core: &Core, tries: &mut u32, lane: LaneKey, error: &StoreError) {
    tracing::warn!(%lane, %error, "a lane could not be read; trying again");
    core.back_off(tries).await;
}

/// Asks until the chain answers: a lane without this knowledge deals no nonce. Where no second endpoint
/// answers, the word of one is better than none, and the lane knows how little it is worth.
async fn ask_chain(
    core: Arc<Core>,
    lane: LaneKey,
    epoch: u64,
    twice: bool,
    taken: Option<(Nonce, B256)>,
) {
    let part = core.chain(lane.chain_id);
    // A doubt is about what waits in pools, whatever the lane asks otherwise.
    let query = match twice {
        true => ChainQuery::Pending,
        false => part.rules.lane.chain_query,
    };
    let mut quorum = if twice { Quorum::Two } else { Quorum::One };
    let mut tries = 0;
    let nonces = loop {
        match part.chain.account_nonces(lane.signer, query, quorum).await {
            Ok(nonces) => break nonces,
            Err(error) => {
                tracing::warn!(%lane, %error, "the chain did not tell the account's nonce");
                if quorum == Quorum::Two {
                    quorum = Quorum::One;
                } else {
                    core.back_off(&mut tries).await;
                }
            }
        }
    };
    // A node that has what it does not count tells nothing of its pool.
    let counts_pool = match taken.filter(|(nonce, _)| nonces.first.pending <= *nonce) {
        Some((_, hash)) => {
            let has = part.chain.knows_transaction(hash, Quorum::One).await;
            !has.unwrap_or(false)
        }
        None => true,
    };
    let input = Input::AccountNonces {
        nonces,
        counts_pool,
    };
    core.give(lane, epoch, vec![input]).await;
}

/// Who consumed a nonce of ours. Where no node shows it, the absence of all our receipts at two endpoints
/// (or the only one) must do.
async fn find_consumer(
    core: Arc<Core>,
    lane: LaneKey,
    epoch: u64,
    nonce: Nonce,
    up_to: Header,
    hashes: Vec<B256>,
) {
    let chain = &core.chain(lane.chain_id).chain;
    let found = async {
        let by = chain.find_consumer(lane.signer, nonce, up_to).await?;
        let receipts = match by {
            NonceConsumer::Nobody => Vec::new(),
            // Whoever shows another one must not have ours either.
            NonceConsumer::Unseen | NonceConsumer::By { .. } => {
                receipts_with_proof(&core, lane, &hashes, Quorum::Two).await?
            }
        };
        Ok::<_, ChainError>((by, receipts))
    };
    let mut inputs = Vec::new();
    let by = match found.await {
        Ok((by, receipts)) if receipts.is_empty() => Some(by),
        Ok((_, receipts)) => {
            inputs.push(Input::Receipts(receipts));
            None
        }
        Err(error) => {
            tracing::warn!(%lane, %nonce, %error, "a nonce is used, and nobody tells by whom");
            None
        }
    };
    let is_named = match by.and_then(NonceConsumer::hash) {
        Some(hash) => is_named(&core, lane, hash).await,
        None => false,
    };
    inputs.push(Input::Consumed {
        nonce,
        by,
        hashes,
        is_named,
    });
    core.give(lane, epoch, inputs).await;
}

/// Whether a transaction at a lent nonce is an attempt of some tx already: a second row with its hash would be a
/// conflict, however often it is tried.
async fn is_named(core: &Core, lane: LaneKey, hash: B256) -> bool {
    if core.reservations(lane).is_none() {
        return false;
    }
    let mut tries = 0;
    loop {
        match core.ports.store.tx_by_hash(hash).await {
            Ok(found) => return found.is_some(),
            Err(error) => pause_after(core, &mut tries, lane, &error).await,
        }
    }
}

/// Nothing that the store may have lost is open any more. Until the store has it, requests for this lane are not
/// queued; whoever opens the lane next compares it with its chain again.
async fn settle(core: Arc<Core>, lane: LaneKey, lease_grant: LeaseGrant) {
    let mut tries = 0;
    while core.leases.holds_grant(lane, lease_grant) {
        match core.ports.store.mark_reconciled(lease_grant).await {
            Ok(()) => {
                tracing::info!(%lane, "the lane is settled under the store's new history");
                return;
            }
            Err(error) => {
                tracing::warn!(%lane, %error, "the lane could not be settled; trying again");
                core.back_off(&mut tries).await;
            }
        }
    }
}

/// Receipts by hash, with proof for blocks that are older than the followed view. A failure is left
/// to the next time that the lane looks: it asks again while it lacks them.
async fn fetch_receipts(core: Arc<Core>, lane: LaneKey, epoch: u64, hashes: Vec<B256>) {
    let workers = &core.chain(lane.chain_id).receipt_workers;
    let _worker = workers
        .acquire()
        .await
        .expect("this semaphore is never closed");
    match receipts_with_proof(&core, lane, &hashes, Quorum::One).await {
        Ok(receipts) if receipts.is_empty() => {
            metrics::counter!("lanekeeper_receipt_check_total", "result" => "miss").increment(1);
        }
        Ok(receipts) => {
            metrics::counter!("lanekeeper_receipt_check_total", "result" => "hit").increment(1);
            core.give(lane, epoch, vec![Input::Receipts(receipts)])
                .await;
        }
        Err(error) => {
            metrics::counter!("lanekeeper_receipt_check_total", "result" => "error").increment(1);
            tracing::warn!(%lane, %error, "receipts could not be read");
        }
    }
}

/// What stands at these heights below the view, by parent links to its oldest header: a node on another
/// branch proves nothing. What is not told now is asked for again by the lane.
async fn fetch_headers(core: Arc<Core>, lane: LaneKey, epoch: u64, heights: Vec<u64>) {
    let part = core.chain(lane.chain_id);
    let base = part.view.get().and_then(|v| v.headers.base().copied());
    let lowest = heights.iter().min().copied();
    let mut headers = Vec::new();
    if let (Some(base), Some(lowest)) = (base, lowest) {
        let lowest = lowest.max(base.number.saturating_sub(OLD_DEPTH_MAX));
        let count = base.number.saturating_sub(lowest).saturating_add(1);
        match part.chain.headers(lowest, count).await {
            Ok(branch) if is_linked_to(&branch, base) => headers = branch,
            Ok(_) => tracing::warn!(%lane, "old headers do not link to the chain that is followed"),
            Err(error) => tracing::warn!(%lane, %error, "old headers could not be read"),
        }
    }
    headers.retain(|header| heights.contains(&header.number));
    core.give(lane, epoch, vec![Input::OldHeaders(headers)])
        .await;
}

/// Whether headers lead, each standing on the one before, to this one.
fn is_linked_to(branch: &[Header], end: Header) -> bool {
    let is_linked = branch
        .windows(2)
        .all(|pair| pair[1].parent_hash == pair[0].hash);
    is_linked && branch.last() == Some(&end)
}

async fn receipts_with_proof(
    core: &Core,
    lane: LaneKey,
    hashes: &[B256],
    quorum: Quorum,
) -> Result<Vec<Receipt>, ChainError> {
    let part = core.chain(lane.chain_id);
    let view = part.view.get();
    let base = view
        .as_ref()
        .and_then(|view| view.headers.base())
        .map(|header| header.number);
    let mut receipts = Vec::new();
    let mut proofs: BTreeMap<u64, Vec<Header>> = BTreeMap::new();
    for mut inclusion in part.chain.receipts(hashes, quorum).await? {
        explain_revert(core, lane, &mut inclusion).await;
        let is_below_view = base.is_some_and(|base| inclusion.block_number < base);
        let number = inclusion.block_number;
        if is_below_view && !proofs.contains_key(&number) {
            let count = part.rules.lane.finality.proof();
            proofs.insert(number, part.chain.headers(number, count).await?);
        }
        let above = proofs.get(&number).cloned().unwrap_or_default();
        receipts.push(Receipt { inclusion, above });
    }
    Ok(receipts)
}

/// Asks why a mined attempt reverted. Not knowing is no reason to wait.
pub(crate) async fn explain_revert(core: &Core, lane: LaneKey, inclusion: &mut Inclusion) {
    if inclusion.succeeded || inclusion.revert_reason.is_some() {
        return;
    }
    match core
        .chain(lane.chain_id)
        .chain
        .revert_reason(inclusion)
        .await
    {
        Ok(reason) => inclusion.revert_reason = reason,
        Err(error) => tracing::debug!(%lane, %error, "the reason of a revert is not known"),
    }
}
