//! Answers that are not credible, and transactions that vanish after they were seen.

use super::rules;
use super::world::{Job, World, agreed};
use crate::lane::{AccountNonces, Input};
use crate::{Nonce, Timestamp};

/// The good answer of a signer or a node, a refusal by the signer, and a node that is busy.
const GOOD: u8 = 0;
const REFUSED: u8 = 7;
const BUSY: u8 = 13;

fn report_nonces(world: &mut World, latest: u64, pending: u64) {
    let (latest, pending) = (Nonce(latest), Nonce(pending));
    world.input(agreed(AccountNonces { latest, pending }));
    world.commit();
}

#[test]
fn pending_foreign_nonce_that_vanishes_is_a_gap() {
    let mut world = World::ready(rules());
    report_nonces(&mut world, 0, 1); // a foreign transaction is pending at 0 …
    world.accept(); // … so this one gets 1 …
    world.heal(); // … and it is dropped from the pool: 0 must be filled
}

#[test]
fn foreign_transaction_at_an_unheld_nonce_is_not_outbid() {
    let mut world = World::ready(rules());
    report_nonces(&mut world, 0, 1);
    world.accept();
    world.commit();
    report_nonces(&mut world, 0, 1);
    assert_eq!(world.lane.gaps(), []);
    report_nonces(&mut world, 0, 0); // a node that is behind may report that, once
    assert_eq!(world.lane.gaps(), []);
    world.now = Timestamp(world.now.0 + 4_000);
    report_nonces(&mut world, 0, 0);
    assert_eq!(world.lane.gaps(), [Nonce(0)]);
    report_nonces(&mut world, 0, 1); // and a foreign transaction uses it once more
    assert_eq!(world.lane.gaps(), []);
}

#[test]
fn answer_that_is_not_credible_keeps_the_gaps() {
    let mut world = World::ready(rules());
    world.accept();
    world.accept();
    world.commit();
    let is_first = |job: &Job| matches!(job, Job::Sign(envelope) if envelope.nonce == Nonce(0));
    let first = world
        .jobs
        .iter()
        .position(is_first)
        .expect("it is being signed");
    world.answer(first, REFUSED);
    world.commit();
    assert_eq!(world.lane.gaps(), [Nonce(0)]);
    report_nonces(&mut world, 5_000, 5_000); // one absurd answer: halted, rightly
    assert!(
        world
            .lane
            .waiting_for()
            .is_some_and(|why| why.contains("maxChainJump"))
    );
    report_nonces(&mut world, 0, 0); // the truth again
    world.heal();
}

#[test]
fn node_that_is_far_behind_makes_no_gaps() {
    let mut world = World::new(rules(), Nonce(5_000));
    world.deliver_all();
    world.accept();
    world.deliver_all();
    world.crash();
    report_nonces(&mut world, 0, 0); // a node that has only begun to sync
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
fn clock_that_jumps_back_does_not_stop_retries() {
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
fn block_reorged_out_below_the_view_does_not_block_the_lane() {
    let mut world = World::ready(rules());
    world.accept();
    world.deliver_all();
    world.mine(1, true); // mined, not final
    world.deliver_all();
    // The chain cannot be reached for longer than the view is deep; a reorg took the block meanwhile
    // and the pools forgot the tx.
    world.chain.unwind(1, 1);
    for _ in 0..40 {
        world.chain.mine(0);
    }
    world.input(Input::Head(world.chain.view()));
    world.heal();
}
