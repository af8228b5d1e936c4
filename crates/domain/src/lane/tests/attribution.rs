//! Commits that the store has lost: what they sent is found on the chain before anything is allocated.

use super::rules;
use super::store::Store;
use super::world::{Job, World, agreed, answered};
use crate::lane::{
    AccountNonces, Agreement, EndpointNonces, FOREIGN_FINALITY_DEPTH_MIN, Input, UNRECORDED_PREFIX,
};
use crate::{Nonce, SubState, Tx, TxId, TxState};

/// Two txs are in the store; the second is queued. Returns the store from before the second gets its nonce.
fn backup_with_a_queued_tx() -> (World, Store, TxId) {
    let mut world = World::ready(rules());
    world.accept();
    world.deliver_all();
    let queued = world.queue_elsewhere();
    let backup = world.store.clone();
    (world, backup, queued)
}

/// The queued tx is sent and mined, deep enough to count.
fn execute(world: &mut World) {
    world.input(Input::QueueChanged);
    world.deliver_all();
    world.show_payloads();
    blocks(world, FOREIGN_FINALITY_DEPTH_MIN + 2);
}

fn blocks(world: &mut World, count: u64) {
    for _ in 0..count {
        world.mine(usize::MAX, true);
        world.tick(1_000);
        world.deliver_all();
    }
}

/// The newest block of now becomes final, and one more answer comes.
fn end_search(world: &mut World) {
    blocks(world, FOREIGN_FINALITY_DEPTH_MIN + 4);
    settle(world);
}

/// Time for two answers of the chain.
fn settle(world: &mut World) {
    for _ in 0..10 {
        world.tick(1_000);
        world.deliver_all();
    }
}

fn unrecorded(world: &World) -> Vec<&Tx> {
    let rows = world.store.rows.values();
    let is_one = |tx: &&Tx| {
        tx.request
            .request_id
            .as_str()
            .starts_with(UNRECORDED_PREFIX)
    };
    rows.filter(is_one).collect()
}

#[test]
fn lost_commits_above_the_cursor_halt_the_lane_and_are_named() {
    let (mut world, backup, queued) = backup_with_a_queued_tx();
    execute(&mut world);
    world.restore(backup, false);
    settle(&mut world);
    let hash = unrecorded(&world)[0].tx_hash.expect("it was found");
    let reason = world.halted.clone().expect("it halts");
    assert!(
        reason.contains("nonces 1 to 1") && reason.contains(&hash.to_string()),
        "{reason}"
    );
    assert_eq!(world.store.rows[&queued].state, TxState::Created);
    assert_eq!(
        world.store.next_nonce,
        Nonce(1),
        "the proof of the loss stays"
    );
    // The keeper dies before the store knows that the lane is halted: the next one halts it.
    world.halted = None;
    world.restore(world.store.clone(), false);
    settle(&mut world);
    assert!(world.halted.is_some());
}

#[test]
fn queued_tx_that_a_lost_commit_executed_is_held_once_the_loss_is_accepted() {
    let (mut world, backup, queued) = backup_with_a_queued_tx();
    execute(&mut world);
    world.restore(backup, true);
    settle(&mut world);
    assert_eq!(world.halted, None);
    let held = &world.store.rows[&queued];
    assert_eq!(
        (held.state, held.sub_state),
        (TxState::Stuck, Some(SubState::ForeignNonce))
    );
    assert_eq!(
        unrecorded(&world)[0].state,
        TxState::FailedFinal,
        "it accounts for the request"
    );
    let next = world.accept();
    world.deliver_all();
    assert_eq!(world.store.rows[&next].nonce, Some(Nonce(2)));
    blocks(&mut world, 5);
    assert!(!world.is_reconciled, "an endpoint may be behind");
    end_search(&mut world);
    assert!(world.is_reconciled, "nothing that may be lost is open");
}

#[test]
fn repeat_of_a_lost_request_is_held_by_a_later_keeper_and_only_one() {
    let mut world = World::ready(rules());
    world.accept();
    world.deliver_all();
    let backup = world.store.clone();
    let lost = world.accept();
    world.deliver_all();
    world.show_payloads();
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN + 2);
    world.restore(backup, true);
    settle(&mut world);
    end_search(&mut world);
    assert!(world.is_reconciled);
    // Hours later, at another keeper.
    world.crash();
    world.deliver_all();
    world.tick(3_600_000);
    world.deliver_all();
    let again = world.accept_like(lost);
    let equal = world.accept_like(lost);
    world.deliver_all();
    assert_eq!(world.store.rows[&again].state, TxState::Stuck);
    assert_eq!(world.store.rows[&again].nonce, None);
    assert_eq!(world.store.rows[&equal].nonce, Some(Nonce(2)), "one to one");
}

