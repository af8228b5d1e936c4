//! Opening lanes: acquiring them, reading them from the store, and querying their chain.

use std::sync::Arc;
use std::time::Duration;

use domain::lane::{ChainQuery, EndpointNonces};
use domain::lease::LeaseTrust;
use domain::{
    GrantId, History, LaneKey, LaneWitness, LeaseGrant, MonotonicTime, NodeName, Nonce, Token,
};
use metrics::counter;
use tokio::sync::{Semaphore, mpsc};

use super::reconcile;
use super::renew::send_heartbeat;
use crate::core::Core;
use crate::ports::{AcquireOutcome, Quorum};
use crate::shard::{LossSuspicion, Message, OpenError, OpenedLane};

/// How long the opening of a lane waits for its chain.
const CHAIN_PATIENCE: Duration = Duration::from_secs(2);
/// The most lanes of one acquisition.
const ACQUIRE_CHUNK: usize = 500;
/// How many lanes are read at once.
const LOADS_AT_ONCE: usize = 16;

/// Opens lanes: acquires all that are requested in one call, then reads each. Two calls, because one statement
/// would read a stale snapshot.
pub(crate) async fn run_opener(core: Arc<Core>, mut requested: mpsc::Receiver<LaneKey>) {
    let readers = Arc::new(Semaphore::new(LOADS_AT_ONCE));
    let mut lanes = Vec::with_capacity(ACQUIRE_CHUNK);
    while requested.recv_many(&mut lanes, ACQUIRE_CHUNK).await > 0 {
        let batch: Vec<LaneKey> = std::mem::take(&mut lanes);
        for (lane, answer) in acquire_lanes(&core, batch).await {
            let (core_of_task, readers) = (Arc::clone(&core), Arc::clone(&readers));
            core.tasks.spawn("open lane", async move {
                let opened = match answer {
                    Ok(granted) => read_lane(&core_of_task, lane, granted, &readers).await,
                    Err(why) => Err(why),
                };
                let message = opened.unwrap_or_else(|why| Message::LaneNotOpened { lane, why });
                core_of_task.send_to_shard(lane, message).await;
            });
        }
    }
}

pub(super) struct GrantedLane {
    lease_grant: LeaseGrant,
    previous_keeper: Option<NodeName>,
    /// The store's history at the grant.
    pub(super) history: History,
    pub(super) is_reconciled: bool,
    pub(super) is_loss_accepted: bool,
}

async fn acquire_lanes(
    core: &Core,
    lanes: Vec<LaneKey>,
) -> Vec<(LaneKey, Result<GrantedLane, OpenError>)> {
    let clock = &core.ports.clock;
    refresh_cluster_view(core).await;
    // Read before the request is sent: the lease may begin any time after this.
    let requested_at = clock.monotonic();
    let requested: Vec<(LaneKey, GrantId)> =
        lanes.iter().map(|lane| (*lane, clock.grant_id())).collect();
    let lease_request = core.lease_request();
    let answers = match core.ports.store.acquire(&lease_request, &requested).await {
        Ok(answers) => answers,
        Err(error) => {
            counter!("lanekeeper_lease_acquire_total", "result" => "error")
                .increment(lanes.len() as u64);
            let why = OpenError::from(error);
            let failed = lanes.into_iter().map(|lane| (lane, Err(why.clone())));
            return failed.collect();
        }
    };
    assert_eq!(answers.len(), lanes.len(), "the store answers every lane");
    let taken = lanes.into_iter().zip(answers);
    taken
        .map(|(lane, answer)| (lane, on_acquire_outcome(core, lane, answer, requested_at)))
        .collect()
}

/// Sends a heartbeat before lanes are requested, where one is due: a node that was cut off must count as alive
/// before it gets lanes, and a node that seems silent is observed once more.
async fn refresh_cluster_view(core: &Core) {
    let lease = core.config.lease.duration;
    let was_cut_off = core.heartbeat_age() >= lease;
    if was_cut_off || core.cluster.has_silent_node(&core.config.name, lease) {
        send_heartbeat(core).await.ok(); // requesting lanes is safe without it
    }
}

