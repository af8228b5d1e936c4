//! Whether a lane's last commits are still there, after the store's history changed.
//!
//! An asynchronous standby that was promoted may lack what its primary had acknowledged, while the chain
//! has it. Such a lane must not deal those nonces again, nor take a request again that was executed: it
//! waits for an operator. Three things can tell: the chain's nonce, what this node still remembers, and
//! the row counts of the fence.

use std::time::Duration;

use domain::lane::ChainQuery;
use domain::window::gaps;
use domain::{Lane, LaneImage, Nonce, RequestId, TxId};

use crate::core::Core;
use crate::node::OnTimelineChange;
use crate::ports::Quorum;
use crate::shard::NotOpened;

/// How long the chain may take to answer, before the lane is tried again later.
const CHAIN_PATIENCE: Duration = Duration::from_secs(5);
/// How long after the first look at the chain the second one follows.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How many lost txs are named; the rest are counted.
const NAMED_MAX: usize = 20;
/// The most gaps of a lane that are looked at.
const GAPS_MAX: u64 = 10_000;

/// What a node remembers of a lane that it lost: enough to name what the store has lost.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    batch_seq: u64,
    next_nonce: Nonce,
    in_flight: Vec<(TxId, RequestId)>,
}

impl Remembered {
    pub(crate) fn of(lane: &Lane) -> Self {
        Self {
            batch_seq: lane.batch_seq(),
            next_nonce: lane.next_nonce(),
            in_flight: lane
                .in_flight()
                .map(|tx| (tx.id, tx.request_id.clone()))
                .collect(),
        }
    }
}

/// Whether this node has seen commits of the lane that the store does not have.
pub(super) fn knows_more(core: &Core, image: &LaneImage) -> bool {
    let remembered = core.remembered(image.key);
    remembered.is_some_and(|remembered| remembered.batch_seq > image.batch_seq)
}

/// Lets a lane go on when nothing is missing, and says what is when something is. Whether it is settled for
/// good: otherwise its keeper settles it when everything that is in flight now has ended, because what the
/// store has lost of it may still be mined.
pub(super) async fn settle(core: &Core, image: &LaneImage) -> Result<bool, NotOpened> {
    let lane = image.key;
    if let Some(missing) = missing(core, image).await? {
        tracing::error!(%lane, %missing, "the store has lost commits of this lane");
        if core.config.on_timeline_change == OnTimelineChange::Halt {
            // Durable, so that no other node, which may know less, lets the lane go on.
            let halted = core.ports.store.halt(image.lease_grant, &missing).await;
            if !halted.map_err(|error| NotOpened::Store(error.to_string()))? {
                let why = "the lane changed hands while it was compared with its chain";
                return Err(NotOpened::Store(why.into()));
            }
            core.forget_remembered(lane);
            return Err(NotOpened::Halted(missing));
        }
    }
    let goes_on_anyway = core.config.on_timeline_change == OnTimelineChange::Continue;
    if goes_on_anyway {
        let settled = core.ports.store.mark_reconciled(image.lease_grant).await;
        settled.map_err(|error| NotOpened::Store(error.to_string()))?;
    }
    tracing::info!(%lane, goes_on_anyway, "the lane was compared with its chain under the store's new history");
    Ok(goes_on_anyway)
}

