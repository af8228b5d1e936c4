//! Endpoints that answer queries and hang on sends: one at a time, all at once, and all of them for one node only.

use super::WorkloadContext;
use crate::world::features::Feature;
use crate::world::machine::Machine;

/// How long sends hang, and how long the pause before it is.
const SPAN_MS: (u64, u64) = (2_000, 40_000);
/// How often all endpoints hang at once, and how often the sends of one node hang, per thousand.
const ALL_PERMILLE: u64 = 200;
const NODE_PERMILLE: u64 = 300;
/// In how many worlds per thousand the sends of one node hang for ever: its lanes must move.
const FOR_EVER_PERMILLE: u64 = 300;

pub(super) async fn hang_sends(context: WorkloadContext) {
    if context.machines.len() > 1 && context.rng.permille(FOR_EVER_PERMILLE) {
        context.pause(SPAN_MS.0, SPAN_MS.1).await;
        context.trace.fire(Feature::HungSends);
        context.machines[0].set_hangs_on_sends(true);
    }
    let endpoints = context.plan.chain.endpoints;
    loop {
        context.pause(SPAN_MS.0, SPAN_MS.1).await;
        context.trace.fire(Feature::HungSends);
        if context.rng.permille(NODE_PERMILLE) {
            hang_sends_of_a_node(&context).await;
            continue;
        }
        let one = context.rng.below(u64::try_from(endpoints).unwrap_or(1));
        let hanging: Vec<usize> = match context.rng.permille(ALL_PERMILLE) {
            true => (0..endpoints).collect(),
            false => usize::try_from(one).into_iter().collect(),
        };
        for endpoint in &hanging {
            context.chain.set_hangs_on_sends(*endpoint, true);
        }
        context.pause(SPAN_MS.0, SPAN_MS.1).await;
        for endpoint in hanging {
            context.chain.set_hangs_on_sends(endpoint, false);
        }
    }
}

/// A node other than the first, whose sends may hang for ever.
async fn hang_sends_of_a_node(context: &WorkloadContext) {
    let Some((_, others)) = context
        .machines
        .split_first()
        .filter(|(_, rest)| !rest.is_empty())
    else {
        return;
    };
    let machine = context.rng.pick(others);
    machine.set_hangs_on_sends(true);
    context.pause(SPAN_MS.0, SPAN_MS.1).await;
    machine.set_hangs_on_sends(false);
}

/// Ends the hanging of sends; that of the first node only where no other node is left to send.
pub(in crate::world) fn heal_hung_sends(machines: &[Machine]) {
    let Some((first, others)) = machines.split_first() else {
        return;
    };
    for machine in others {
        machine.set_hangs_on_sends(false);
    }
    if !others.iter().any(Machine::is_present) {
        first.set_hangs_on_sends(false);
    }
}
