//! Blocks that come, go, and are too old for the view.

use uuid::Uuid;

use crate::lane::slots::Slot;
use crate::lane::{ConfirmationRules, Finality, Input, LaneRules};
use crate::{EventKind, Nonce, SubState, Tx, TxId, TxState};

use super::rules;
use super::world::{Job, World};

#[test]
fn reorged_tx_is_sent_again_at_once() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.deliver_all();
    world.mine(1, true);
    world.deliver_all();
    let gone = world.store.rows[&id].inclusion.clone().expect("mined");

    world.fork(1, 0, 0xff, true);
    world.follow();
    world.commit();
    let tx = &world.store.rows[&id];
    assert_eq!(
        (tx.state, tx.sub_state),
        (TxState::Tracking, Some(SubState::Reorged))
    );
    assert_eq!(tx.inclusion, None);
    let reported = EventKind::TxReorged {
        block_number: gone.block_number,
        block_hash: gone.block_hash,
        after_final: false,
    };
    assert!(
        world
            .store
            .events
            .iter()
            .any(|event| event.kind == reported)
    );
    assert!(
        world
            .jobs
            .iter()
            .any(|job| matches!(job, Job::Send(out) if out.hash == gone.tx_hash))
    );
    world.heal();
}

#[test]
fn reorged_final_result_is_reopened_and_reported() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.deliver_all();
    for _ in 0..3 {
        world.mine(1, true);
    }
    world.deliver_all();
    assert!(world.store.rows[&id].state.is_terminal());
    assert!(world.lane.is_idle() && world.lane.hashes().count() == 0);

    world.fork(3, 0, 0xff, true);
    world.follow();
    world.commit();
    assert!(!world.lane.is_idle(), "a final that is read again is work");
    world.deliver_all();
    let after_final = |kind: &EventKind| {
        matches!(
            kind,
            EventKind::TxReorged {
                after_final: true,
                ..
            }
        )
    };
    assert!(
        world
            .store
            .events
            .iter()
            .any(|event| after_final(&event.kind))
    );
    assert!(
        world.chain.pool.contains_key(&Nonce(0)),
        "its bytes left again"
    );
    world.heal();
    assert!(world.store.rows[&id].state.is_terminal());
}

/// A filler may have got the nonce in the same turn, after a reorg below the view. The store's unique index refuses such
/// a batch and the lane is loaded again; the step itself must not panic, because that ends the node.
#[test]
fn reopened_tx_takes_its_nonce_from_a_slot_of_the_same_turn() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.deliver_all();
    for _ in 0..3 {
        world.mine(1, true);
    }
    world.deliver_all();
    world.fork(3, 0, 0xff, true);
    world.follow();
    world.commit();

    let mut lane = world.lane.clone();
    let finished = world.store.rows[&id].clone();
    let filler = Tx {
        id: TxId(Uuid::from_u128(99)),
        state: TxState::Tracking,
        inclusion: None,
        ..finished.clone()
    };
    let slot = Slot::reopened(filler, Vec::new(), world.now);
    lane.slots.insert(lane.key(), Nonce(0), slot);
    let finals = vec![(finished, world.store.attempts_of(id))];
    let step = lane.step(Input::Finals(finals), world.now);
    assert!(
        (step.writes.updates.iter()).any(|tx| tx.id == id && tx.state == TxState::Tracking),
        "{:?}",
        step.writes
    );
}

#[test]
fn receipt_before_the_send_outcome_reports_both_steps() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(7, |job| matches!(job, Job::Send(_))); // taken, and the answer is lost
    world.mine(1, true);
    world.deliver_all();
    assert_eq!(
        world.store.story(id),
        ["TxAccepted", "TxSubmitted", "TxReceiptUpdated"]
    );
    world.heal();
}

#[test]
fn block_below_the_view_counts_only_with_proof() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.deliver_all();
    world.mine(1, false);
    for _ in 0..20 {
        world.mine(0, false);
    }
    while world.follow() {
        world.commit();
    }
    let hash = world.store.rows[&id].tx_hash.expect("signed");
    let mut receipts = world
        .chain
        .receipts(&[hash], world.rules.confirmations.finality.depth());
    let proof = std::mem::take(&mut receipts[0].above);
    world.input(Input::Receipts(receipts.clone()));
    assert_eq!(world.draft.rows[&id].inclusion, None, "no proof");

    for bad in [&proof[1..], &proof[..2], &[proof[0], proof[2], proof[1]]] {
        receipts[0].above = bad.to_vec();
        world.input(Input::Receipts(receipts.clone()));
        assert_eq!(world.draft.rows[&id].inclusion, None, "{bad:?}");
    }
    receipts[0].above = proof;
    world.input(Input::Receipts(receipts));
    assert!(world.draft.rows[&id].state.is_terminal());
    world.heal();
}

