//! Nodes that join in the middle, and nodes that leave for good. Lanes move because of both.

use super::Scene;

/// The most nodes that leave.
const LEAVERS_MAX: u64 = 2;

pub(super) async fn join(scene: Scene) {
    let newcomers = scene.machines.iter();
    let newcomers = newcomers.filter(|machine| scene.plan.newcomers.contains(machine.name()));
    for machine in newcomers {
        tokio::time::sleep(scene.some_time() / 2).await;
        // The handle is let go: it ends with the world.
        drop(tokio::spawn(machine.clone().run()));
    }
}

/// Somebody always stays.
pub(super) async fn leave(scene: Scene) {
    for _ in 0..scene.rng.between(1, LEAVERS_MAX) {
        tokio::time::sleep(scene.some_time()).await;
        let machines = scene.machines.iter();
        let present: Vec<_> = machines.filter(|machine| machine.is_present()).collect();
        if present.len() > 1 {
            let is_drained = scene.rng.permille(500);
            scene.rng.pick(&present).leave(is_drained);
        }
    }
}
