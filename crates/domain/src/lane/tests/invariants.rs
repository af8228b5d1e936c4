//! What must hold after every step and every commit, whatever happens around the lane.

use std::collections::{BTreeMap, BTreeSet};

use crate::lane::UNRECORDED_PREFIX;
use crate::lane::reservations::RESERVATION_PREFIX;
use crate::lane::{Lane, LaneRules};
use crate::window::Release;
use crate::{AttemptKind, Nonce, SubState, TxId, TxState};

use super::chain::Chain;
use super::store::Store;
use super::world::World;

/// After a commit that wrote something.
pub(super) fn of_the_store(store: &Store) {
    states_fit_their_attempts(store);
    events_are_in_their_txs(store);
}

/// After every commit.
pub(super) fn of_memory(lane: &Lane, store: &Store, chain: &Chain) {
    nonces_have_no_hole(lane, store, chain);
    memory_fits_the_store(lane, store);
    nothing_is_open_below_the_floor(lane, store);
    memory_proves_no_more_than_the_store(lane, store);
    running_sum_is_that_of_the_rows(lane, store);
}

/// The sum is kept step by step; the next keeper starts from it.
fn running_sum_is_that_of_the_rows(lane: &Lane, store: &Store) {
    assert_eq!(lane.open_cost(), store.open_cost());
}

/// What is known as consumed follows from finished txs; a bound that is too high hides a hole for ever.
fn memory_proves_no_more_than_the_store(lane: &Lane, store: &Store) {
    let (memory, durable) = (lane.ledger.consumed_below(), store.consumed_below());
    assert!(
        memory <= durable,
        "consumed below {memory}, but {durable} is durable"
    );
}

/// The next load starts at the floor.
fn nothing_is_open_below_the_floor(lane: &Lane, store: &Store) {
    let floor = lane.floor_nonce();
    for tx in store.rows.values().filter(|tx| tx.is_open()) {
        assert!(
            tx.nonce.is_none_or(|nonce| nonce >= floor),
            "tx {} is open at {:?}, below the floor {floor}",
            tx.id,
            tx.nonce
        );
    }
}

/// At the end: everything is final on chain, once, or was refused by the signer.
pub(super) fn at_the_end(world: &World) {
    let (store, chain) = (&world.store, &world.chain);
    for tx in store.rows.values() {
        let attempts = store.attempts_of(tx.id);
        if tx.sub_state == Some(SubState::SigningFailed) {
            // Attempts at a nonce that a foreign transaction consumed may be there.
            let has_effect = attempts.iter().any(|a| chain.count(a.hash) > 0);
            assert!(
                !has_effect && tx.nonce.is_none(),
                "tx {} was refused",
                tx.id
            );
            continue;
        }
        let times: usize = attempts
            .iter()
            .map(|attempt| chain.count(attempt.hash))
            .sum();
        if times == 0 && tx.nonce.is_none() {
            // A filler, or one that was to be cancelled: a foreign transaction consumed its nonce.
            let is_over = matches!(
                tx.sub_state,
                Some(SubState::ForeignNonce | SubState::Rejected)
            );
            assert!(is_over && tx.state == TxState::FailedFinal, "{tx:?}");
            continue;
        }
        assert_eq!(times, 1, "tx {} was mined {times} times", tx.id);
        let inclusion = tx.inclusion.as_ref().expect("mined");
        let mined = attempts.iter().find(|a| a.hash == inclusion.tx_hash);
        let is_cancel = mined.is_some_and(|mined| mined.kind == AttemptKind::Cancel);
        assert!(
            chain.has(inclusion),
            "tx {} shows a block that is gone",
            tx.id
        );
        let expected = if inclusion.succeeded && !is_cancel {
            TxState::Confirmed
        } else {
            TxState::FailedFinal
        };
        assert_eq!(tx.state, expected);
    }
}

/// Nonces below the cursor: held, used, or a gap that the lane knows of.
fn nonces_have_no_hole(lane: &Lane, store: &Store, chain: &Chain) {
    let mut gaps: BTreeSet<Nonce> = lane.gaps().into_iter().collect();
    gaps.extend(lane.ledger.contested());
    for nonce in (chain.start.0..store.next_nonce.0).map(Nonce) {
        let is_held = store.holder(nonce).is_some();
        let is_gap = gaps.contains(&nonce);
        assert!(
            !(is_held && is_gap),
            "nonce {nonce} is held and could be allocated again"
        );
        // A lane that was just read learns of its gaps together with the chain's nonce. What lost commits sent, its
        // search finds.
        assert!(
            is_held
                || is_gap
                || lane.reconciliation.is_searching()
                || lane.reconciliation.stored.is_some()
                || chain.was_used_elsewhere(nonce)
                || store.unrecorded_at(nonce).is_some(),
            "nonce {nonce} is forgotten"
        );
    }
    assert!(
        gaps.iter().all(|gap| *gap < lane.next_nonce()),
        "a gap above the cursor"
    );
}

