//! Sending again: what, when, and after a restart.

use crate::lane::{CapacityRules, LaneRules, Resubmit};
use crate::{Nonce, SubState};

use super::resubmission::bumping;
use super::rules;
use super::world::{Job, World};

fn sends(world: &World) -> Vec<Nonce> {
    let send = |job: &Job| match job {
        Job::Send(out) => Some(out.nonce),
        Job::Sign(_)
        | Job::QueryNonces(_)
        | Job::Fetch(_)
        | Job::Finals(_)
        | Job::Headers(_)
        | Job::Attribute(..) => None,
        Job::Backlog { .. } | Job::Queued { .. } | Job::FindConsumer { .. } => None,
        Job::QueryBalance => None,
    };
    world.jobs.iter().filter_map(send).collect()
}

#[test]
fn only_the_head_is_claimed_and_sent_again() {
    let mut world = World::ready(rules());
    let ids = [world.accept(), world.accept(), world.accept()];
    world.deliver_all();
    world.tick(29_000);
    world.commit();
    assert_eq!(sends(&world), [], "the interval is not over");
    world.tick(1_000);
    assert_eq!(
        world.draft.rows[&ids[0]].written.at, world.now,
        "the claim is written"
    );
    assert!(world.draft.rows[&ids[1]].written.at < world.now);
    world.commit();
    assert_eq!(sends(&world), [Nonce(0)]);
    world.heal();
}

#[test]
fn claimed_tx_that_was_never_sent_is_sent_after_a_restart() {
    let mut world = World::ready(rules());
    let _both = (world.accept(), world.accept());
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.crash();
    world.tick(0);
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::QueryNonces(_)));
    world.commit();
    let mut sent = sends(&world);
    sent.dedup();
    assert!(sent.contains(&Nonce(0)) && sent.contains(&Nonce(1)));
    world.heal();
}

#[test]
fn keeper_that_reads_its_own_lane_again_sends_only_what_no_node_has() {
    for (is_takeover, expected) in [(false, vec![Nonce(1)]), (true, vec![Nonce(0), Nonce(1)])] {
        let mut world = World::ready(rules());
        world.accept();
        world.deliver_all();
        world.accept();
        world.answer_all(0, |job| matches!(job, Job::Sign(_)));
        world.commit(); // signed and durable, and its send is under way
        match is_takeover {
            true => world.crash(),
            false => world.reload(),
        }
        world.tick(0);
        world.commit();
        world.answer_all(0, |job| matches!(job, Job::QueryNonces(_)));
        world.commit();
        let mut sent = sends(&world);
        sent.sort_unstable();
        sent.dedup();
        assert_eq!(sent, expected);
        world.heal();
    }
}

/// The response of the commit that stored a bump was lost: the bump was never sent, though a node has the original.
#[test]
fn keeper_that_reads_its_own_lane_again_sends_a_bump_that_never_left_it() {
    let mut world = World::ready(bumping(u128::MAX, None));
    let id = world.accept();
    world.deliver_all();
    world.tick(30_000);
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit(); // the bump is durable
    assert_eq!(world.store.attempts_of(id).len(), 2);
    world.reload();
    world.tick(1_000);
    world.commit();
    let bump = world.store.rows[&id].tx_hash;
    let is_bump = |job: &Job| matches!(job, Job::Send(out) if Some(out.hash) == bump);
    assert!(world.jobs.iter().any(is_bump), "{:?}", world.jobs);
    world.heal();
}

/// Its nonce looks used when the lane is loaded, so nothing is sent; then a reorg takes that back.
#[test]
fn tx_reorged_before_its_receipt_was_read_is_sent_again() {
    let mut world = World::ready(rules());
    world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(7, |job| matches!(job, Job::Send(_)));
    world.mine(1, false);
    world.crash();
    world.tick(0);
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::QueryNonces(_)));
    world.fork(1, 0, 0xff, false);
    world.heal();
}

#[test]
fn lost_receipt_is_found_without_resubmission() {
    let mut world = World::ready(LaneRules {
        resubmit: Resubmit {
            interval: None,
            ..rules().resubmit
        },
        ..rules()
    });
    let id = world.accept();
    world.deliver_all();
    world.mine(1, false);
    world.deliver_all();
    assert_eq!(world.store.rows[&id].inclusion, None);
    world.tick(20_000);
    world.deliver_all();
    world.tick(4_000); // it is used; the follower had its time
    world.deliver_all();
    assert!(world.store.rows[&id].inclusion.is_some());
}

#[test]
fn refused_tx_that_is_accepted_later_waits_no_longer() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.deliver_all();
    world.chain.pool.clear();
    world.tick(30_000);
    world.commit();
    world.answer_all(12, |job| matches!(job, Job::Send(_)));
    assert_eq!(world.draft.rows[&id].sub_state, Some(SubState::Underfunded));
    world.tick(1_000);
    world.deliver_all();
    let tx = &world.store.rows[&id];
    assert_eq!(
        (tx.sub_state, tx.reason.clone()),
        (Some(SubState::Submitted), None)
    );
    world.heal();
}

#[test]
fn reason_that_is_over_is_not_stored_by_a_later_write() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.deliver_all();
    world.tick(30_000); // claimed again, and the node is busy …
    world.commit();
    world.answer_all(13, |job| matches!(job, Job::Send(_)));
    world.commit();
    assert!(world.lane.waiting_for().is_some());
    world.tick(1_000); // … and takes it a moment later
    world.deliver_all();
    assert_eq!(world.lane.waiting_for(), None);
    world.tick(30_000); // the next claim writes the row
    world.commit();
    assert_eq!(world.store.rows[&id].reason, None);
}

#[test]
fn mempool_depth_grows_although_nothing_is_mined() {
    let mut world = World::ready(LaneRules {
        capacity: CapacityRules {
            mempool_depth: crate::window::MempoolDepth::auto(),
            ..rules().capacity
        },
        ..rules()
    });
    for _ in 0..16 {
        world.accept();
    }
    world.deliver_all();
    assert_eq!(world.chain.pool.len(), 16);
    for _ in 0..200 {
        world.accept(); // they find no room, and no block makes any
    }
    world.deliver_all();
    assert_eq!(world.chain.pool.len(), 216);
}
