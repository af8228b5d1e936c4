//! What this node has seen committed, lane by lane: in memory, and in its [`Witness`] across restarts. A store that has
//! less was restored from a backup, or has lost its last commits.
//!
//! [`Witness`]: crate::ports::Witness

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{History, Lane, LaneKey, LaneWitness, Token, WitnessVerdict};
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

/// Compares the store with what this node recorded before it was restarted. What is missing is made durable before this node
/// acquires a lane or records anything new: every lane is unreconciled from then on. The lanes that have lost commits are
/// halted, also those that another node keeps, which knows less.
pub(crate) async fn check_witness(core: &Core) -> Result<(), StoreError> {
    let Some(witness) = &core.ports.witness else {
        return Ok(());
    };
    let Some(lanes) = witness.read().await else {
        return Ok(());
    };
    let findings = find_losses(core, &lanes).await?;
    record_suspicion(core, &findings).await?;
    for finding in &findings {
        report_finding(core, finding).await?;
    }
    *lock(&core.history.committed.lanes) = lanes;
    Ok(())
}

/// A lane of which the store has less than this node has seen, or may have.
struct Finding {
    seen: LaneWitness,
    record: LaneRecord,
    verdict: WitnessVerdict,
}

async fn find_losses(core: &Core, lanes: &WitnessedLanes) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let Some(present) = core.history.present() else {
        return Ok(findings); // the first heartbeat comes before this
    };
    let keys: Vec<LaneKey> = lanes.keys().copied().collect();
    for chunk in keys.chunks(READ_CHUNK) {
        let records = core.ports.store.lanes(chunk).await?;
        let mut records: BTreeMap<LaneKey, LaneRecord> = records
            .into_iter()
            .map(|record| (record.key, record))
            .collect();
        for lane in chunk {
            let seen = lanes[lane];
            let record = records.remove(lane);
            let record = record.unwrap_or_else(|| LaneRecord::unused(*lane));
            let token = record.lease.as_ref().map_or(Token(0), |lease| lease.token);
            let verdict = seen.judge(present, token, record.batch_seq);
            if verdict != WitnessVerdict::NoOpinion {
                findings.push(Finding {
                    seen,
                    record,
                    verdict,
                });
            }
        }
    }
    Ok(findings)
}

/// Puts the store on another history, unless it came to one since the lanes were seen.
async fn record_suspicion(core: &Core, findings: &[Finding]) -> Result<(), StoreError> {
    let Some(mut present) = core.history.present() else {
        return Ok(());
    };
    let is_news = |present: History| {
        let mut seen = findings.iter().map(|finding| finding.seen.history);
        seen.any(|seen| !present.is_later_than(seen))
    };
    while is_news(present) {
        present = core.ports.store.suspect_loss(present).await?;
        core.history.observe_history(present);
        tracing::error!(%present, "the store is older than what this node has recorded of it: no lane takes work before it \
             was compared with its chain");
    }
    Ok(())
}

async fn report_finding(core: &Core, finding: &Finding) -> Result<(), StoreError> {
    let Finding {
        seen,
        record,
        verdict,
    } = finding;
    let lane = record.key;
    if *verdict != WitnessVerdict::Lost || record.halted.is_some() {
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
