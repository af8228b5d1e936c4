//! An operator who checks halted lanes and accepts their losses, at any node that answers. Sometimes also
//! for a lane without a loss, which must change nothing.

use domain::LaneKey;

use super::WorkloadContext;
use crate::event::WorldEvent;
use crate::world::features::Feature;

/// How often the lanes are checked, at most.
const POLL_MS_MAX: u64 = 10_000;

pub(super) async fn accept_losses(context: WorkloadContext) {
    loop {
        context.pause(POLL_MS_MAX / 4, POLL_MS_MAX).await;
        let machine = context.pick_machine().clone();
        let read = context.call_node(&machine, |node| async move {
            node.lanes(None, usize::MAX).await
        });
        let Some(Ok(lanes)) = read.await else {
            continue;
        };
        for lane in lanes.iter().filter(|lane| lane.record.halted.is_some()) {
            accept_loss(&context, lane.record.key).await;
        }
        // Where the store may lose commits, a loss is never accepted in advance.
        let is_safe = context.plan.lossy_failover.is_none();
        if is_safe && context.has_faults() && context.rng.permille(50) {
            let lane = *context.rng.pick(&context.plan.lanes());
            accept_loss(&context, lane).await;
        }
    }
}

async fn accept_loss(context: &WorkloadContext, lane: LaneKey) {
    let machine = context.pick_machine().clone();
    let reason = "the operator has checked it";
    let answer = context.call_node(&machine, |node| async move {
        node.accept_loss(lane, reason).await
    });
    if let Some(Ok(true)) = answer.await {
        context.trace.fire(Feature::Operator);
        context.trace.record(WorldEvent::LossAccepted {
            lane,
            node: machine.name().clone(),
        });
    }
}
