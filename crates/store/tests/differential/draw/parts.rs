//! The things that a keeper does to its txs, one by one. A part that finds no tx to do it to does nothing.

use domain::{AttemptKind, EventKind, Inclusion, Nonce, SubState, Tx, TxState};

use super::batch::Draft;
use crate::model::lane_event;
use crate::universe;

/// Adds one of them.
pub(super) fn add(draft: &mut Draft<'_>) {
    match draft.rng.below(20) {
        0..5 => accept(draft),
        5 => accept_without_nonce(draft),
        6..8 => adopt(draft),
        8 => sign(draft),
        9 => bump(draft),
        10 => sent(draft),
        11..13 => mine(draft),
        13 => finish(draft),
        14 => reopen(draft),
        15 => stick(draft),
        16 => requeue(draft),
        17 => pass_on(draft),
        18 => move_on(draft),
        _ => of_lane(draft),
    }
}

/// A new tx with a nonce, signed or not.
fn accept(draft: &mut Draft<'_>) {
    let Some(mut tx) = draft.new_tx() else { return };
    allocate_nonce(draft, &mut tx);
    let nonce = tx.nonce;
    draft.emit_event(&mut tx, EventKind::TxAccepted { nonce });
    draft.insert(tx);
}

/// Gives a tx the next nonce, or one that another tx lost; signs it, mostly.
fn allocate_nonce(draft: &mut Draft<'_>, tx: &mut Tx) {
    let next = draft.lane.next_nonce;
    let free = (0..next.0).map(Nonce);
    let free = free.filter(|nonce| draft.lane.holder(*nonce).is_none());
    let free = free.filter(|nonce| !draft.vacated.contains(nonce));
    let free: Vec<Nonce> = free.collect();
    let nonce = match draft.rng.below(10) {
        0..4 if !free.is_empty() => *draft.rng.pick(&free),
        // Another wallet consumed some.
        9 => Nonce(next.0 + draft.rng.below(3)),
        _ => next,
    };
    draft.lane.next_nonce = next.max(nonce.next());
    tx.nonce = Some(nonce);
    (tx.state, tx.sub_state) = (TxState::Allocated, Some(SubState::Waiting));
    if draft.rng.permille(600) {
        draft.sign(tx, AttemptKind::Original);
    }
}

fn accept_without_nonce(draft: &mut Draft<'_>) {
    let Some(mut tx) = draft.new_tx() else { return };
    draft.emit_event(&mut tx, EventKind::TxAccepted { nonce: None });
    draft.add_queue_row(tx.id);
    draft.insert(tx);
}

/// A waiting tx gets its nonce, or fails.
fn adopt(draft: &mut Draft<'_>) {
    let Some(mut tx) = draft.pick(|tx| draft.waits(tx)) else {
        return;
    };
    draft.remove_queue_row(tx.id);
    if draft.rng.permille(100) {
        (tx.state, tx.sub_state) = (TxState::FailedFinal, Some(SubState::Cancelled));
        tx.reason = Some(universe::random_text(draft.rng));
    } else {
        allocate_nonce(draft, &mut tx);
        let nonce = tx.nonce.expect("it was dealt");
        draft.emit_event(&mut tx, EventKind::TxAllocated { nonce });
    }
    draft.update(tx);
}

fn sign(draft: &mut Draft<'_>) {
    let unsigned = |tx: &Tx| tx.is_open() && tx.nonce.is_some() && tx.tx_hash.is_none();
    let Some(mut tx) = draft.pick(unsigned) else {
        return;
    };
    draft.sign(&mut tx, AttemptKind::Original);
    draft.update(tx);
}

/// Another attempt at the same nonce; the row hears of it, or not.
fn bump(draft: &mut Draft<'_>) {
    let Some(mut tx) = draft.pick(is_out) else {
        return;
    };
    let kind = *draft.rng.pick(&AttemptKind::ALL);
    draft.sign(&mut tx, kind);
    if draft.rng.permille(700) {
        let (tx_hash, nonce) = (tx.tx_hash.expect("signed"), tx.nonce.expect("signed"));
        draft.emit_event(
            &mut tx,
            EventKind::TxReplaced {
                tx_hash,
                nonce,
                kind,
            },
        );
        draft.update(tx);
    }
}

/// A node took an attempt: one that is there, or one of this batch.
fn sent(draft: &mut Draft<'_>) {
    let hashes: Vec<_> = draft.lane.attempts.keys().copied().collect();
    if hashes.is_empty() {
        return;
    }
    let hash = *draft.rng.pick(&hashes);
    let at = draft.at;
    draft.writes.first_sent.push((hash, at));
}

fn is_out(tx: &Tx) -> bool {
    tx.is_open() && tx.nonce.is_some() && tx.tx_hash.is_some()
}

/// It is in a block, with or without headers above.
fn mine(draft: &mut Draft<'_>) {
    let Some(mut tx) = draft.pick(is_out) else {
        return;
    };
    include(draft, &mut tx);
    tx.sub_state = Some(SubState::Mined);
    let mined = tx.inclusion.clone().expect("it is included");
    draft.emit_event(
        &mut tx,
        EventKind::TxReceiptUpdated {
            tx_hash: mined.tx_hash,
            block_number: mined.block_number,
            block_hash: mined.block_hash,
            succeeded: mined.succeeded,
        },
    );
    if let Some(counted) = tx.counted {
        draft.emit_event(
            &mut tx,
            EventKind::TxConfirmations {
                block_number: mined.block_number,
                block_hash: mined.block_hash,
                counted,
                count: 1,
                since: None,
                new_fork: false,
            },
        );
    }
    draft.update(tx);
}

