//! Reads, mostly of rows that exist.

use domain::{Address, B256, ChainId, EventKind, LaneId, LaneKey, Nonce, TxId, TxState};
use engine::ports::{EventFilter, LanePlace, TxCursor, TxFilter};
use sim::rng::Rng;

use super::lease_calls;
use crate::model::Model;
use crate::operation::{After, Load, ReadCall};
use crate::universe::{self, LANES, NO_LANE};

/// Texts that are cursors of no store.
const NO_CURSORS: [&str; 4] = ["", "m-1", "nonsense", "00000000000000000000000000000000"];

pub(super) fn image(rng: &Rng, model: &mut Model) -> Load {
    let place = usize::try_from(rng.below(LANES as u64)).expect("few lanes");
    let lease_grant = lease_calls::grant_of(rng, model, place);
    Load::Image(
        universe::lanes()[place],
        lease_grant,
        *rng.pick(&[0, 1, 2, 64]),
    )
}

pub(super) fn backlog(rng: &Rng) -> Load {
    Load::Backlog(lane(rng), Nonce(rng.below(6)), limit(rng))
}

pub(super) fn find_requests(rng: &Rng) -> Load {
    let count = rng.below(5);
    let request = |_| (lease_calls::key(rng), universe::any_request_id(rng));
    Load::FindRequests((0..count).map(request).collect())
}

/// A lane, or none.
pub(super) fn lane(rng: &Rng) -> LaneId {
    if rng.permille(50) {
        return NO_LANE;
    }
    let place = usize::try_from(rng.below(LANES as u64)).expect("few lanes");
    universe::lane_id(place)
}

pub(super) fn limit(rng: &Rng) -> usize {
    *rng.pick(&[0, 1, 2, 3, 100])
}

/// A tx that is there, or one that is not.
pub(super) fn tx_id(rng: &Rng, model: &mut Model) -> TxId {
    let lanes = model.lanes.iter();
    let known: Vec<TxId> = lanes.flat_map(|lane| lane.txs.keys().copied()).collect();
    if known.is_empty() || rng.permille(100) {
        return model.tx_id(rng);
    }
    *rng.pick(&known)
}

pub(super) fn hash(rng: &Rng, model: &mut Model) -> B256 {
    let lanes = model.lanes.iter();
    let known: Vec<B256> = lanes
        .flat_map(|lane| lane.attempts.keys().copied())
        .collect();
    if known.is_empty() || rng.permille(100) {
        return model.hash();
    }
    *rng.pick(&known)
}

pub(super) fn tx_by_request(rng: &Rng) -> ReadCall {
    ReadCall::TxByRequest(lease_calls::key(rng), universe::any_request_id(rng))
}

pub(super) fn txs(rng: &Rng, model: &mut Model) -> ReadCall {
    let (chain_id, signer) = lane_filter(rng);
    let filter = TxFilter {
        chain_id,
        signer,
        state: rng.permille(250).then(|| *rng.pick(&TxState::ALL)),
        after: None,
        limit: *rng.pick(&[1, 2, 3, 100]),
    };
    let after = match (chain_id, signer) {
        _ if rng.permille(500) => None,
        _ if !filter.is_by_lane() => Some(TxCursor::After(tx_id(rng, model))),
        (Some(chain_id), Some(signer)) => {
            let lane = LaneKey { chain_id, signer };
            Some(TxCursor::InLane(lane, place(rng, model)))
        }
        // Which lanes follow one is an order of the store.
        (_, _) => None,
    };
    ReadCall::Txs(TxFilter { after, ..filter })
}

fn place(rng: &Rng, model: &mut Model) -> LanePlace {
    match rng.permille(500) {
        true => LanePlace::WithoutNonce(tx_id(rng, model)),
        false => LanePlace::WithNonce(Nonce(rng.below(6))),
    }
}

fn lane_filter(rng: &Rng) -> (Option<ChainId>, Option<Address>) {
    let key = lease_calls::key(rng);
    (
        rng.permille(250).then_some(key.chain_id),
        rng.permille(250).then_some(key.signer),
    )
}

pub(super) fn events(rng: &Rng, model: &Model) -> ReadCall {
    let (chain_id, signer) = lane_filter(rng);
    let kinds = match rng.permille(300) {
        true => some_kinds(rng),
        false => Vec::new(),
    };
    let limit = *rng.pick(&[1, 2, 3, 100]);
    let filter = EventFilter {
        after: None,
        chain_id,
        signer,
        kinds,
        limit,
    };
    if rng.permille(70) {
        return ReadCall::Events(After::Nonsense(rng.pick::<&str>(&NO_CURSORS)), filter);
    }
    if model.marks.is_empty() || rng.permille(350) {
        return ReadCall::Events(After::Start, filter);
    }
    let mark = usize::try_from(rng.below(model.marks.len() as u64)).expect("a place in it");
    let filter = match &model.marks[mark].filter {
        Some(of_page) => EventFilter {
            limit,
            ..of_page.clone()
        },
        None => filter,
    };
    ReadCall::Events(After::Mark(mark), filter)
}

fn some_kinds(rng: &Rng) -> Vec<String> {
    let random_text = EventKind::NAMES.into_iter().chain(["NoSuchKind"]);
    let some = random_text.filter(|_| rng.permille(300));
    some.map(str::to_owned).collect()
}

/// Some lanes, in any order, also twice; one of them does not exist.
pub(super) fn lanes(rng: &Rng) -> ReadCall {
    let stranger = LaneKey {
        chain_id: ChainId(5),
        signer: Address::ZERO,
    };
    let mut keys = lease_calls::shuffled(rng, &universe::lanes());
    keys.push(lease_calls::key(rng));
    keys.push(stranger);
    ReadCall::Lanes(keys)
}
