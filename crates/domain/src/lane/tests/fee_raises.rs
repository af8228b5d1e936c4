//! When a higher fee is offered, and when it would not help.

use crate::lane::Input;
use crate::{Fees, Nonce, SendOutcome, TxState};

use super::resubmission::{REJECTED, bumping, offers, waits};
use super::rules;
use super::world::{Job, World};

const UNDERFUNDED: u8 = 12;
const BUSY: u8 = 13;
const UNDERPRICED: u8 = 10;
const LOST: u8 = 9;

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

/// What is signed while an endpoint reports hardly any fees, is refused, and stays so at the same fees.
fn sign_at_no_fees(world: &mut World) {
    world.chain.base_fee = 0;
    world.mine(0, true);
    world.follow();
}

/// Lets nodes answer like this to every send, a few times.
fn answer_sends(world: &mut World, how: u8, times: u32) {
    for _ in 0..times {
        world.answer_all(how, |job| matches!(job, Job::Send(_)));
        world.commit();
        world.tick(5_000);
        world.answer_all(0, |job| matches!(job, Job::Sign(_)));
        world.commit();
    }
}

/// Then the endpoint reports what the chain demands.
fn report_right_fees(world: &mut World) {
    world.chain.base_fee = 1_000;
    world.mine(0, true);
    world.follow();
    world.commit();
}

#[test]
fn payload_that_no_node_has_is_signed_again_at_present_fees() {
    let mut world = World::ready(rules());
    sign_at_no_fees(&mut world);
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    answer_sends(&mut world, LOST, 1);
    answer_sends(&mut world, UNDERPRICED, 4);
    let first = offers(&world, id);
    assert_eq!(first.len(), 1, "not while too little is quoted: {first:?}");
    report_right_fees(&mut world);
    answer_sends(&mut world, UNDERPRICED, 4);
    let raised = offers(&world, id);
    assert!(raised.len() == 2 && raised[1] >= 2_000, "{raised:?}");
    world.heal();
    assert_eq!(world.store.rows[&id].state, TxState::Confirmed);
}

/// A node accepts it while the next attempt is at the signer.
#[test]
fn payload_that_a_node_accepts_meanwhile_keeps_its_fees() {
    let mut world = World::ready(rules());
    sign_at_no_fees(&mut world);
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    answer_sends(&mut world, UNDERPRICED, 4);
    report_right_fees(&mut world);
    let hash = world.store.rows[&id].tx_hash.expect("signed");
    let is_signing = |world: &World| world.jobs.iter().any(|job| matches!(job, Job::Sign(_)));
    while !is_signing(&world) {
        world.answer_all(UNDERPRICED, |job| matches!(job, Job::Send(_)));
        world.tick(5_000);
        world.commit();
    }
    world.input(Input::Sent {
        hash,
        nonce: Nonce(0),
        outcome: SendOutcome::Accepted,
    });
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    assert_eq!(offers(&world, id).len(), 1);
    world.heal();
}

/// The client, or the configuration, chose to send the same bytes.
#[test]
fn payload_that_a_node_has_keeps_its_fees_where_the_same_bytes_are_sent() {
    let mut world = World::ready(rules());
    sign_at_no_fees(&mut world);
    let id = world.accept();
    world.deliver_all();
    report_right_fees(&mut world);
    waits(&mut world, 3);
    assert_eq!(offers(&world, id).len(), 1);
    world.heal();
}

/// A no-op has no client who chose its fees: it is raised wherever it waits, up to present fees.
#[test]
fn no_op_is_raised_to_present_fees_where_the_same_bytes_are_sent() {
    for how in [0, UNDERPRICED] {
        let mut world = World::ready(rules());
        sign_at_no_fees(&mut world);
        let id = world.accept();
        world.answer_all(0, |job| matches!(job, Job::Sign(_)));
        world.commit();
        world.answer_all(REJECTED, |job| matches!(job, Job::Send(_)));
        world.commit();
        world.answer_all(0, |job| matches!(job, Job::Sign(_)));
        world.commit();
        answer_sends(&mut world, how, 1);
        let before = offers(&world, id).len();
        report_right_fees(&mut world);
        answer_sends(&mut world, how, 8);
        let raised = offers(&world, id);
        assert!(raised.len() > before, "answer {how}: {raised:?}");
        assert!(raised[before] >= 2_000, "answer {how}: {raised:?}");
        let most = raised.iter().max();
        assert!(most.is_some_and(|most| *most <= 20_100), "{raised:?}");
        assert!(how != 0 || raised.len() == before + 1, "once: {raised:?}");
        world.heal();
        assert_eq!(world.store.rows[&id].state, TxState::FailedFinal);
    }
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
