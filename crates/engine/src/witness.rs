//! What this node has seen committed, lane by lane: in memory, and in its [`Witness`] across restarts. A store that has
//! less was restored from a backup, or has lost its last commits.
//!
//! [`Witness`]: crate::ports::Witness

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{Lane, LaneKey, LaneWitness, Token, WitnessVerdict};
use metrics::counter;
use tokio::sync::Notify;

use crate::core::{Core, lock};
use crate::node::OnTimelineChange;
use crate::ports::{LaneRecord, StoreError, Witness, WitnessedLanes};

/// The witness is written at most once in this time.
const WRITE_PERIOD: Duration = Duration::from_secs(1);
/// The most lanes of one read of the store.
const READ_CHUNK: usize = 500;

/// The last commit of each lane that this node has seen durable.
#[derive(Default)]
pub(crate) struct CommittedLanes {
    lanes: Mutex<WitnessedLanes>,
    /// Notified when one of them changed.
    changed: Notify,
}

impl CommittedLanes {
    /// Records what the store has of a lane that was opened, or committed just now. The store decides: what it has of a
    /// lane that was opened replaces what was seen before.
    pub(crate) fn record(&self, lane: LaneKey, witness: LaneWitness) {
        let before = lock(&self.lanes).insert(lane, witness);
        if before != Some(witness) {
            self.changed.notify_one();
        }
    }

    pub(crate) fn get(&self, lane: LaneKey) -> Option<LaneWitness> {
        lock(&self.lanes).get(&lane).copied()
    }
}

impl Core {
    /// Records a commit for the witness. One under a lease that was lost meanwhile is left to the next opening.
    pub(crate) fn record_commit(&self, lane: &Lane) {
        self.customers.note_commit();
        let (key, lease_grant) = (lane.key(), lane.lease_grant());
        if let Some(history) = self.leases.history_of(key, lease_grant) {
            let witness = LaneWitness {
                history,
                token: lease_grant.token,
                batch_seq: lane.batch_seq(),
                next_nonce: lane.next_nonce(),
            };
            self.history.committed.record(key, witness);
        }
    }
}

/// Writes the witness whenever commits were made, apart from the lanes' turns. What the last second has committed is
/// missing after a crash: it can only prove less.
pub(crate) async fn run_witness(core: Arc<Core>, witness: Arc<dyn Witness>) {
    loop {
        core.history.committed.changed.notified().await;
        core.ports.clock.sleep(WRITE_PERIOD).await;
        let lanes = lock(&core.history.committed.lanes).clone();
        if let Err(error) = witness.write(&lanes).await {
            counter!("lanekeeper_witness_failures_total", "op" => "write").increment(1);
            tracing::error!(%error, "what this node has committed could not be recorded in node.stateDir: until it can, \
                 a restored backup may not be noticed; retrying");
            core.history.committed.changed.notify_one();
        }
    }
}

/// Compares the store with what this node recorded before it was restarted, and halts the lanes that have lost commits,
/// also those that another node keeps, which knows less. Before this node acquires a lane.
pub(crate) async fn check_witness(core: &Core) -> Result<(), StoreError> {
    let Some(witness) = &core.ports.witness else {
        return Ok(());
    };
    let Some(mut lanes) = witness.read().await else {
        return Ok(());
    };
    // Lanes of accounts that are not configured any more are left out: the witness is as small as the configuration.
    lanes.retain(|lane, _| core.lanes.contains(*lane));
    let keys: Vec<LaneKey> = lanes.keys().copied().collect();
    for chunk in keys.chunks(READ_CHUNK) {
        let records = core.ports.store.lanes(chunk).await?;
        let records: BTreeMap<LaneKey, LaneRecord> = records
            .into_iter()
            .map(|record| (record.key, record))
            .collect();
        for lane in chunk {
            check_lane(core, *lane, lanes[lane], records.get(lane)).await?;
        }
    }
    *lock(&core.history.committed.lanes) = lanes;
    Ok(())
}

async fn check_lane(
    core: &Core,
    lane: LaneKey,
    seen: LaneWitness,
    record: Option<&LaneRecord>,
) -> Result<(), StoreError> {
    let record = record.cloned().unwrap_or_else(|| LaneRecord::unused(lane));
    let Some(present) = core.history.present() else {
        return Ok(()); // the first heartbeat comes before this
    };
    let token = record.lease.as_ref().map_or(Token(0), |lease| lease.token);
    let verdict = seen.judge(present, token, record.batch_seq);
    if verdict != WitnessVerdict::Lost || record.halted.is_some() {
        return Ok(());
    }
    counter!("lanekeeper_witness_losses_total").increment(1);
    let node = &core.config.name;
    let lost = format!(
        "the store has lost commits of this lane: node {node} has seen {} more (cursor {} instead of {}), so a backup \
         was restored, or a failover has lost them. Compare with the chain, then resume the lane",
        seen.batch_seq.saturating_sub(record.batch_seq),
        seen.next_nonce,
        record.next_nonce,
    );
    tracing::error!(%lane, %lost, "the store is older than what this node has recorded of it");
    if core.config.on_timeline_change == OnTimelineChange::Halt {
        let grant = core.ports.clock.grant_id();
        let halting = core
            .ports
            .store
            .halt_lost_lane(lane, seen.batch_seq, grant, &lost);
        halting.await?;
    }
    Ok(())
}
