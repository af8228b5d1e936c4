//! An operator who looks after halted lanes: accepts what they have lost, at whichever node answers. Now and
//! then also for a lane that lacks nothing, which must change nothing.

use domain::LaneKey;

use super::Scene;
use crate::event::WorldEvent;

/// How often somebody looks, at most.
const LOOK_MS_MAX: u64 = 10_000;

pub(super) async fn accept_losses_for_ever(scene: Scene) {
    loop {
        scene.rest(LOOK_MS_MAX / 4, LOOK_MS_MAX).await;
        let machine = scene.some_machine().clone();
        let read = scene.lease_request(&machine, |node| async move { node.lanes().await });
        let Some(Ok(lanes)) = read.await else {
            continue;
        };
        for lane in lanes.iter().filter(|lane| lane.record.halted.is_some()) {
            accept(&scene, lane.record.key).await;
        }
        // Where the store may lose something, nobody says beforehand that it does not matter.
        let is_safe = scene.plan.lossy_failover.is_none();
        if is_safe && scene.is_restless() && scene.rng.permille(50) {
            let lane = *scene.rng.pick(&scene.plan.lanes());
            accept(&scene, lane).await;
        }
    }
}

async fn accept(scene: &Scene, lane: LaneKey) {
    let machine = scene.some_machine().clone();
    let reason = "the business has looked at it";
    let asked = scene.lease_request(&machine, |node| async move {
        node.accept_loss(lane, reason).await
    });
    if let Some(Ok(())) = asked.await {
        scene.trace.tell(WorldEvent::LossAccepted {
            lane,
            node: machine.name().clone(),
        });
    }
}
