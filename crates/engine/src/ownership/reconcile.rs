//! Reconciling a lane: whether its last commits are still stored, after the store's history changed.
//!
//! An asynchronous standby that was promoted may lack commits that its primary had acknowledged, while the chain
//! has their transactions. Such a lane must not allocate those nonces again, nor accept a request again that was
//! executed. Four things show a loss: the row counts of the fence; what this node knew of the lane and the chain's nonce
//! (here); and what consumed nonces that no tx holds (`domain/src/lane/attribution.rs`).

use std::time::Duration;

use domain::lane::ChainQuery;
use domain::{History, Lane, LaneImage, LaneWitness, Nonce, RequestId, TxId, WitnessVerdict};

use super::open::GrantedLane;
use crate::core::Core;
use crate::node::OnTimelineChange;
use crate::ports::Quorum;
use crate::shard::{LossSuspicion, OpenError};

/// How long the chain may take to answer before the opening fails and is retried.
const CHAIN_PATIENCE: Duration = Duration::from_secs(5);
/// The delay between the two queries of the chain's nonce.
const SECOND_QUERY_AFTER: Duration = Duration::from_secs(1);
/// How many lost txs are named; the rest are counted.
const NAMED_MAX: usize = 20;

/// What this node knew of a lane that left its memory: enough to name the commits that the store has lost.
#[derive(Clone, Debug)]
pub(crate) struct LastKnownLane {
    batch_seq: u64,
    next_nonce: Nonce,
    in_flight: Vec<(TxId, RequestId)>,
}

impl LastKnownLane {
    pub(crate) fn of(lane: &Lane) -> Self {
        Self {
            batch_seq: lane.batch_seq(),
            next_nonce: lane.next_nonce(),
            in_flight: lane
                .in_flight()
                .map(|tx| (tx.id, tx.request.request_id.clone()))
                .collect(),
        }
    }
}

/// What this node knew of a lane, where it has seen commits that the store does not have: with what was in flight where
/// the lane left its memory, without it where only the witness remembers.
pub(super) fn find_newer_knowledge(
    core: &Core,
    image: &LaneImage,
    history: History,
) -> Option<LastKnownLane> {
    let last_known = core.history.last_known_lane(image.key);
    let last_known = last_known.filter(|last_known| last_known.batch_seq > image.batch_seq);
    let is_lost = |seen: &LaneWitness| judge(seen, image, history) == WitnessVerdict::Lost;
    last_known.or_else(|| {
        let seen = core.history.committed.get(image.key).filter(is_lost)?;
        Some(LastKnownLane {
            batch_seq: seen.batch_seq,
            next_nonce: seen.next_nonce,
            in_flight: Vec::new(),
        })
    })
}

/// Whether this node has seen commits of the lane that the store does not have, or may not have.
pub(super) fn contradicts_memory(core: &Core, image: &LaneImage, history: History) -> bool {
    find_suspicious(core, image, history).is_some()
        || find_newer_knowledge(core, image, history).is_some()
}

fn find_suspicious(core: &Core, image: &LaneImage, history: History) -> Option<LaneWitness> {
    let seen = core.history.committed.get(image.key)?;
    (judge(&seen, image, history) != WitnessVerdict::NoOpinion).then_some(seen)
}

/// Makes it durable that commits are missing, where this node knows it and the store does not: every lane is unreconciled
/// from then on, whichever node opens it and whatever becomes of this one. Such a lane is not opened before, because that
/// replaces what this node has seen of it.
pub(super) async fn record_suspicion(
    core: &Core,
    image: &LaneImage,
    granted: &GrantedLane,
) -> Result<(), OpenError> {
    let (lane, history) = (image.key, granted.history);
    let token = image.lease_grant.token;
    let is_token_backwards = core.history.is_token_backwards(lane, token);
    let is_news = |seen: &LaneWitness| !history.is_later_than(seen.history);
    let proof = find_suspicious(core, image, history).filter(is_news);
    let is_behind_memory =
        is_token_backwards || find_newer_knowledge(core, image, history).is_some();
    if proof.is_none() && !(granted.is_reconciled && is_behind_memory) {
        return Ok(());
    }
    let present = core.ports.store.suspect_loss(history).await?;
    core.history.observe_history(present);
    let why = "the store is older than what this node has seen of the lane: it is opened again, and compared with its chain";
    tracing::error!(%lane, %history, %present, why);
    Err(OpenError::Store(why.to_owned()))
}

fn judge(seen: &LaneWitness, image: &LaneImage, history: History) -> WitnessVerdict {
    seen.judge(history, image.lease_grant.token, image.batch_seq)
}