fn states_fit_their_attempts(store: &Store) {
    let with_attempts: BTreeSet<TxId> = store.attempts.values().map(|a| a.tx_id).collect();
    for tx in store.rows.values() {
        let has_attempt = with_attempts.contains(&tx.id);
        let is_reservation = tx
            .request
            .request_id
            .as_str()
            .starts_with(RESERVATION_PREFIX);
        if is_reservation && tx.state == TxState::FailedFinal {
            continue; // released, whatever was named for it, or consumed by another reservation's transaction
        }
        if tx
            .request
            .request_id
            .as_str()
            .starts_with(UNRECORDED_PREFIX)
        {
            let is_ended = matches!(tx.state, TxState::Stuck | TxState::FailedFinal);
            assert!(is_ended && tx.nonce.is_none() && !has_attempt, "{tx:?}");
            continue; // its transaction is none of a stored attempt
        }
        // One that was given another nonce keeps its old attempts.
        let (has_nonce, is_signed) = match tx.state {
            TxState::Created => (false, false),
            TxState::Allocated => (true, false),
            TxState::Tracking | TxState::Confirmed => (true, true),
            // A foreign transaction may have consumed its nonce.
            TxState::Stuck | TxState::FailedFinal => (tx.nonce.is_some(), tx.nonce.is_some()),
        };
        assert_eq!(
            (tx.nonce.is_some(), tx.tx_hash.is_some()),
            (has_nonce, is_signed),
            "{tx:?}"
        );
        assert!(has_attempt || !is_signed, "{tx:?}");
        assert_eq!(
            store.queued.contains(&tx.id),
            tx.state == TxState::Created,
            "{tx:?}"
        );
    }
}

fn events_are_in_their_txs(store: &Store) {
    let mut seqs: BTreeMap<TxId, Vec<u64>> = BTreeMap::new();
    for event in &store.events {
        if let Some(id) = event.tx_id {
            seqs.entry(id).or_default().push(event.seq);
        }
    }
    for tx in store.rows.values() {
        let reported = seqs.remove(&tx.id).unwrap_or_default();
        assert_eq!(
            tx.history.event_seqs, reported,
            "the history of tx {}",
            tx.id
        );
        let story = store.story(tx.id);
        assert!(
            story.first().is_none_or(|word| *word == "TxAccepted"),
            "{story:?}"
        );
    }
    assert!(seqs.is_empty(), "events of txs that do not exist");
}

/// Every open tx with a nonce is in memory, or will be read from the store.
fn memory_fits_the_store(lane: &Lane, store: &Store) {
    let unmined = lane.slots.unmined(..).count() as u64;
    assert_eq!(lane.slots.unmined_len(), unmined);
    let attempts = lane.slots.iter().map(|(_, slot)| slot.attempts().len());
    assert_eq!(lane.slots.hashes().count(), attempts.sum(), "the index");
    for tx in store.rows.values().filter(|tx| tx.is_open()) {
        let Some(nonce) = tx.nonce else { continue };
        let will_be_read = lane.paging.backlog_from().is_some_and(|from| from <= nonce);
        match lane.slots.get(nonce) {
            Some(slot) => {
                assert_eq!(slot.tx.id, tx.id, "nonce {nonce} has another tx in memory");
                // A page that is on its way must not bring what is at the signer already.
                assert!(
                    !will_be_read || !slot.is_first_signing(),
                    "nonce {nonce} twice"
                );
            }
            None => assert!(will_be_read, "tx {} at nonce {nonce} is forgotten", tx.id),
        }
    }
    for (nonce, slot) in lane.slots.iter() {
        let row = store.holder(nonce).expect("a slot has a row");
        assert!(
            row.id == slot.tx.id && row.is_open(),
            "a slot without an open row: {row:?}"
        );
    }
}

/// After an allocation: not more nonces are unresolved than the window allows.
pub(super) fn window_is_kept(rules: &LaneRules, store: &Store) {
    let Some(limit) = rules.capacity.window.limit else {
        return;
    };
    let open = store
        .rows
        .values()
        .filter(|tx| tx.is_open() && tx.nonce.is_some());
    let unresolved = open.filter(|tx| match rules.capacity.window.releases {
        Release::Mined => tx.inclusion.is_none(),
        Release::Final => true,
    });
    assert!(
        unresolved.count() as u64 <= limit,
        "more nonces are out than the window allows"
    );
}

/// What was in flight before a step.
pub(super) struct InFlight {
    nonces: Vec<Nonce>,
    depth: u64,
}

impl InFlight {
    pub(super) fn before(lane: &Lane) -> Self {
        Self {
            nonces: lane.slots.nonces_from(Nonce(0)).collect(),
            depth: lane.mempool.limit(),
        }
    }
}

/// What came into flight in this step had room, or stands below what was in flight already.
pub(super) fn mempool_depth_is_kept(before: &InFlight, after: &Lane) {
    let highest = after.slots.highest();
    let new = after
        .slots
        .nonces_from(Nonce(0))
        .filter(|nonce| before.nonces.binary_search(nonce).is_err());
    for nonce in new {
        let takes_a_gap = highest.is_some_and(|highest| nonce < highest);
        assert!(
            takes_a_gap || after.slots.unmined_len() <= before.depth,
            "nonce {nonce} came out without room"
        );
    }
}
