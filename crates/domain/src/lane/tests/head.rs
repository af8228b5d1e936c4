//! The head of a lane: its reason in the lane's row, and the timeout after which a no-op takes its nonce.

use std::time::Duration;

use alloy_primitives::U256;

use super::rules;
use super::world::{Job, World};
use crate::lane::{HeadWait, LaneRules};
use crate::{AttemptKind, Nonce, SubState, TxId, TxState};

const UNDERFUNDED: u8 = 12;
const UNDERPRICED: u8 = 10;
/// A block in every so many seconds.
const BLOCK: u64 = 10;

/// Ends what is the head for a minute.
fn ending() -> LaneRules {
    let mut rules = LaneRules {
        blocked_timeout: Some(Duration::from_secs(60)),
        ..rules()
    };
    rules.resubmit.interval = None;
    rules
}

/// Txs that no node accepts, for this reason.
fn refused(world: &mut World, count: usize, how: u8) -> Vec<TxId> {
    let ids = (0..count).map(|_| world.accept()).collect();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(how, |job| matches!(job, Job::Send(_)));
    world.commit();
    ids
}

/// Lets the chain make empty blocks, at each of which nodes answer like this to payloads.
fn pass_blocks(world: &mut World, blocks: u64, how: u8) {
    for _ in 0..blocks {
        world.tick(BLOCK * 1_000);
        world.commit();
        let is_payload = |job: &Job| matches!(job, Job::Send(out) if !out.to_all);
        world.answer_all(how, is_payload);
        world.commit();
        world.mine(0, true);
        world.deliver_all_but(is_payload);
    }
}

fn kinds(world: &World, id: TxId) -> Vec<AttemptKind> {
    let attempts = world.store.attempts_of(id);
    let mut kinds: Vec<AttemptKind> = attempts.iter().map(|attempt| attempt.kind).collect();
    kinds.sort_unstable();
    kinds
}

const REPLACED: [AttemptKind; 2] = [AttemptKind::Original, AttemptKind::Cancel];

#[test]
fn blocked_heads_end_one_at_a_time_and_only_when_the_nonce_is_final() {
    let mut world = World::ready(ending());
    let ids = refused(&mut world, 3, UNDERPRICED);
    pass_blocks(&mut world, 6, UNDERPRICED);
    assert_eq!(
        kinds(&world, ids[0]),
        [AttemptKind::Original],
        "59 s at most"
    );
    pass_blocks(&mut world, 2, UNDERPRICED);
    assert_eq!(kinds(&world, ids[0]), REPLACED);
    let tx = &world.store.rows[&ids[0]];
    assert_eq!(
        (tx.state, tx.sub_state),
        (TxState::Tracking, Some(SubState::Rejected))
    );
    let reason = tx.reason.clone().expect("it has one");
    assert!(reason.contains("lane.blockedTimeout"), "{reason}");
    assert!(reason.contains("the fee is too low"), "{reason}");

    world.mine(1, true);
    world.deliver_all();
    pass_blocks(&mut world, 6, UNDERPRICED);
    assert_eq!(world.store.rows[&ids[0]].state, TxState::FailedFinal);
    let second = kinds(&world, ids[1]);
    assert_eq!(second, [AttemptKind::Original], "counted anew");
    pass_blocks(&mut world, 2, UNDERPRICED);
    assert_eq!(kinds(&world, ids[1]), REPLACED);
    assert_eq!(kinds(&world, ids[2]), [AttemptKind::Original]);
    world.heal();
    super::invariants::at_the_end(&world);
}

#[test]
fn time_of_the_head_survives_takeovers_and_counts_with_blocks_only() {
    let mut world = World::ready(ending());
    let ids = refused(&mut world, 1, UNDERPRICED);
    pass_blocks(&mut world, 5, UNDERPRICED);
    // The chain stands still for an hour.
    for _ in 0..60 {
        world.tick(60_000);
        world.commit();
        world.answer_all(UNDERPRICED, |job| matches!(job, Job::Send(_)));
        world.commit();
    }
    assert_eq!(kinds(&world, ids[0]), [AttemptKind::Original]);
    let stored = world.store.head.clone().expect("it is stored");
    assert_eq!(stored.nonce, Nonce(0));
    assert!(stored.blocked_for >= Duration::from_secs(40), "{stored:?}");
    world.crash();
    world.deliver_all_but(|job| matches!(job, Job::Send(_)));
    world.answer_all(UNDERPRICED, |job| matches!(job, Job::Send(_)));
    world.commit();
    assert_eq!(kinds(&world, ids[0]), [AttemptKind::Original]);
    pass_blocks(&mut world, 3, UNDERPRICED);
    assert_eq!(kinds(&world, ids[0]), REPLACED);
    world.heal();
}