#[test]
fn lane_that_lost_nothing_continues_without_reading_blocks() {
    let mut world = World::ready(rules());
    let first = world.accept();
    world.deliver_all();
    world.restore(world.store.clone(), false);
    let second = world.accept();
    assert_eq!(
        world.draft.rows[&second].nonce, None,
        "the chain has not answered"
    );
    world.deliver_all();
    assert_eq!(world.store.rows[&second].nonce, Some(Nonce(1)));
    assert_eq!(world.attributions, 0);
    end_search(&mut world);
    assert!(world.is_reconciled && world.halted.is_none());
    assert_eq!(world.attributions, 0);
    assert_eq!(world.store.rows[&first].state, TxState::Confirmed);
}

#[test]
fn nothing_is_allocated_while_an_unknown_transaction_is_pending() {
    let (mut world, backup, queued) = backup_with_a_queued_tx();
    world.input(Input::QueueChanged);
    world.deliver_all();
    world.show_payloads();
    world.restore(backup, true);
    settle(&mut world);
    assert_eq!(world.store.rows[&queued].state, TxState::Created, "not yet");
    assert!(
        world
            .lane
            .waiting_for()
            .is_some_and(|why| why.contains("may be lost"))
    );
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN + 4);
    settle(&mut world);
    assert_eq!(world.store.rows[&queued].state, TxState::Stuck);
}

#[test]
fn nothing_is_allocated_while_no_endpoint_shows_what_consumed_a_nonce() {
    let (mut world, backup, queued) = backup_with_a_queued_tx();
    execute(&mut world);
    let payloads = std::mem::take(&mut world.chain.payloads);
    world.restore(backup, true);
    settle(&mut world);
    let why = world.lane.waiting_for().expect("it waits");
    assert!(
        why.contains("nonce 1 is consumed, and no two endpoints"),
        "{why}"
    );
    assert_eq!(world.store.rows[&queued].state, TxState::Created);
    world.chain.payloads = payloads;
    blocks(&mut world, 6);
    assert_eq!(world.store.rows[&queued].state, TxState::Stuck);
    assert_eq!(world.lane.waiting_for(), None);
}

#[test]
fn foreign_transaction_between_own_nonces_is_recorded_and_does_not_halt() {
    let mut world = World::ready(rules());
    let first = world.accept();
    world.deliver_all();
    world.use_elsewhere(1);
    world.tick(61_000);
    world.deliver_all();
    let behind = world.accept();
    world.deliver_all();
    assert_eq!(world.store.rows[&behind].nonce, Some(Nonce(2)));
    world.chain.show_foreign();
    world.restore(world.store.clone(), false);
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN + 4);
    settle(&mut world);
    assert_eq!(world.halted, None);
    let next = world.accept();
    blocks(&mut world, 5);
    for id in [first, behind, next] {
        assert_eq!(world.store.rows[&id].state, TxState::Confirmed);
    }
    end_search(&mut world);
    assert!(world.is_reconciled);
}

#[test]
fn nonce_that_seemed_consumed_is_our_own_once_it_is_allocated() {
    let (mut world, backup, queued) = backup_with_a_queued_tx();
    world.restore(backup, true);
    let too_high = AccountNonces {
        latest: Nonce(3),
        pending: Nonce(3),
    };
    world.input(agreed(too_high));
    settle(&mut world);
    assert_eq!(world.store.rows[&queued].nonce, Some(Nonce(1)));
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN + 4);
    assert_eq!(unrecorded(&world), Vec::<&Tx>::new());
    let mined = &world.store.rows[&queued];
    assert!(!mined.is_open() && mined.inclusion.is_some());
}

fn nonces(latest: u64, pending: u64) -> AccountNonces {
    AccountNonces {
        latest: Nonce(latest),
        pending: Nonce(pending),
    }
}

/// The signer refuses for good what it is to sign.
fn refuse_signatures(world: &mut World) {
    world.deliver_all_but(|job| matches!(job, Job::Sign(_)));
    world.answer_all(7, |job| matches!(job, Job::Sign(_)));
    world.deliver_all_but(|job| matches!(job, Job::Sign(_)));
}

