//! When a higher fee is offered, and when it would not help.

use crate::{Fees, Nonce, TxState};

use super::resubmission::{REJECTED, bumping, offers, waits};
use super::rules;
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

/// Nodes refuse type 2, whatever the headers look like, until the operator sets `chain.legacy`.
#[test]
fn lane_whose_nodes_refuse_type_2_goes_on_once_the_chain_is_legacy() {
    let is_type_2 = |fees: Fees| matches!(fees, Fees::Eip1559 { .. });
    for policy in [rules(), bumping(u128::MAX, None)] {
        let mut world = World::ready(policy);
        let refused = world.accept();
        let behind = world.accept();
        let reject_type_2 = |world: &mut World| {
            world.tick(30_000);
            world.answer_all(0, |job| matches!(job, Job::Sign(_)));
            world.commit();
            let attempts: Vec<_> = world.store.attempts_of(refused);
            let of_type_2 = attempts.iter().filter(|attempt| is_type_2(attempt.fees));
            let hashes: Vec<_> = of_type_2.map(|attempt| attempt.hash).collect();
            world.answer_all(
                REJECTED,
                |job| matches!(job, Job::Send(out) if hashes.contains(&out.hash)),
            );
            world.commit();
            attempts
        };
        for _ in 0..4 {
            let attempts = reject_type_2(&mut world);
            assert!(attempts.iter().all(|attempt| is_type_2(attempt.fees)));
        }
        world.rules.fee.legacy = true;
        world.crash();
        for _ in 0..4 {
            world.answer_all(0, |job| matches!(job, Job::QueryNonces(_)));
            world.follow();
            world.commit();
            reject_type_2(&mut world);
        }
        let newest = world
            .store
            .attempts_of(refused)
            .into_iter()
            .max_by_key(|a| a.order());
        assert!(newest.is_some_and(|newest| !is_type_2(newest.fees)));
        world.heal();
        assert_eq!(world.store.rows[&refused].state, TxState::FailedFinal);
        assert_eq!(world.store.rows[&behind].state, TxState::Confirmed);
    }
}
