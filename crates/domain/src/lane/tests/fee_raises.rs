//! When a higher fee is offered, and when it would not help.

use crate::Nonce;

use super::resubmission::{bumping, offers, waits};
use super::world::{Job, World};

const UNDERFUNDED: u8 = 12;
const BUSY: u8 = 13;

/// A higher offer would be paid in full once the account has money, or an endpoint takes transactions again.
#[test]
fn fees_are_not_raised_where_money_or_a_node_is_missing() {
    for answer in [UNDERFUNDED, BUSY] {
        let mut world = World::ready(bumping(u128::MAX, None));
        let id = world.accept();
        world.answer_all(0, |job| matches!(job, Job::Sign(_)));
        world.commit();
        for _ in 0..10 {
            world.answer_all(answer, |job| matches!(job, Job::Send(_)));
            world.tick(30_000);
            world.commit();
        }
        assert_eq!(offers(&world, id).len(), 1, "answer {answer}");
        world.heal();
    }
}

/// A foreign transaction is pending below the head: only that one can unblock the lane.
#[test]
fn fees_are_not_raised_behind_a_foreign_nonce() {
    let mut world = World::new(bumping(u128::MAX, None), Nonce(0));
    assert!(world.chain.use_elsewhere(0));
    world.deliver_all();
    let waiting = world.accept();
    world.deliver_all();
    assert_eq!(world.store.rows[&waiting].nonce, Some(Nonce(1)));
    waits(&mut world, 10);
    assert_eq!(offers(&world, waiting).len(), 1);
    world.heal();
}
