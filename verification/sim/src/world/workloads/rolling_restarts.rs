//! A rolling deployment: all nodes are drained and started again, one after another.

use std::time::Duration;

use tokio::time::Instant;

use super::{Machine, WorkloadContext};
use crate::world::features::Feature;

/// The longest pause between two deployments.
const PAUSE_MS_MAX: u64 = 60_000;
/// After this the deployment continues with the next node.
const RESTART_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the state of a node is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn restart_nodes(context: WorkloadContext) {
    loop {
        context.pause(0, PAUSE_MS_MAX).await;
        for machine in context
            .machines
            .iter()
            .filter(|machine| machine.is_present())
        {
            context.trace.fire(Feature::Restarts);
            machine.drain();
            wait_until_running(machine).await;
        }
    }
}

async fn wait_until_running(machine: &Machine) {
    let latest = Instant::now() + RESTART_TIMEOUT;
    let before = machine.start_count();
    while Instant::now() < latest && (machine.start_count() == before || !machine.is_up()) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
