//! A rolling deploy: all nodes are drained and started again, one after another.

use std::time::Duration;

use tokio::time::Instant;

use super::{Machine, Scene};

/// The longest pause between two deploys.
const PAUSE_MS_MAX: u64 = 60_000;
/// After this the deploy goes on with the next node.
const NEXT_AFTER: Duration = Duration::from_secs(30);
/// How often is looked whether a node is back.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn deploy_for_ever(scene: Scene) {
    loop {
        scene.rest(0, PAUSE_MS_MAX).await;
        for machine in scene.machines.iter().filter(|machine| machine.is_present()) {
            machine.drain();
            until_up_again(machine).await;
        }
    }
}

async fn until_up_again(machine: &Machine) {
    let latest = Instant::now() + NEXT_AFTER;
    let before = machine.lives();
    while Instant::now() < latest && (machine.lives() == before || !machine.is_up()) {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
