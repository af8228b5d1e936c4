//! Who may write: mostly the keeper with its present right, sometimes somebody whose time is over.

use domain::{Incarnation, LaneKey, LeaseGrant, Token};
use engine::ports::LeaseRequest;
use sim::rng::Rng;

use crate::model::Model;
use crate::operation::Hold;
use crate::universe::{self, LANES, NO_LANE, NODES};

/// Somebody asks for some lanes, each once.
pub(super) fn acquire(rng: &Rng, model: &mut Model) -> Hold {
    let mut lanes = shuffled(rng, &universe::lanes());
    lanes.truncate(usize::try_from(rng.between(1, LANES as u64)).expect("few lanes"));
    let new = lanes.iter().filter(|key| !is_known(model, **key)).count();
    if new > 1 {
        // Every store numbers them in its own order, and the feed goes by these numbers.
        lanes.retain(|key| is_known(model, *key) || !universe::is_huge(*key));
        lanes.sort_unstable();
    }
    let lease_request = asker(rng, model);
    Hold::Acquire(
        lease_request,
        lanes.into_iter().map(|key| (key, model.grant())).collect(),
    )
}

pub(super) fn is_known(model: &Model, key: LaneKey) -> bool {
    model.lanes[universe::place_of(key)].is_known
}

pub(super) fn renew(rng: &Rng, model: &mut Model) -> Hold {
    let lease_grants = lease_grants(rng, model);
    Hold::Renew(keeper_of(rng, model, &lease_grants), lease_grants)
}

pub(super) fn release(rng: &Rng, model: &mut Model) -> Hold {
    let lease_grants = lease_grants(rng, model);
    Hold::Release(keeper_of(rng, model, &lease_grants), lease_grants)
}

pub(super) fn regrant(rng: &Rng, model: &mut Model) -> Hold {
    let lease_grant = lease_grant(rng, model);
    let again = rng.permille(150);
    let grant = if again {
        lease_grant.grant
    } else {
        model.grant()
    };
    Hold::Regrant(lease_grant, grant)
}

pub(super) fn halt(rng: &Rng, model: &mut Model) -> Hold {
    // The operator's words come from us, and have no NUL.
    let reason = universe::words(rng).replace('\0', "");
    Hold::Halt(lease_grant(rng, model), reason)
}

pub(super) fn key(rng: &Rng) -> LaneKey {
    *rng.pick(&universe::lanes())
}

/// A node: in its present life, mostly; in a new one; or in one that is over.
pub(super) fn asker(rng: &Rng, model: &mut Model) -> LeaseRequest {
    let (node, life) = life(rng, model);
    let lives = |rng: &Rng| -> Vec<Incarnation> {
        let nodes = (0..NODES.len()).filter(|_| rng.permille(400));
        nodes
            .map(|node| universe::life(node, model.lives[node]))
            .collect()
    };
    let (mut alive, mut silent) = (Vec::new(), Vec::new());
    if rng.permille(200) {
        alive = lives(rng);
    }
    if rng.permille(150) {
        silent = lives(rng);
    }
    LeaseRequest {
        alive,
        silent,
        ..universe::asker(rng, node, life)
    }
}

pub(super) fn life(rng: &Rng, model: &mut Model) -> (usize, u64) {
    let node = usize::try_from(rng.below(NODES.len() as u64)).expect("few nodes");
    let chance = rng.below(1_000);
    let life = match chance {
        0..100 => {
            model.lives[node] += 1;
            model.lives[node]
        }
        100..170 => model.lives[node].saturating_sub(1),
        _ => model.lives[node],
    };
    (node, life)
}

/// The keeper of the first of these, mostly.
fn keeper_of(rng: &Rng, model: &mut Model, lease_grants: &[LeaseGrant]) -> LeaseRequest {
    let first = lease_grants.first().and_then(|lease_grant| {
        let place = usize::try_from(lease_grant.lane.0).ok()?;
        model.lanes.get(place)
    });
    match first {
        Some(lane) if rng.permille(850) => {
            let (node, life) = lane.keeper;
            universe::asker(rng, node, life)
        }
        Some(_) | None => asker(rng, model),
    }
}

fn lease_grants(rng: &Rng, model: &mut Model) -> Vec<LeaseGrant> {
    let count = rng.between(1, 3);
    (0..count).map(|_| lease_grant(rng, model)).collect()
}

/// A right of any lane.
pub(super) fn lease_grant(rng: &Rng, model: &mut Model) -> LeaseGrant {
    let place = usize::try_from(rng.below(LANES as u64)).expect("few lanes");
    right_of(rng, model, place)
}

/// A right of this lane: the present one, mostly.
pub(super) fn right_of(rng: &Rng, model: &mut Model, place: usize) -> LeaseGrant {
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
