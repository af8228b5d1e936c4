//! Nodes that join during the run, and nodes that leave permanently. Both move lanes.

use super::WorkloadContext;
use crate::world::features::Feature;

/// The most nodes that leave.
const DEPARTURES_MAX: u64 = 2;

pub(super) async fn join_nodes(context: WorkloadContext) {
    let newcomers = context.machines.iter();
    let newcomers = newcomers.filter(|machine| context.plan.newcomers.contains(machine.name()));
    for machine in newcomers {
        tokio::time::sleep(context.pick_time() / 2).await;
        context.trace.fire(Feature::Newcomers);
        // Detached: the task ends with the world.
        drop(tokio::spawn(machine.clone().run()));
    }
}

/// At least one node always stays.
pub(super) async fn remove_nodes(context: WorkloadContext) {
    for _ in 0..context.rng.between(1, DEPARTURES_MAX) {
        tokio::time::sleep(context.pick_time()).await;
        let machines = context.machines.iter();
        let present: Vec<_> = machines.filter(|machine| machine.is_present()).collect();
        if present.len() > 1 {
            context.trace.fire(Feature::Departures);
            let is_drained = context.rng.permille(500);
            context.rng.pick(&present).leave(is_drained);
        }
    }
}
