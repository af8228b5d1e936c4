//! Samples the load of the nodes, for the checker of bounds.

use std::time::Duration;

use super::WorkloadContext;
use crate::event::WorldEvent;

/// How often.
const PERIOD: Duration = Duration::from_secs(2);

pub(super) async fn sample_load(context: WorkloadContext) {
    loop {
        tokio::time::sleep(PERIOD).await;
        for machine in context.machines.iter().filter(|machine| machine.is_up()) {
            let answer = context.call_node(machine, |node| async move { node.load().await });
            if let Some(load) = answer.await {
                let node = machine.name().clone();
                context
                    .trace
                    .check_only(&WorldEvent::Sampled { node, load });
            }
        }
    }
}