fn include(draft: &mut Draft<'_>, tx: &mut Tx) {
    let nonce = tx.nonce.expect("only a tx with a nonce is mined");
    let (block, counted) = universe::block_of(draft.rng, nonce.0);
    let reason = universe::random_text(draft.rng);
    tx.inclusion = Some(Inclusion {
        tx_hash: tx.tx_hash.unwrap_or_default(),
        block_number: block.number,
        block_hash: block.hash,
        succeeded: draft.rng.permille(700),
        gas_used: draft.rng.bits(),
        effective_gas_price: u128::from(draft.rng.bits()),
        contract_address: None,
        revert_reason: draft.rng.permille(300).then_some(reason),
    });
    tx.counted = draft.rng.permille(700).then_some(counted.hash);
}

/// It is final: mined, or without its effect.
fn finish(draft: &mut Draft<'_>) {
    let Some(mut tx) = draft.pick(|tx| tx.is_open() && tx.nonce.is_some()) else {
        return;
    };
    if is_out(&tx) && draft.rng.permille(800) {
        include(draft, &mut tx);
        (tx.state, tx.sub_state) = (TxState::Confirmed, None);
        tx.confirmed_at = Some(draft.at);
        let mined = tx.inclusion.clone().expect("it is included");
        let counted = tx.counted.unwrap_or(mined.block_hash);
        draft.emit_event(
            &mut tx,
            EventKind::TxConfirmed {
                tx_hash: mined.tx_hash,
                block_number: mined.block_number,
                block_hash: mined.block_hash,
                counted,
                new_fork: draft.rng.permille(200),
            },
        );
    } else {
        (tx.state, tx.sub_state) = (TxState::FailedFinal, Some(SubState::Cancelled));
        let reason = universe::random_text(draft.rng);
        tx.reason = Some(reason.clone());
        draft.emit_event(&mut tx, EventKind::TxFailed { reason });
    }
    draft.update(tx);
}

/// A fork took it back.
fn reopen(draft: &mut Draft<'_>) {
    let finished = |tx: &Tx| !tx.is_open() && tx.nonce.is_some() && tx.tx_hash.is_some();
    let Some(mut tx) = draft.pick(finished) else {
        return;
    };
    (tx.state, tx.sub_state) = (TxState::Tracking, Some(SubState::Reorged));
    (tx.inclusion, tx.counted, tx.confirmed_at) = (None, None, None);
    draft.update(tx);
}

/// It needs an operator's decision; with its nonce, or held without one and without a queue row.
fn stick(draft: &mut Draft<'_>) {
    let Some(mut tx) = draft.pick(|tx| tx.is_open()) else {
        return;
    };
    let reason = universe::random_text(draft.rng);
    (tx.state, tx.sub_state) = (TxState::Stuck, Some(SubState::ForeignNonce));
    tx.reason = Some(reason.clone());
    if draft.rng.permille(300) {
        draft.remove_queue_row(tx.id);
        (tx.nonce, tx.tx_hash) = (None, None);
    }
    draft.emit_event(&mut tx, EventKind::TxStuck { reason });
    draft.update(tx);
}

/// Gives its nonce up and waits for another.
fn requeue(draft: &mut Draft<'_>) {
    let Some(tx) = draft.pick(|tx| tx.is_open() && tx.nonce.is_some()) else {
        return;
    };
    lose_nonce(draft, tx);
}

fn lose_nonce(draft: &mut Draft<'_>, mut tx: Tx) {
    let nonce = tx.nonce.take().expect("it was picked with one");
    (tx.tx_hash, tx.inclusion, tx.counted) = (None, None, None);
    (tx.state, tx.sub_state) = (TxState::Created, Some(SubState::Queued));
    draft.emit_event(
        &mut tx,
        EventKind::TxRequeued {
            nonce,
            foreign: None,
        },
    );
    draft.add_queue_row(tx.id);
    draft.update(tx);
}

/// One tx gives its nonce up, and another one takes it at once.
fn pass_on(draft: &mut Draft<'_>) {
    let Some(giver) = draft.pick(|tx| tx.is_open() && tx.nonce.is_some()) else {
        return;
    };
    let nonce = giver.nonce;
    lose_nonce(draft, giver);
    let Some(mut tx) = draft.pick(|tx| draft.waits(tx)) else {
        return;
    };
    draft.remove_queue_row(tx.id);
    tx.nonce = nonce;
    (tx.state, tx.sub_state) = (TxState::Allocated, Some(SubState::Waiting));
    draft.update(tx);
}

/// From one nonce to another in one batch.
fn move_on(draft: &mut Draft<'_>) {
    let Some(mut tx) = draft.pick(|tx| tx.is_open() && tx.nonce.is_some()) else {
        return;
    };
    draft.vacated.extend(tx.nonce);
    (tx.tx_hash, tx.inclusion, tx.counted) = (None, None, None);
    allocate_nonce(draft, &mut tx);
    draft.update(tx);
}

/// The lane itself: an event, its flag.
fn of_lane(draft: &mut Draft<'_>) {
    let hash = draft.model.hash();
    let nonce = draft.lane.next_nonce;
    let kind = lane_event(draft.rng, nonce, hash);
    draft.event(None, kind);
    if draft.rng.permille(400) {
        draft.writes.paused = Some(draft.rng.permille(500));
    }
}
