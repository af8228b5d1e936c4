//! Clocks of nodes that are set, forward and back, or stand still for a while. (That they are fast or slow
//! is decided when the machine is built.) Only wall clocks: a monotonic one is never set.

use super::{Machine, Scene};
use crate::event::WorldEvent;

/// The longest pause between two of these.
const PAUSE_MS_MAX: u64 = 20_000;
/// How far a clock is set, at most: a little, or by a day.
const JUMPS_MS: [u64; 3] = [500, 10_000, 86_400_000];
/// How long a clock stands still, at most.
const STILL_MS_MAX: u64 = 30_000;

pub(super) async fn set_for_ever(scene: Scene) {
    loop {
        scene.rest(0, PAUSE_MS_MAX).await;
        let machine = scene.some_machine();
        let clock = &machine.lines().clock;
        if scene.rng.permille(250) {
            tell(&scene, machine, "stands still".to_owned());
            clock.stand_still(true);
            scene.rest(0, STILL_MS_MAX).await;
            clock.stand_still(false);
            tell(&scene, machine, "goes on".to_owned());
            continue;
        }
        let most = *scene.rng.pick(&JUMPS_MS);
        let by = i64::try_from(scene.rng.between(1, most)).expect("a day is few milliseconds");
        let by = if scene.rng.permille(500) { by } else { -by };
        tell(&scene, machine, format!("set by {by} ms"));
        clock.jump(by);
    }
}

fn tell(scene: &Scene, machine: &Machine, what: String) {
    let node = machine.name().clone();
    scene.trace.tell(WorldEvent::NodeClock { node, what });
}