/// A lost commit has sent this tx at nonce 0, in place of what is pending there.
fn send_lost(world: &mut World, lost: TxId) {
    world.chain.pool.remove(&Nonce(0));
    assert!(world.chain.use_elsewhere(0));
    let payload = world.draft.rows[&lost].request.payload.clone();
    let hash = world.chain.pool[&Nonce(0)];
    world.chain.payloads.insert(hash, payload);
}

fn mine_lost(world: &mut World) {
    for _ in 0..FOREIGN_FINALITY_DEPTH_MIN + 2 {
        world.chain.mine(1);
    }
}

/// The first tx has a nonce and no signature, the second is queued. Commits that are lost afterwards end the first one and
/// send the second at its nonce.
fn backup_with_an_unsigned_tx() -> (World, Store, TxId) {
    let mut world = World::ready(rules());
    world.accept();
    world.deliver_all_but(|job| matches!(job, Job::Sign(_)));
    let queued = world.queue_elsewhere();
    let backup = world.store.clone();
    send_lost(&mut world, queued);
    (world, backup, queued)
}

#[test]
fn nonce_of_an_unsigned_tx_that_is_consumed_holds_the_request_it_paid() {
    let (mut world, backup, queued) = backup_with_an_unsigned_tx();
    mine_lost(&mut world);
    world.restore(backup, true);
    settle(&mut world);
    assert_eq!(world.store.rows[&queued].state, TxState::Stuck);
    assert_eq!(unrecorded(&world)[0].state, TxState::FailedFinal);
    let next = world.accept();
    world.deliver_all();
    assert_eq!(world.store.rows[&next].nonce, Some(Nonce(1)));
}

#[test]
fn nonce_that_a_tx_frees_unsigned_after_a_loss_is_searched_as_well() {
    let (mut world, backup, queued) = backup_with_an_unsigned_tx();
    mine_lost(&mut world);
    world.restore(backup, true);
    refuse_signatures(&mut world);
    settle(&mut world);
    assert_eq!(world.store.rows[&queued].state, TxState::Stuck);
    let next = world.accept();
    world.deliver_all();
    assert_eq!(world.store.rows[&next].nonce, Some(Nonce(1)));
}

#[test]
fn nothing_is_allocated_while_something_is_pending_where_a_tx_has_sent_nothing() {
    let (mut world, backup, queued) = backup_with_an_unsigned_tx();
    world.restore(backup, true);
    for _ in 0..10 {
        world.tick(1_000);
        world.deliver_all_but(|job| matches!(job, Job::Sign(_)));
    }
    assert_eq!(world.store.rows[&queued].state, TxState::Created, "not yet");
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN + 6);
    settle(&mut world);
    assert_eq!(world.store.rows[&queued].state, TxState::Stuck);
}

#[test]
fn nothing_is_allocated_while_the_nonce_of_a_sent_tx_is_consumed_without_a_receipt() {
    let mut world = World::ready(rules());
    world.accept();
    world.deliver_all();
    let queued = world.queue_elsewhere();
    let backup = world.store.clone();
    send_lost(&mut world, queued);
    world.chain.mine(1);
    world.restore(backup, true);
    settle(&mut world);
    assert_eq!(world.store.rows[&queued].state, TxState::Created, "not yet");
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN + 4);
    settle(&mut world);
    assert_eq!(world.store.rows[&queued].state, TxState::Stuck);
}

/// Seconds in which endpoints report this and nothing is mined.
fn report(world: &mut World, seconds: u64, reported: EndpointNonces) {
    let is_query = |job: &Job| matches!(job, Job::QueryNonces(_));
    for _ in 0..seconds {
        world.tick(1_000);
        world.deliver_all_but(is_query);
        if let Some(index) = world.jobs.iter().position(is_query) {
            world.jobs.remove(index);
            world.input(answered(reported));
        }
        world.deliver_all_but(is_query);
    }
}

#[test]
fn filler_does_not_end_the_search_for_what_may_be_pending_at_its_nonce() {
    let mut world = World::ready(rules());
    let failed = world.accept();
    world.accept();
    world.answer_all(
        7,
        |job| matches!(job, Job::Sign(unsigned) if unsigned.tx_id == failed),
    );
    world.deliver_all();
    let backup = world.store.clone();
    assert_eq!(world.lane.gaps(), [Nonce(0)]);
    // A lost commit sends this one at the gap, to an endpoint that does not answer now.
    let lost = world.accept();
    world.restore(backup, true);
    let living = EndpointNonces::new(nonces(0, 0), None, Agreement::Living);
    report(&mut world, 30, living);
    let is_filler = |tx: &&Tx| tx.request.request_id.as_str().contains("filler");
    let fillers = world.store.rows.values().filter(is_filler).count();
    assert_eq!(fillers, 1, "the txs behind the gap do not wait");
    let again = world.accept_like(lost);
    send_lost(&mut world, again);
    report(
        &mut world,
        10,
        EndpointNonces::new(nonces(0, 2), None, Agreement::Quorum),
    );
    assert_eq!(world.store.rows[&again].nonce, None);
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN + 6);
    settle(&mut world);
    assert_eq!(world.store.rows[&again].state, TxState::Stuck);
}