/// A node accepted it before the base fee rose above what it offers.
#[test]
fn head_that_offers_less_than_the_base_fee_shows_both_figures() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.accept();
    world.deliver_all();
    assert_eq!(world.lane.waiting_for(), None);
    assert_eq!(world.store.rows[&id].sub_state, Some(SubState::Submitted));
    for base_fee in [1_000, 1_100] {
        world.chain.base_fee = base_fee;
        world.mine(0, true);
        world.deliver_all();
        let reason = world.lane.waiting_for().expect("it waits");
        let demanded = format!("the chain demands {base_fee}");
        assert!(reason.contains(&demanded), "{reason}");
    }
    world.tick(0);
    world.tick(3_000);
    world.commit();
    let stored = world.store.head.clone().expect("it is stored");
    assert_eq!(
        (stored.nonce, stored.reason),
        (Nonce(0), world.lane.waiting_for())
    );
    world.chain.base_fee = 1_200;
    world.mine(0, true);
    world.deliver_all();
    world.tick(60_000);
    assert!(
        !world.lane.has_unstored_head(world.now),
        "a figure that changes is not written for its own sake"
    );
    world.chain.base_fee = 7;
    world.mine(1, true);
    world.deliver_all();
    assert_eq!(world.lane.waiting_for(), None);
    world.heal();
}

#[test]
fn no_op_that_the_account_cannot_pay_for_is_not_signed() {
    let mut world = World::ready(ending());
    world.balance = U256::from(1_000);
    let ids = refused(&mut world, 2, UNDERFUNDED);
    pass_blocks(&mut world, 30, UNDERFUNDED);
    assert_eq!(kinds(&world, ids[0]), [AttemptKind::Original]);
    let waits = world.lane.waiting_for().expect("blocked");
    assert!(waits.contains("cannot pay for a no-op"), "{waits}");
    world.balance = U256::from(u64::MAX);
    pass_blocks(&mut world, 4, UNDERFUNDED);
    assert_eq!(kinds(&world, ids[0]), REPLACED);
    assert_eq!(kinds(&world, ids[1]), [AttemptKind::Original]);
    world.heal();
}

#[test]
fn paused_lane_ends_nothing() {
    let mut world = World::ready(ending());
    let ids = refused(&mut world, 1, UNDERPRICED);
    world.input(crate::lane::Input::Pause(true));
    world.commit();
    pass_blocks(&mut world, 30, UNDERPRICED);
    assert_eq!(kinds(&world, ids[0]), [AttemptKind::Original]);
    world.heal();
}

#[test]
fn reason_of_the_head_is_in_the_lane_row_until_it_is_over() {
    let mut world = World::ready(rules());
    refused(&mut world, 3, UNDERFUNDED);
    let head = world.store.head.clone();
    let Some(HeadWait {
        nonce: Nonce(0),
        blocked_for: Duration::ZERO,
        reason: Some(reason),
    }) = head
    else {
        panic!("{head:?}");
    };
    assert!(reason.contains("the account cannot pay"), "{reason}");
    world.heal();
    assert_eq!(world.lane.head_wait(), None);
}

/// A node that is busy is no reason to write a row; if it lasts, the lane's row says so without one of a tx.
#[test]
fn lasting_reason_of_a_busy_node_is_stored_in_the_lane_row_alone() {
    const BUSY: u8 = 13;
    let mut world = World::ready(rules());
    let ids = refused(&mut world, 2, BUSY);
    let before = world.store.rows[&ids[0]].clone();
    for _ in 0..4 {
        world.tick(1_000);
        world.commit();
        world.answer_all(BUSY, |job| matches!(job, Job::Send(_)));
        world.commit();
    }
    let head = world.store.head.clone().and_then(|head| head.reason);
    assert!(head.is_some_and(|why| why.contains("no node accepts it at present")));
    assert_eq!(
        world.store.rows[&ids[0]], before,
        "its own row is not written"
    );
    world.heal();
}

/// The signer is busy when the no-op is to be signed: the tx keeps the reason for which it ends.
#[test]
fn busy_signer_does_not_hide_why_a_head_is_given_up() {
    const SIGNER_BUSY: u8 = 5;
    let mut world = World::ready(ending());
    let ids = refused(&mut world, 1, UNDERPRICED);
    for _ in 0..7 {
        world.tick(BLOCK * 1_000);
        world.commit();
        world.answer_all(UNDERPRICED, |job| matches!(job, Job::Send(_)));
        world.mine(0, true);
        world.deliver_all_but(|job| matches!(job, Job::Send(_) | Job::Sign(_)));
    }
    world.answer_all(SIGNER_BUSY, |job| matches!(job, Job::Sign(_)));
    world.commit();
    assert_eq!(world.lane.waiting_for().as_deref(), Some("no key"));
    world.heal();
    let tx = &world.store.rows[&ids[0]];
    assert_eq!(tx.state, TxState::FailedFinal);
    let reason = tx.reason.clone().expect("it has one");
    assert!(reason.contains("lane.blockedTimeout"), "{reason}");
}