#[test]
fn progress_is_reported_only_when_configured() {
    for emit_progress in [true, false] {
        let mut world = World::ready(LaneRules {
            confirmations: ConfirmationRules {
                emit_progress,
                finality: Finality::Depth(3),
                ..rules().confirmations
            },
            ..rules()
        });
        let id = world.accept();
        world.deliver_all();
        for _ in 0..4 {
            world.mine(1, true);
            world.deliver_all();
        }
        let reported = world
            .store
            .story(id)
            .iter()
            .filter(|word| **word == "TxConfirmations")
            .count();
        assert_eq!(reported, if emit_progress { 2 } else { 0 });
    }
}

#[test]
fn revert_reason_is_added_while_the_block_is_not_final() {
    let mut world = World::ready(rules());
    let ids: Vec<TxId> = (0..12).map(|_| world.accept()).collect();
    world.deliver_all();
    world.mine(usize::MAX, true);
    world.deliver_all();
    let reverted = ids.iter().find_map(|id| {
        let mined = world.store.rows[id].inclusion.as_ref()?;
        (!mined.succeeded).then_some((*id, mined.tx_hash))
    });
    let (id, tx_hash) = reverted.expect("one in eight reverts");
    let explain = |world: &mut World, reason: &str| {
        let reason = reason.to_owned();
        world.input(Input::RevertReason { tx_hash, reason });
        world.commit();
    };
    let reason = |world: &World| {
        let mined = world.store.rows[&id].inclusion.as_ref();
        mined.and_then(|mined| mined.revert_reason.clone())
    };
    explain(&mut world, "paused");
    assert_eq!(reason(&world).as_deref(), Some("paused"));
    world.heal();
    assert_eq!(world.store.rows[&id].state, TxState::FailedFinal);
    explain(&mut world, "too late");
    assert_eq!(reason(&world).as_deref(), Some("paused"));
}

/// Whether the last report of a tx's confirmations says that it replaces what was reported before, and where it
/// continues.
fn last_report(world: &World) -> Option<(bool, Option<crate::B256>)> {
    let mut events = world.store.events.iter().rev();
    let reported = |kind: &EventKind| match *kind {
        EventKind::TxConfirmations {
            new_fork, since, ..
        } => Some((new_fork, since)),
        EventKind::TxAccepted { .. }
        | EventKind::TxAllocated { .. }
        | EventKind::TxSubmitted { .. }
        | EventKind::TxReceiptUpdated { .. }
        | EventKind::TxConfirmed { .. }
        | EventKind::TxFailed { .. }
        | EventKind::TxStuck { .. }
        | EventKind::TxReorged { .. }
        | EventKind::TxReplaced { .. }
        | EventKind::TxRequeued { .. }
        | EventKind::TxResubmitted { .. }
        | EventKind::LaneFenced { .. }
        | EventKind::LaneForeignNonce { .. }
        | EventKind::LaneForeignPending { .. } => None,
    };
    events.find_map(|event| reported(&event.kind))
}

/// The rules with a depth that leaves room for reports on the way.
fn reporting() -> LaneRules {
    let mut rules = rules();
    rules.confirmations.finality = Finality::Depth(5);
    rules
}

/// A tx in a block with three more on it, which are reported. Returns the view of the first of them.
fn reported_tx(world: &mut World) -> std::sync::Arc<crate::ChainView> {
    world.accept();
    world.deliver_all();
    world.mine(1, true);
    world.mine(0, true);
    world.deliver_all();
    let old = world.chain.view();
    world.mine(0, true);
    world.mine(0, true);
    world.deliver_all();
    assert_eq!(
        last_report(world).map(|(new_fork, _)| new_fork),
        Some(false)
    );
    old
}

#[test]
fn new_keeper_behind_its_predecessor_reports_no_fork() {
    let mut world = World::ready(reporting());
    let old = reported_tx(&mut world);
    let events = world.store.events.len();
    world.crash();
    world.jobs.clear();
    world.input(Input::Head(old)); // its endpoint is two blocks behind
    world.commit();
    let new = &world.store.events[events..];
    let is_report = |kind: &EventKind| matches!(kind, EventKind::TxConfirmations { .. });
    assert!(!new.iter().any(|event| is_report(&event.kind)), "{new:?}");
    world.mine(0, true);
    world.deliver_all();
    let (new_fork, since) = last_report(&world).expect("reported");
    assert!(
        !new_fork && since.is_some(),
        "it goes on where the last one ended"
    );
    world.heal();
}

#[test]
fn new_keeper_reports_the_fork_that_its_predecessor_did_not_see() {
    let mut world = World::ready(reporting());
    reported_tx(&mut world);
    world.chain.unwind(3, 0);
    for _ in 0..2 {
        world.chain.mine(0); // shorter than what was reported, and another branch
    }
    world.crash();
    world.deliver_all();
    let (new_fork, since) = last_report(&world).expect("reported");
    assert!(new_fork && since.is_none());
    world.heal();
}