#[test]
fn endpoint_that_two_others_contradict_does_not_stop_the_lane_for_ever() {
    let (mut world, backup, queued) = backup_with_a_queued_tx();
    world.restore(backup, false);
    let mut reported = EndpointNonces::new(nonces(9, 9), Some(nonces(1, 1)), Agreement::Quorum);
    reported.third = reported.second;
    world.chain.mine(1);
    report(&mut world, 10, reported);
    assert_eq!(world.store.rows[&queued].nonce, None, "it may be right");
    for _ in 0..FOREIGN_FINALITY_DEPTH_MIN + 2 {
        world.mine(0, true);
        report(&mut world, 2, reported);
    }
    report(&mut world, 10, reported);
    assert_eq!(world.store.rows[&queued].nonce, Some(Nonce(1)));
    assert_eq!(world.halted, None);
}

#[test]
fn past_of_an_account_whose_lane_has_no_tx_does_not_halt_it() {
    let mut world = World::new(rules(), Nonce(0));
    for _ in 0..3 {
        world.chain.use_elsewhere(0);
        world.chain.mine(1);
    }
    world.chain.show_foreign();
    world.restore(world.store.clone(), false);
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN + 4);
    settle(&mut world);
    assert_eq!(world.halted, None);
    let first = world.accept();
    world.deliver_all();
    assert_eq!(world.store.rows[&first].nonce, Some(Nonce(3)));
}

/// Two txs are sent in lost commits; the first one is lost by the pool as well, so that no query shows the second.
fn lose_a_tx_behind_a_missing_nonce() -> (World, TxId) {
    let mut world = World::ready(rules());
    world.accept();
    world.deliver_all();
    let backup = world.store.clone();
    world.accept();
    let hidden = world.accept();
    world.deliver_all();
    world.show_payloads();
    world.mine(1, true);
    world.chain.pool.remove(&Nonce(1));
    world.restore(backup, true);
    settle(&mut world);
    (world, hidden)
}

#[test]
fn lost_tx_behind_a_missing_nonce_is_recorded_once_it_is_mined() {
    let (mut world, hidden) = lose_a_tx_behind_a_missing_nonce();
    let next = world.accept();
    world.deliver_all();
    assert_eq!(world.store.rows[&next].nonce, Some(Nonce(1)));
    end_search(&mut world);
    end_search(&mut world);
    assert_eq!(unrecorded(&world).len(), 1);
    let again = world.accept_like(hidden);
    world.deliver_all();
    assert_eq!(world.store.rows[&again].state, TxState::Stuck);
    end_search(&mut world);
    assert!(world.is_reconciled);
}

#[test]
fn nothing_is_allocated_while_a_node_reports_another_tx_after_a_loss() {
    let (mut world, _) = lose_a_tx_behind_a_missing_nonce();
    world.chain.pool.remove(&Nonce(2));
    world.use_elsewhere(1); // stands for the lost one: neither is an attempt of the store
    world.accept();
    let second = world.accept();
    world.deliver_all();
    let second = &world.store.rows[&second];
    assert_eq!(
        (second.nonce, second.sub_state),
        (Some(Nonce(2)), Some(SubState::ForeignPending))
    );
    let third = world.accept();
    world.deliver_all();
    assert_eq!(world.store.rows[&third].nonce, None);
}

#[test]
fn only_nonce_of_a_lane_is_searched_although_its_tx_freed_it() {
    let mut world = World::ready(rules());
    world.accept();
    refuse_signatures(&mut world);
    let queued = world.queue_elsewhere();
    let backup = world.store.clone();
    assert_eq!((backup.next_nonce, backup.queued.len()), (Nonce(1), 1));
    execute(&mut world);
    world.restore(backup, true);
    settle(&mut world);
    assert_eq!(world.store.rows[&queued].state, TxState::Stuck);
}
