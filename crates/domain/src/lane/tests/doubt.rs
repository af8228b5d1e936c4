//! Answers that cannot be believed, and what vanishes after it was seen.

use super::rules;
use super::world::{Job, World, agreed};
use crate::lane::{AccountNonces, Input};
use crate::{Nonce, Timestamp};

/// The good answer of a signer or a node, a refusal by the signer, and a node that is busy.
const GOOD: u8 = 0;
const REFUSED: u8 = 7;
const BUSY: u8 = 13;

fn says(world: &mut World, latest: u64, pending: u64) {
    let (latest, pending) = (Nonce(latest), Nonce(pending));
    world.input(agreed(AccountNonces { latest, pending }));
    world.commit();
}

#[test]
fn a_pending_nonce_that_vanishes_is_a_gap() {
    let mut world = World::ready(rules());
    says(&mut world, 0, 1); // somebody's transaction is pending at 0 …
    world.accept(); // … so this one gets 1 …
    world.heal(); // … and it is dropped from the pool: 0 must be filled
}

#[test]
fn what_is_pending_at_a_nonce_of_nobody_is_not_outbid() {
    let mut world = World::ready(rules());
    says(&mut world, 0, 1);
    world.accept();
    world.commit();
    says(&mut world, 0, 1);
    assert_eq!(world.lane.gaps(), []);
    says(&mut world, 0, 0); // a node that is behind may say so, once
    assert_eq!(world.lane.gaps(), []);
    world.now = Timestamp(world.now.0 + 4_000);
    says(&mut world, 0, 0);
    assert_eq!(world.lane.gaps(), [Nonce(0)]);
    says(&mut world, 0, 1); // and somebody uses it once more
    assert_eq!(world.lane.gaps(), []);
}

#[test]
fn an_incredible_nonce_does_not_forget_gaps() {
    let mut world = World::ready(rules());
    world.accept();
    world.accept();
    world.commit();
    let is_first = |job: &Job| matches!(job, Job::Sign(wish) if wish.nonce == Nonce(0));
    let first = world
        .jobs
        .iter()
        .position(is_first)
        .expect("it is being signed");
    world.answer(first, REFUSED);
    world.commit();
    assert_eq!(world.lane.gaps(), [Nonce(0)]);
    says(&mut world, 5_000, 5_000); // one absurd answer: halted, rightly
    assert!(
        world
            .lane
            .waiting_for()
            .is_some_and(|why| why.contains("maxChainJump"))
    );
    says(&mut world, 0, 0); // the truth again
    world.heal();
}

#[test]
fn a_node_that_is_far_behind_makes_no_gaps() {
    let mut world = World::new(rules(), Nonce(5_000));
    world.settle_all();
    world.accept();
    world.settle_all();
    world.crash();
    says(&mut world, 0, 0); // a node that has only begun to sync
    assert!(
        world
            .lane
            .waiting_for()
            .is_some_and(|why| why.contains("in sync"))
    );
    assert_eq!(world.lane.gaps(), []);
    world.heal();
}

#[test]
fn a_clock_that_jumps_back_does_not_stop_retries() {
    let mut world = World::ready(rules());
    world.accept();
    world.commit();
    world.answer_all(GOOD, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(BUSY, |job| matches!(job, Job::Send(_)));
    world.commit();
    world.now = Timestamp(world.now.0 - 900_000);
    for _ in 0..100 {
        world.tick(1_000);
        world.commit();
    }
    let is_sent = world.jobs.iter().any(|job| matches!(job, Job::Send(_)));
    assert!(is_sent, "not sent for 100 s");
}

#[test]
fn a_block_that_vanished_below_the_view_does_not_hold_the_lane() {
    let mut world = World::ready(rules());
    world.accept();
    world.settle_all();
    world.mine(1, true); // mined, not final
    world.settle_all();
    // The chain cannot be reached for longer than the view is deep; a fork took the block meanwhile
    // and the pools forgot the tx.
    world.chain.unwind(1, 1);
    for _ in 0..40 {
        world.chain.mine(0);
    }
    world.input(Input::Head(world.chain.view()));
    world.heal();
}
