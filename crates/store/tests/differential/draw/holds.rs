//! Who may write: mostly the keeper with its present right, sometimes somebody whose time is over.

use domain::{Incarnation, LaneKey, Right, Token};
use engine::ports::Ask;
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
    let ask = asker(rng, model);
    Hold::Acquire(
        ask,
        lanes.into_iter().map(|key| (key, model.grant())).collect(),
    )
}

pub(super) fn is_known(model: &Model, key: LaneKey) -> bool {
    model.lanes[universe::place_of(key)].is_known
}

pub(super) fn renew(rng: &Rng, model: &mut Model) -> Hold {
    let rights = rights(rng, model);
    Hold::Renew(keeper_of(rng, model, &rights), rights)
}

pub(super) fn release(rng: &Rng, model: &mut Model) -> Hold {
    let rights = rights(rng, model);
    Hold::Release(keeper_of(rng, model, &rights), rights)
}

pub(super) fn regrant(rng: &Rng, model: &mut Model) -> Hold {
    let right = right(rng, model);
    let again = rng.permille(150);
    let grant = if again { right.grant } else { model.grant() };
    Hold::Regrant(right, grant)
}

pub(super) fn halt(rng: &Rng, model: &mut Model) -> Hold {
    // The operator's words come from us, and have no NUL.
    let reason = universe::words(rng).replace('\0', "");
    Hold::Halt(right(rng, model), reason)
}

pub(super) fn key(rng: &Rng) -> LaneKey {
    *rng.pick(&universe::lanes())
}

/// A node: in its present life, mostly; in a new one; or in one that is over.
pub(super) fn asker(rng: &Rng, model: &mut Model) -> Ask {
    let (node, life) = life(rng, model);
    let lives = |rng: &Rng| -> Vec<Incarnation> {
        let nodes = (0..NODES.len()).filter(|_| rng.permille(400));
        nodes
            .map(|node| universe::life(node, model.lives[node]))
            .collect()
    };
    let (mut lively, mut silent) = (Vec::new(), Vec::new());
    if rng.permille(200) {
        lively = lives(rng);
    }
    if rng.permille(150) {
        silent = lives(rng);
    }
    Ask {
        lively,
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
fn keeper_of(rng: &Rng, model: &mut Model, rights: &[Right]) -> Ask {
    let first = rights.first().and_then(|right| {
        let place = usize::try_from(right.lane.0).ok()?;
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

fn rights(rng: &Rng, model: &mut Model) -> Vec<Right> {
    let count = rng.between(1, 3);
    (0..count).map(|_| right(rng, model)).collect()
}

/// A right of any lane.
pub(super) fn right(rng: &Rng, model: &mut Model) -> Right {
    let place = usize::try_from(rng.below(LANES as u64)).expect("few lanes");
    right_of(rng, model, place)
}

/// A right of this lane: the present one, mostly.
pub(super) fn right_of(rng: &Rng, model: &mut Model, place: usize) -> Right {
    let unknown = Right {
        lane: universe::lane_id(place),
        token: Token(1),
        grant: model.grant(),
    };
    let lane = &model.lanes[place];
    let Some(right) = lane.right else {
        return unknown;
    };
    let chance = rng.below(1_000);
    match chance {
        0..780 => right,
        780..900 if !lane.past.is_empty() => *rng.pick(&lane.past),
        900..940 => Right {
            token: right.token.next(),
            ..right
        },
        940..970 => Right {
            lane: NO_LANE,
            ..right
        },
        970..1_000 => unknown,
        _ => right,
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
