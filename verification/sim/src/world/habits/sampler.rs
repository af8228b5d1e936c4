//! Looks at how full the nodes are, for the checker of bounds.

use std::time::Duration;

use super::Scene;
use crate::event::WorldEvent;

/// How often.
const PERIOD: Duration = Duration::from_secs(2);

pub(super) async fn sample_for_ever(scene: Scene) {
    loop {
        tokio::time::sleep(PERIOD).await;
        for machine in scene.machines.iter().filter(|machine| machine.is_up()) {
            let asked = scene.lease_request(machine, |node| async move { node.load().await });
            if let Some(load) = asked.await {
                let node = machine.name().clone();
                scene.trace.show(&WorldEvent::Sampled { node, load });
            }
        }
    }
}
