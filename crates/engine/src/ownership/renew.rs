//! Renewing leases, and the heartbeat by which other nodes see that this one is alive.

use std::sync::Arc;

use domain::lease::LeaseTrust;
use domain::{LaneKey, LeaseGrant};
use metrics::counter;

use crate::core::Core;
use crate::ports::{HeartbeatOutcome, RenewOutcome, StoreError};
use crate::shard::Message;

/// The most lanes of one renewal statement.
const RENEW_CHUNK: usize = 500;

/// Renews all leases and sends a heartbeat, at every interval. The heartbeat follows only renewals that succeeded:
/// a node that others see at work does renew its lanes.
pub(crate) async fn run_renewals(core: Arc<Core>) {
    let interval = core.config.lease.renew_interval;
    let mut began = core.ports.clock.monotonic();
    loop {
        let took = core.ports.clock.monotonic().since(began);
        core.ports.clock.sleep(interval.saturating_sub(took)).await;
        began = core.ports.clock.monotonic();
        let mut all_renewed = true;
        for chunk in core.leases.grants().chunks(RENEW_CHUNK) {
            all_renewed &= renew_leases(&core, chunk).await;
        }
        if all_renewed && !process_heartbeat(&core).await {
            return;
        }
    }
}

/// Renews leases. Returns whether the store answered.
async fn renew_leases(core: &Arc<Core>, lanes: &[(LaneKey, LeaseGrant)]) -> bool {
    let requested_at = core.ports.clock.monotonic();
    let lease_grants: Vec<LeaseGrant> = lanes.iter().map(|(_, lease_grant)| *lease_grant).collect();
    let lease_request = core.lease_request();
    let answers = match core.ports.store.renew(&lease_request, &lease_grants).await {
        Ok(answers) => answers,
        Err(error) => {
            // Trust expires by itself: nothing is sent until a renewal succeeds.
            counter!("lanekeeper_lease_renew_failed_total").increment(lanes.len() as u64);
            tracing::warn!(%error, lanes = lanes.len(), "leases could not be renewed");
            return false;
        }
    };
    let trust = LeaseTrust::from(requested_at, core.config.lease.duration);
    for ((lane, lease_grant), answer) in lanes.iter().zip(answers) {
        match answer {
            RenewOutcome::Renewed => core.leases.record_renewal(*lane, *lease_grant, trust),
            RenewOutcome::Busy => {}
            RenewOutcome::Lost => {
                counter!("lanekeeper_lease_fenced_total", "op" => "renew").increment(1);
                tracing::warn!(%lane, token = %lease_grant.token, "lease lost: another node keeps this lane now");
                notify_lease_lost(core, *lane, *lease_grant);
            }
        }
    }
    true
}

/// In a task of its own: a full inbox of one shard must not hold up the renewals of all.
fn notify_lease_lost(core: &Arc<Core>, lane: LaneKey, lease_grant: LeaseGrant) {
    core.leases.forget_grant(lane, lease_grant);
    let notifier = Arc::clone(core);
    core.tasks.spawn("lost lease", async move {
        notifier
            .send_to_shard(lane, Message::LeaseLost { lane, lease_grant })
            .await;
    });
}

/// Sends a heartbeat and acts upon its outcome. `false`: a newer incarnation has replaced this one, which ends.
pub(crate) async fn process_heartbeat(core: &Arc<Core>) -> bool {
    match send_heartbeat(core).await {
        Ok(IncarnationStatus::Current) => {
            if core.history.take_changed() {
                on_history_changed(core);
            }
        }
        Ok(IncarnationStatus::Replaced) => {
            let node = &core.config.name;
            tracing::error!(%node, "another process runs under this node's name; this one ends. Give every node its own node.name");
            core.tasks.kill();
            return false;
        }
        Err(error) => tracing::warn!(%error, "the heartbeat could not be written"),
    }
    true
}

/// Whether a heartbeat found this incarnation of the node to be the newest.
pub(crate) enum IncarnationStatus {
    Current,
    Replaced,
}

/// Sends one heartbeat. A changed history of the store is recorded; the next regular heartbeat acts upon it.
pub(crate) async fn send_heartbeat(core: &Core) -> Result<IncarnationStatus, StoreError> {
    let requested_at = core.ports.clock.monotonic();
    match core.ports.store.heartbeat(&core.member()).await? {
        HeartbeatOutcome::Recorded { members, history } => {
            let now = core.ports.clock.monotonic();
            let observation_max = core.config.lease.renew_interval.saturating_mul(2);
            core.cluster
                .observe_members(members, requested_at, now, observation_max);
            core.record_heartbeat();
            core.history.observe_history(history);
            core.record_load();
            Ok(IncarnationStatus::Current)
        }
        HeartbeatOutcome::Replaced => Ok(IncarnationStatus::Replaced),
    }
}

/// A standby was promoted, a restore declared, or a loss suspected: the last commits may be lost. Every lane that was opened
/// before leaves memory, and is opened again only after it was compared with its chain.
fn on_history_changed(core: &Arc<Core>) {
    counter!("lanekeeper_store_history_changes_total").increment(1);
    tracing::error!(
        "the store's history changed (a standby was promoted, a restore declared, or commits were found to be missing): every \
         lane is compared with its chain before it takes work again"
    );
    for (lane, lease_grant) in core.leases.grants() {
        if core.leases.history_of(lane, lease_grant) == core.history.present() {
            continue; // it was opened since
        }
        core.leases.forget_grant(lane, lease_grant);
        let notifier = Arc::clone(core);
        core.tasks.spawn("history changed", async move {
            let lost = Message::LeaseLost { lane, lease_grant };
            notifier.send_to_shard(lane, lost).await;
            let has_queued = false;
            let wake = Message::Wake { lane, has_queued };
            notifier.send_to_shard(lane, wake).await;
        });
    }
}