fn on_acquire_outcome(
    core: &Core,
    lane: LaneKey,
    answer: AcquireOutcome,
    requested_at: MonotonicTime,
) -> Result<GrantedLane, OpenError> {
    let count = |result: &'static str| {
        counter!("lanekeeper_lease_acquire_total", "result" => result).increment(1);
    };
    match answer {
        AcquireOutcome::Granted {
            lease_grant,
            previous_keeper,
            history,
            is_reconciled,
            is_loss_accepted,
        } => {
            count(match (&previous_keeper, lease_grant.token) {
                (Some(_), _) => "taken",
                (None, Token(1)) => "inserted",
                (None, _) => "renewed",
            });
            if previous_keeper.is_some() {
                counter!("lanekeeper_lease_token_changes_total").increment(1);
            }
            tracing::info!(%lane, token = %lease_grant.token, from = ?previous_keeper, "lane acquired");
            let trust = LeaseTrust::from(requested_at, core.config.lease.duration);
            core.routes.forget_keeper(lane);
            core.history.observe_history(history);
            core.leases.record_grant(lane, lease_grant, history, trust);
            Ok(GrantedLane {
                lease_grant,
                previous_keeper,
                history,
                is_reconciled,
                is_loss_accepted,
            })
        }
        AcquireOutcome::NotKeeper { lease, left } => {
            count("not_keeper");
            let now = core.ports.clock.monotonic();
            core.cluster
                .observe_lease(&lease.owner, lease.incarnation, now);
            let known_for = left.max(core.config.lease.renew_interval);
            let until = now.plus(known_for);
            core.routes.record_keeper(lane, lease.owner.clone(), until);
            Err(OpenError::NotKeeper(lease.owner))
        }
        AcquireOutcome::Halted(reason) => {
            count("halted");
            Err(OpenError::Halted(reason))
        }
        AcquireOutcome::Busy => {
            count("busy");
            Err(OpenError::Busy)
        }
    }
}

/// Reads a lane that was granted, and its account's nonces.
async fn read_lane(
    core: &Core,
    lane: LaneKey,
    granted: GrantedLane,
    readers: &Semaphore,
) -> Result<Message, OpenError> {
    let rules = &core.chain(lane.chain_id).rules.lane;
    let watch_depth = rules.confirmations.watch_depth;
    let lease_grant = granted.lease_grant;
    let read = async {
        // For the store only: a chain that does not answer must not hold up lanes of other chains.
        let reader = readers
            .acquire()
            .await
            .expect("this semaphore is never closed");
        let image = core.ports.store.load(lane, lease_grant, watch_depth).await;
        drop(reader);
        let Some(image) = image? else {
            let why = "another node took the lane over while it was read";
            return Err(OpenError::Store(why.into()));
        };
        reconcile::record_suspicion(core, &image, &granted).await?;
        let is_reconciled =
            granted.is_reconciled && !reconcile::contradicts_memory(core, &image, granted.history);
        let loss = match is_reconciled {
            true => LossSuspicion::None,
            false => reconcile::assess_loss(core, &image, &granted).await?,
        };
        let is_reload = is_reconciled && core.history.is_last_token(lane, lease_grant.token);
        core.history.forget_last_known_lane(lane);
        core.history.record_token(lane, lease_grant.token);
        let seen = LaneWitness {
            history: granted.history,
            token: lease_grant.token,
            batch_seq: image.batch_seq,
            next_nonce: image.next_nonce,
        };
        core.history.committed.record(lane, seen);
        Ok((image, loss, is_reload))
    };
    match read.await {
        Ok((image, loss, is_reload)) => {
            // A first use, and a lane that may have lost commits, take no nonce from one endpoint alone.
            let needs_two = image.next_nonce == Nonce(0) || loss != LossSuspicion::None;
            let quorum = if needs_two { Quorum::Two } else { Quorum::One };
            Ok(Message::LaneOpened(Box::new(OpenedLane {
                lane,
                image,
                previous_keeper: granted.previous_keeper,
                nonces: query_initial_nonces(core, lane, quorum).await,
                loss,
                is_reload,
            })))
        }
        Err(why) => {
            core.leases.forget_grant(lane, lease_grant);
            // Another node may be able to read it, or reach its chain.
            let released = core.release_grants(&[lease_grant]).await;
            released.ok(); // if it fails, this node finds the lane again among those with work
            Err(why)
        }
    }
}

/// Waits briefly for what a lane needs to allocate nonces and sign, so that its first answers carry both.
/// Without it the lane accepts requests all the same, and allocates when the chain answers.
async fn query_initial_nonces(
    core: &Core,
    lane: LaneKey,
    quorum: Quorum,
) -> Option<EndpointNonces> {
    let chain_state = core.chain(lane.chain_id);
    let query = chain_state.rules.lane.nonce.chain_query;
    let learn = async {
        chain_state.view.wait_until_set().await;
        if query == ChainQuery::Off {
            return None;
        }
        let nonces = chain_state.chain.account_nonces(lane.signer, query, quorum);
        nonces.await.ok() // the lane queries again by itself
    };
    tokio::select! {
        biased;
        nonces = learn => nonces,
        () = core.ports.clock.sleep(CHAIN_PATIENCE) => None,
    }
}