/// What the store does not know of, in words; `None` when nothing is missing.
async fn missing(core: &Core, image: &LaneImage) -> Result<Option<String>, NotOpened> {
    let mut parts = Vec::new();
    if let Some(remembered) = core.remembered(image.key)
        && remembered.batch_seq > image.batch_seq
    {
        let lost = lost_requests(core, image, &remembered).await?;
        parts.push(format!(
            "{} commits of this node are gone (cursor {} instead of {}){lost}",
            remembered.batch_seq.saturating_sub(image.batch_seq),
            image.next_nonce,
            remembered.next_nonce,
        ));
    }
    match used_on_chain(core, image).await {
        Ok(used) if used > image.next_nonce => parts.push(format!(
            "the chain has transactions at nonces {} to {} that the store does not know",
            image.next_nonce,
            Nonce(used.0.saturating_sub(1))
        )),
        // Of a lent nonce it proves nothing: a former holder's transaction may be mined after it was free again.
        Ok(_) if core.reservations(image.key).is_some() => {}
        Ok(used) => parts.extend(used_gap(image, used)),
        // What this node remembers is proof enough.
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

/// A nonce that no tx of the store holds, and that is used all the same: somebody got a gap in a commit that is lost.
fn used_gap(image: &LaneImage, used: Nonce) -> Option<String> {
    // What was used before any tx of the store had a nonce is the account's past.
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

/// The txs in flight that the store does not have, by name.
async fn lost_requests(
    core: &Core,
    image: &LaneImage,
    remembered: &Remembered,
) -> Result<String, NotOpened> {
    let keys: Vec<_> = remembered
        .in_flight
        .iter()
        .map(|(_, request)| (image.lease_grant.lane, request.clone()))
        .collect();
    let found = core.ports.store.find_requests(&keys).await;
    let found = found.map_err(|error| NotOpened::Store(error.to_string()))?;
    let lost: Vec<String> = remembered
        .in_flight
        .iter()
        .zip(found)
        .filter(|(_, found)| found.is_none())
        .map(|((id, request), _)| format!("{request} ({id})"))
        .collect();
    if lost.is_empty() {
        return Ok(String::new());
    }
    let more = lost.len().saturating_sub(NAMED_MAX);
    let named = lost.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>();
    let and_more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    Ok(format!(
        ", among them requests {}{and_more}",
        named.join(", ")
    ))
}

/// One above the highest nonce that the chain or its pool has of the account. Asked twice, a moment apart:
/// a node may be behind, or a transaction between two pools.
async fn used_on_chain(core: &Core, image: &LaneImage) -> Result<Nonce, NotOpened> {
    let asking = async {
        let first = chain_nonce(core, image).await;
        core.ports.clock.sleep(LOOK_AGAIN_AFTER).await;
        first.max(chain_nonce(core, image).await)
    };
    tokio::select! {
        biased;
        used = asking => Ok(used),
        () = core.ports.clock.sleep(CHAIN_PATIENCE) => {
            let why = "the store's history changed, and not every endpoint that must be asked tells the \
                       account's nonce: mend or remove those that do not answer";
            Err(NotOpened::Store(why.into()))
        }
    }
}

/// Asks until the chain answers.
async fn chain_nonce(core: &Core, image: &LaneImage) -> Nonce {
    let chain = &core.chain(image.key.chain_id).chain;
    let mut tries = 0;
    loop {
        // With what waits in the pool, whatever the lane's own rule is: lost bytes may be there.
        // A second endpoint may have seen what the first has not.
        let asked = chain.account_nonces(image.key.signer, ChainQuery::Pending, Quorum::Two);
        match asked.await {
            Ok(nonces) => return nonces.highest().pending.max(nonces.highest().latest),
            Err(error) => {
                tracing::warn!(lane = %image.key, %error, "the chain did not tell the account's nonce");
                core.back_off(&mut tries).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
            queued: 0,
            finals: Vec::new(),
        }
    }

    #[test]
    fn a_used_gap_is_a_loss_and_the_past_of_an_account_is_none() {
        let names = |image: &LaneImage, used: u64, nonce: &str| {
            used_gap(image, Nonce(used)).is_some_and(|why| why.contains(nonce))
        };
        let with_a_gap = image(3, &[(4, 6)], 6);
        assert!(names(&with_a_gap, 5, "nonce 3,"));
        assert_eq!(used_gap(&with_a_gap, Nonce(3)), None, "nobody used it");
        assert!(names(&image(0, &[(0, 1), (2, 3)], 3), 3, "nonce 1,"));
        for new_here in [image(0, &[(500, 501)], 501), image(0, &[], 500)] {
            assert_eq!(used_gap(&new_here, Nonce(500)), None);
        }
    }
}
