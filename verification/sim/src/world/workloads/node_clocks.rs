//! Wall clocks of nodes that are set, forward and back, or frozen for a while. (Their drift is decided
//! when the machine is built.) A monotonic clock is never set.

use super::{Machine, WorkloadContext};
use crate::event::WorldEvent;
use crate::world::features::Feature;

/// The longest pause between two changes.
const PAUSE_MS_MAX: u64 = 20_000;
/// How far a clock is set, at most: a little, or by a day.
const JUMPS_MS: [u64; 3] = [500, 10_000, 86_400_000];
/// How long a clock is frozen, at most.
const FREEZE_MS_MAX: u64 = 30_000;

pub(super) async fn disturb_clocks(context: WorkloadContext) {
    loop {
        context.pause(0, PAUSE_MS_MAX).await;
        let machine = context.pick_machine();
        let clock = &machine.links().clock;
        if context.rng.permille(250) {
            record(&context, machine, "is frozen".to_owned());
            clock.freeze_wall_time(true);
            context.pause(0, FREEZE_MS_MAX).await;
            clock.freeze_wall_time(false);
            record(&context, machine, "continues".to_owned());
            continue;
        }
        let most = *context.rng.pick(&JUMPS_MS);
        let by = i64::try_from(context.rng.between(1, most)).expect("a day is few milliseconds");
        let by = if context.rng.permille(500) { by } else { -by };
        record(&context, machine, format!("set by {by} ms"));
        clock.jump(by);
    }
}

fn record(context: &WorkloadContext, machine: &Machine, what: String) {
    let node = machine.name().clone();
    context.trace.fire(Feature::NodeClocks);
    context.trace.record(WorldEvent::NodeClock { node, what });
}
