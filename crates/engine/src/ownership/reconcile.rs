//! Reconciling a lane: whether its last commits are still stored, after the store's history changed.
//!
//! An asynchronous standby that was promoted may lack commits that its primary had acknowledged, while the chain
//! has their transactions. Such a lane must not allocate those nonces again, nor accept a request again that was
//! executed: it waits for an operator. Three things prove a loss: the chain's nonce, what this node knew of the
//! lane, and the row counts of the fence.

use std::time::Duration;

use domain::lane::ChainQuery;
use domain::window::gaps;
use domain::{History, Lane, LaneImage, LaneWitness, Nonce, RequestId, TxId, WitnessVerdict};

use crate::core::Core;
use crate::node::OnTimelineChange;
use crate::ports::Quorum;
use crate::shard::OpenError;

/// How long the chain may take to answer before the opening fails and is retried.
const CHAIN_PATIENCE: Duration = Duration::from_secs(5);
/// The delay between the two queries of the chain's nonce.
const SECOND_QUERY_AFTER: Duration = Duration::from_secs(1);
/// How many lost txs are named; the rest are counted.
const NAMED_MAX: usize = 20;
/// The most gaps of a lane that are examined.
const GAPS_MAX: u64 = 10_000;

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
        let seen = core.committed.get(image.key).filter(is_lost)?;
        Some(LastKnownLane {
            batch_seq: seen.batch_seq,
            next_nonce: seen.next_nonce,
            in_flight: Vec::new(),
        })
    })
}

/// Whether this node has seen commits of the lane that the store does not have, or may not have.
pub(super) fn contradicts_memory(core: &Core, image: &LaneImage, history: History) -> bool {
    let seen = core.committed.get(image.key);
    let verdict = seen.map(|seen| judge(&seen, image, history));
    verdict.is_some_and(|verdict| verdict != WitnessVerdict::NoOpinion)
        || find_newer_knowledge(core, image, history).is_some()
}

fn judge(seen: &LaneWitness, image: &LaneImage, history: History) -> WitnessVerdict {
    seen.judge(history, image.lease_grant.token, image.batch_seq)
}

/// Opens the way for a lane when no commit is missing, and halts it otherwise. Returns whether it is reconciled:
/// if not, its keeper marks it when everything that is in flight now has ended, because lost transactions may
/// still be mined.
pub(super) async fn reconcile_lane(
    core: &Core,
    image: &LaneImage,
    history: History,
) -> Result<bool, OpenError> {
    let lane = image.key;
    if let Some(lost) = describe_lost_commits(core, image, history).await? {
        tracing::error!(%lane, %lost, "the store has lost commits of this lane");
        if core.config.on_timeline_change == OnTimelineChange::Halt {
            // Durable, so that no other node, which may know less, opens the lane.
            if !core.ports.store.halt(image.lease_grant, &lost).await? {
                let why = "another node took the lane over while it was compared with its chain";
                return Err(OpenError::Store(why.into()));
            }
            core.history.forget_last_known_lane(lane);
            return Err(OpenError::Halted(lost));
        }
    }
    let continues_anyway = core.config.on_timeline_change == OnTimelineChange::Continue;
    if continues_anyway {
        let marked = core.ports.store.mark_reconciled(image.lease_grant, history);
        if !marked.await? {
            let why =
                "the store's history changed again while the lane was compared with its chain";
            return Err(OpenError::Store(why.into()));
        }
    }
    tracing::info!(%lane, continues_anyway, "the lane was compared with its chain under the store's new history");
    Ok(continues_anyway)
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
    match highest_chain_nonce(core, image).await {
        Ok(used) if used > image.next_nonce => parts.push(format!(
            "the chain has transactions at nonces {} to {} that the store does not know",
            image.next_nonce,
            Nonce(used.0.saturating_sub(1))
        )),
        // Of reserved nonces it proves nothing: a former holder's transaction may be mined after a recycle.
        Ok(_) if core.reservations(image.key).is_some() => {}
        Ok(used) => parts.extend(find_consumed_gap(image, used)),
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

/// A nonce that is consumed although no tx of the store holds it: a lost commit had allocated it.
fn find_consumed_gap(image: &LaneImage, used: Nonce) -> Option<String> {
    // Nonces below the first one of the store are the account's own past.
    let lowest = image
        .held
        .first()
        .map_or(image.next_nonce, |run| Nonce(run.start));
    let from = match image.consumed_below {
        Nonce(0) => lowest,
        below => below,
    };
    let gaps = gaps(from, used, &image.held, GAPS_MAX);
    let Some(gaps) = gaps else {
        return Some(format!(
            "the chain has transactions at more than {GAPS_MAX} nonces below {used} that no tx of the store holds"
        ));
    };
    let first = gaps.first()?;
    Some(format!(
        "the chain has a transaction at nonce {first}, which no tx of the store holds"
    ))
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

/// One above the account's highest nonce on the chain or in a mempool. Queried twice, a moment apart: an endpoint may
/// be behind, or a transaction between two mempools.
async fn highest_chain_nonce(core: &Core, image: &LaneImage) -> Result<Nonce, OpenError> {
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
            Ok(nonces) => return nonces.highest().pending.max(nonces.highest().latest),
            Err(error) => {
                tracing::warn!(lane = %image.key, %error, "the account's nonce could not be read from the chain; retrying");
                core.back_off(&mut tries).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::lane::OpenTotals;
    use domain::{Address, ChainId, GrantId, LaneId, LaneKey, LeaseGrant, Token};
    use uuid::Uuid;

    use super::*;

    fn image(consumed_below: u64, held: &[(u64, u64)], next_nonce: u64) -> LaneImage {
        LaneImage {
            key: LaneKey {
                chain_id: ChainId(1),
                signer: Address::ZERO,
            },
            lease_grant: LeaseGrant {
                lane: LaneId(1),
                token: Token(1),
                grant: GrantId(Uuid::nil()),
            },
            next_nonce: Nonce(next_nonce),
            event_seq: 0,
            batch_seq: 0,
            paused: false,
            in_flight: Vec::new(),
            backlog_from: None,
            held: held.iter().map(|(from, to)| *from..*to).collect(),
            consumed_below: Nonce(consumed_below),
            totals: OpenTotals::default(),
            finals: Vec::new(),
        }
    }

    #[test]
    fn consumed_gap_is_a_loss_and_the_past_of_an_account_is_none() {
        let names = |image: &LaneImage, used: u64, nonce: &str| {
            find_consumed_gap(image, Nonce(used)).is_some_and(|why| why.contains(nonce))
        };
        let with_a_gap = image(3, &[(4, 6)], 6);
        assert!(names(&with_a_gap, 5, "nonce 3,"));
        assert_eq!(
            find_consumed_gap(&with_a_gap, Nonce(3)),
            None,
            "not consumed"
        );
        assert!(names(&image(0, &[(0, 1), (2, 3)], 3), 3, "nonce 1,"));
        for new_account in [image(0, &[(500, 501)], 501), image(0, &[], 500)] {
            assert_eq!(find_consumed_gap(&new_account, Nonce(500)), None);
        }
    }
}
