//! Leases: mostly of the keeper with its present grant, sometimes of a former one.

use domain::{Incarnation, LaneKey, LeaseGrant, Token};
use engine::ports::LeaseRequest;
use sim::rng::Rng;

use crate::model::Model;
use crate::operation::LeaseCall;
use crate::universe::{self, LANES, NO_LANE, NODES};

/// A node requests some lanes, each once.
pub(super) fn acquire(rng: &Rng, model: &mut Model) -> LeaseCall {
    let mut lanes = shuffled(rng, &universe::lanes());
    lanes.truncate(usize::try_from(rng.between(1, LANES as u64)).expect("few lanes"));
    let new = lanes.iter().filter(|key| !is_known(model, **key)).count();
    if new > 1 {
        // Every store numbers them in its own order, and the feed goes by these numbers.
        lanes.retain(|key| is_known(model, *key) || !universe::is_huge(*key));
        lanes.sort_unstable();
    }
    let lease_request = requester(rng, model);
    LeaseCall::Acquire(
        lease_request,
        lanes.into_iter().map(|key| (key, model.grant())).collect(),
    )
}

pub(super) fn is_known(model: &Model, key: LaneKey) -> bool {
    model.lanes[universe::place_of(key)].is_known
}

pub(super) fn renew(rng: &Rng, model: &mut Model) -> LeaseCall {
    let lease_grants = lease_grants(rng, model);
    LeaseCall::Renew(keeper_of(rng, model, &lease_grants), lease_grants)
}

pub(super) fn release(rng: &Rng, model: &mut Model) -> LeaseCall {
    let lease_grants = lease_grants(rng, model);
    LeaseCall::Release(keeper_of(rng, model, &lease_grants), lease_grants)
}

pub(super) fn regrant(rng: &Rng, model: &mut Model) -> LeaseCall {
    let lease_grant = lease_grant(rng, model);
    let again = rng.permille(150);
    let grant = if again {
        lease_grant.grant
    } else {
        model.grant()
    };
    LeaseCall::Regrant(lease_grant, grant)
}

pub(super) fn halt(rng: &Rng, model: &mut Model) -> LeaseCall {
    // The reason of a halt has no NUL.
    let reason = universe::random_text(rng).replace('\0', "");
    LeaseCall::Halt(lease_grant(rng, model), reason)
}

pub(super) fn key(rng: &Rng) -> LaneKey {
    *rng.pick(&universe::lanes())
}

/// A node: mostly in its present incarnation; in a new one; or in a replaced one.
pub(super) fn requester(rng: &Rng, model: &mut Model) -> LeaseRequest {
    let (node, incarnation) = incarnation(rng, model);
    let incarnations = |rng: &Rng| -> Vec<Incarnation> {
        let nodes = (0..NODES.len()).filter(|_| rng.permille(400));
        nodes
            .map(|node| universe::incarnation(node, model.incarnations[node]))
            .collect()
    };
    let (mut alive, mut silent) = (Vec::new(), Vec::new());
    if rng.permille(200) {
        alive = incarnations(rng);
    }
    if rng.permille(150) {
        silent = incarnations(rng);
    }
    LeaseRequest {
        alive,
        silent,
        ..universe::requester(rng, node, incarnation)
    }
}

pub(super) fn incarnation(rng: &Rng, model: &mut Model) -> (usize, u64) {
    let node = usize::try_from(rng.below(NODES.len() as u64)).expect("few nodes");
    let chance = rng.below(1_000);
    let incarnation = match chance {
        0..100 => {
            model.incarnations[node] += 1;
            model.incarnations[node]
        }
        100..170 => model.incarnations[node].saturating_sub(1),
        _ => model.incarnations[node],
    };
    (node, incarnation)
}

/// The keeper of the first of these, mostly.
fn keeper_of(rng: &Rng, model: &mut Model, lease_grants: &[LeaseGrant]) -> LeaseRequest {
    let first = lease_grants.first().and_then(|lease_grant| {
        let place = usize::try_from(lease_grant.lane.0).ok()?;
        model.lanes.get(place)
    });
    match first {
        Some(lane) if rng.permille(850) => {
            let (node, incarnation) = lane.keeper;
            universe::requester(rng, node, incarnation)
        }
        Some(_) | None => requester(rng, model),
    }
}

fn lease_grants(rng: &Rng, model: &mut Model) -> Vec<LeaseGrant> {
    let count = rng.between(1, 3);
    (0..count).map(|_| lease_grant(rng, model)).collect()
}

/// A right of any lane.
pub(super) fn lease_grant(rng: &Rng, model: &mut Model) -> LeaseGrant {
    let place = usize::try_from(rng.below(LANES as u64)).expect("few lanes");
    grant_of(rng, model, place)
}

/// A right of this lane: the present one, mostly.
pub(super) fn grant_of(rng: &Rng, model: &mut Model, place: usize) -> LeaseGrant {
    let unknown = LeaseGrant {
        lane: universe::lane_id(place),
        token: Token(1),
        grant: model.grant(),
    };
    let lane = &model.lanes[place];
    let Some(lease_grant) = lane.lease_grant else {
        return unknown;
    };
    let chance = rng.below(1_000);
    match chance {
        0..780 => lease_grant,
        780..900 if !lane.past.is_empty() => *rng.pick(&lane.past),
        900..940 => LeaseGrant {
            token: lease_grant.token.next(),
            ..lease_grant
        },
        940..970 => LeaseGrant {
            lane: NO_LANE,
            ..lease_grant
        },
        970..1_000 => unknown,
        _ => lease_grant,
    }
}

pub(super) fn shuffled<T: Copy>(rng: &Rng, from: &[T]) -> Vec<T> {
    let mut rest = from.to_vec();
    let mut out = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let next = usize::try_from(rng.below(rest.len() as u64)).expect("a place in it");
        out.push(rest.swap_remove(next));
    }
    out
}