/// Assesses a lane that is not reconciled under the store's present history. Where commits of it are gone, by what this
/// node knew or by the chain's nonce, the lane is halted before it takes a request, unless an operator has accepted that.
/// Everything else is found by the lane itself before it allocates a nonce.
pub(super) async fn assess_loss(
    core: &Core,
    image: &LaneImage,
    granted: &GrantedLane,
) -> Result<LossSuspicion, OpenError> {
    let (lane, history) = (image.key, granted.history);
    // An account's past is not that of a lane that never had a tx: nothing above its cursor proves a loss.
    let chain_proves_nothing = granted.is_loss_accepted || image.next_nonce == Nonce(0);
    // What is lost after the acceptance needs another one.
    if chain_proves_nothing && find_newer_knowledge(core, image, history).is_none() {
        return Ok(LossSuspicion::Accepted);
    }
    let continues_anyway = core.config.on_timeline_change == OnTimelineChange::Continue;
    if let Some(lost) = describe_lost_commits(core, image, history).await? {
        tracing::error!(%lane, %lost, continues_anyway, "the store has lost commits of this lane");
        if !continues_anyway {
            // Durable, so that no other node, which may know less, opens the lane.
            if !core.ports.store.halt(image.lease_grant, &lost).await? {
                let why = "another node took the lane over while it was compared with its chain";
                return Err(OpenError::Store(why.into()));
            }
            core.history.forget_last_known_lane(lane);
            return Err(OpenError::Halted(lost));
        }
    }
    tracing::info!(%lane, continues_anyway, "the lane was compared with its chain under the store's new history");
    Ok(match continues_anyway {
        true => LossSuspicion::Accepted,
        false => LossSuspicion::Possible,
    })
}

/// Describes the commits that the store has lost, for the operator; `None` when nothing is missing.
async fn describe_lost_commits(
    core: &Core,
    image: &LaneImage,
    history: History,
) -> Result<Option<String>, OpenError> {
    let mut parts = Vec::new();
    if let Some(last_known) = find_newer_knowledge(core, image, history) {
        let lost = lost_requests(core, image, &last_known).await?;
        parts.push(format!(
            "{} commits of this node are gone (cursor {} instead of {}){lost}",
            last_known.batch_seq.saturating_sub(image.batch_seq),
            image.next_nonce,
            last_known.next_nonce,
        ));
    }
    // An account may have a past of its own before its lane's first tx: the lane itself finds out what is whose.
    let used = match image.next_nonce {
        Nonce(0) => Ok(Nonce(0)),
        _ => confirmed_chain_nonce(core, image).await,
    };
    match used {
        Ok(used) if used > image.next_nonce => parts.push(format!(
            "the chain has transactions at nonces {} to {} that the store does not know",
            image.next_nonce,
            Nonce(used.0.saturating_sub(1))
        )),
        Ok(_) => {}
        // What this node knew is proof enough.
        Err(_) if !parts.is_empty() => {}
        Err(why) => return Err(why),
    }
    Ok((!parts.is_empty()).then(|| {
        format!(
            "the database's history changed and commits were lost: {}. Compare with the chain, then \
             resume the lane",
            parts.join("; ")
        )
    }))
}

/// The in-flight txs that the store does not have, by request id.
async fn lost_requests(
    core: &Core,
    image: &LaneImage,
    last_known: &LastKnownLane,
) -> Result<String, OpenError> {
    let requests = last_known.in_flight.iter();
    let requests: Vec<_> = requests.map(|(_, id)| (image.key, id.clone())).collect();
    let found = core.ports.store.find_requests(&requests).await?;
    let in_flight = last_known.in_flight.iter();
    let mut lost: Vec<String> = in_flight
        .zip(found)
        .filter(|(_, found)| found.is_none())
        .map(|((id, request), _)| format!("{request} ({id})"))
        .collect();
    if lost.is_empty() {
        return Ok(String::new());
    }
    let and_more = match lost.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    lost.truncate(NAMED_MAX);
    let named = lost.join(", ");
    Ok(format!(", among them requests {named}{and_more}"))
}

/// One above the account's highest nonce on the chain or in a mempool, as two endpoints report it (or the only one): one
/// that is wrong must not halt the lane, and what only one has seen the lane itself waits for. Queried twice, a moment
/// apart: an endpoint may be behind, or a transaction between two mempools.
async fn confirmed_chain_nonce(core: &Core, image: &LaneImage) -> Result<Nonce, OpenError> {
    let query = async {
        let first = query_chain_nonce(core, image).await;
        core.ports.clock.sleep(SECOND_QUERY_AFTER).await;
        first.max(query_chain_nonce(core, image).await)
    };
    tokio::select! {
        biased;
        used = query => Ok(used),
        () = core.ports.clock.sleep(CHAIN_PATIENCE) => {
            let why = "the store's history changed, and not every required endpoint answers with the account's \
                       nonce: repair or remove those that do not answer";
            Err(OpenError::Store(why.into()))
        }
    }
}

/// Queries until the chain answers.
async fn query_chain_nonce(core: &Core, image: &LaneImage) -> Nonce {
    let chain = &core.chain(image.key.chain_id).chain;
    let mut tries = 0;
    loop {
        // With the mempool, whatever the lane's own setting is: lost transactions may be there, and a second
        // endpoint may have seen what the first has not.
        let pending = chain.account_nonces(image.key.signer, ChainQuery::Pending, Quorum::Two);
        match pending.await {
            Ok(nonces) => return nonces.confirmed().pending.max(nonces.confirmed().latest),
            Err(error) => {
                tracing::warn!(lane = %image.key, %error, "the account's nonce could not be read from the chain; retrying");
                core.back_off(&mut tries).await;
            }
        }
    }
}
