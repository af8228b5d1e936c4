//! Txs that are not mined in time: rebroadcast, bump, limit, decision; and txs that no node will ever accept.

use super::chain::NO_OP_GAS;
use super::world::{Job, World};
use super::{request, rules};
use crate::lane::{Input, LaneRules, NonceRules, Resubmit, ResubmitPolicy};
use crate::{AttemptKind, EventKind, Fees, SubState, TxId, TxState};

pub(super) const REJECTED: u8 = 14;
const UNDERPRICED: u8 = 10;

pub(super) fn bumping(max_fee: u128, max_attempts: Option<u32>) -> LaneRules {
    LaneRules {
        resubmit: Resubmit {
            policy: ResubmitPolicy::Bump {
                percent: 12,
                max_fee,
            },
            max_attempts,
            ..rules().resubmit
        },
        ..rules()
    }
}

/// Waits until the head is due, so many times.
pub(super) fn waits(world: &mut World, times: u32) {
    for _ in 0..times {
        world.tick(30_000);
        world.deliver_all();
    }
}

fn kinds_of(world: &World, id: TxId) -> Vec<AttemptKind> {
    let attempts = world.store.attempts_of(id);
    attempts.iter().map(|attempt| attempt.kind).collect()
}

pub(super) fn offers(world: &World, id: TxId) -> Vec<u128> {
    let mut attempts = world.store.attempts_of(id);
    attempts.sort_by_key(crate::Attempt::order);
    attempts.iter().map(|a| a.fees.max_per_gas()).collect()
}

#[test]
fn bump_raises_fees_each_time_and_any_attempt_may_be_mined() {
    let mut world = World::ready(bumping(u128::MAX, None));
    let id = world.accept();
    world.deliver_all();
    let first = world.store.rows[&id].tx_hash.expect("signed");
    waits(&mut world, 2);
    let offers = offers(&world, id);
    assert_eq!(offers.len(), 3);
    assert!(
        offers.windows(2).all(|two| two[1] * 100 >= two[0] * 110),
        "{offers:?}"
    );
    assert_ne!(world.store.rows[&id].tx_hash, Some(first));
    // The old bytes are mined after the new ones were sent.
    world.chain.add_to_pool(crate::Nonce(0), first);
    world.mine(1, true);
    world.deliver_all();
    assert_eq!(world.store.rows[&id].tx_hash, Some(first));
    world.heal();
}

#[test]
fn fee_limit_is_shown_and_its_bytes_are_still_sent() {
    let mut world = World::ready(bumping(18, None));
    let id = world.accept();
    world.deliver_all();
    waits(&mut world, 3);
    let tx = &world.store.rows[&id];
    assert_eq!(tx.sub_state, Some(SubState::FeeCap));
    assert!(offers(&world, id).iter().all(|offer| *offer <= 18));
    let again = world
        .store
        .story(id)
        .iter()
        .filter(|word| **word == "TxResubmitted")
        .count();
    assert!(again >= 2, "its bytes go out again");
    world.heal();
}

#[test]
fn payloads_own_maximum_fee_is_never_exceeded() {
    let mut world = World::ready(bumping(u128::MAX, None));
    let mut request = super::request(900);
    request.payload.max_fee_per_gas = Some(30);
    let id = request.id;
    world.input(crate::lane::Input::Accept(request));
    world.deliver_all();
    waits(&mut world, 3);
    assert_eq!(offers(&world, id), [30]);
}

#[test]
fn exhausted_attempts_need_a_decision_and_bytes_are_still_sent() {
    let mut world = World::ready(bumping(u128::MAX, Some(1)));
    let id = world.accept();
    world.deliver_all();
    waits(&mut world, 3);
    let tx = &world.store.rows[&id];
    assert_eq!(tx.state, TxState::Stuck);
    assert!(
        tx.reason
            .as_ref()
            .is_some_and(|why| why.contains("maxAttempts"))
    );
    assert_eq!(offers(&world, id).len(), 2, "STUCK stops new attempts");
    let newest = tx.tx_hash;
    world.chain.pool.clear();
    world.tick(30_000);
    world.commit();
    assert!(
        world
            .jobs
            .iter()
            .any(|job| matches!(job, Job::Send(out) if Some(out.hash) == newest))
    );
    world.heal();
    assert!(
        world.store.rows[&id].state.is_terminal(),
        "a mined one leaves STUCK by itself"
    );
}

#[test]
fn underpriced_tx_is_bumped_without_waiting() {
    let mut world = World::ready(bumping(u128::MAX, None));
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    for _ in 0..2 {
        world.answer_all(UNDERPRICED, |job| matches!(job, Job::Send(_)));
        world.commit();
        world.tick(1_000);
        world.commit();
    }
    world.deliver_all();
    assert!(offers(&world, id).len() >= 2);
    world.heal();
}

#[test]
fn rejected_tx_fails_and_the_slots_behind_it_go_on() {
    let mut world = World::ready(rules());
    let (bad, behind) = (world.accept(), world.accept());
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    let is_first = |job: &Job| matches!(job, Job::Send(out) if out.nonce == crate::Nonce(0));
    world.answer_all(REJECTED, is_first);
    world.commit();
    let tx = &world.store.rows[&bad];
    assert_eq!(
        (tx.state, tx.sub_state),
        (TxState::Tracking, Some(SubState::Rejected))
    );
    world.deliver_all();
    let kinds = kinds_of(&world, bad);
    assert!(kinds.contains(&AttemptKind::Cancel), "{kinds:?}");
    world.heal();
    let tx = &world.store.rows[&bad];
    assert_eq!(
        (tx.state, tx.sub_state),
        (TxState::FailedFinal, Some(SubState::Rejected))
    );
    assert!(
        tx.reason
            .as_ref()
            .is_some_and(|why| why.contains("the node's text")),
        "{tx:?}"
    );
    assert!(world.store.rows[&behind].inclusion.is_some());
}

#[test]
fn rejected_attempt_that_is_mined_after_all_counts() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    let original = world.store.rows[&id].tx_hash.expect("signed");
    world.answer_all(REJECTED, |job| matches!(job, Job::Send(_)));
    world.deliver_all();
    world.chain.add_to_pool(crate::Nonce(0), original); // a node had it
    world.heal();
    let tx = &world.store.rows[&id];
    assert_eq!(
        tx.inclusion.as_ref().map(|mined| mined.tx_hash),
        Some(original)
    );
    assert_ne!(tx.sub_state, Some(SubState::Rejected));
    super::invariants::at_the_end(&world);
}

#[test]
fn cancel_offers_enough_to_replace_the_payload() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(REJECTED, |job| matches!(job, Job::Send(_)));
    world.deliver_all();
    let attempts = world.store.attempts_of(id);
    let fees = |kind: AttemptKind| attempts.iter().find(|a| a.kind == kind).map(|a| a.fees);
    let (
        Some(Fees::Eip1559 {
            max_fee,
            max_priority_fee,
        }),
        Some(Fees::Eip1559 {
            max_fee: old,
            max_priority_fee: old_tip,
        }),
    ) = (fees(AttemptKind::Cancel), fees(AttemptKind::Original))
    else {
        panic!("both are of the new type: {attempts:?}");
    };
    assert!(max_fee * 100 >= old * 110 && max_priority_fee > old_tip);
}

#[test]
fn no_op_is_raised_where_its_payload_offered_all_that_is_allowed() {
    const MOST: u128 = 1_000_000_000_000;
    let mut world = World::ready(bumping(MOST, None));
    let mut request = request(1_000);
    let id = request.id;
    request.payload.max_fee_per_gas = Some(MOST);
    world.input(Input::Accept(request));
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(REJECTED, |job| matches!(job, Job::Send(_)));
    world.deliver_all();
    waits(&mut world, 2);
    let mut attempts = world.store.attempts_of(id);
    attempts.sort_by_key(crate::Attempt::order);
    let no_ops = attempts.iter().filter(|a| a.kind == AttemptKind::Cancel);
    let offers: Vec<u128> = no_ops.map(|a| a.fees.max_per_gas()).collect();
    assert!(offers.len() > 1 && offers[0] < MOST, "{attempts:?}");
    let rises = offers.windows(2).all(|two| two[1] * 100 >= two[0] * 110);
    assert!(rises, "{offers:?}");
    world.heal();
}

#[test]
fn lane_has_one_no_op_at_a_time_with_the_chains_gas_for_every_endpoint() {
    let mut world = World::ready(rules());
    for _ in 0..3 {
        world.accept();
    }
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(REJECTED, |job| matches!(job, Job::Send(_)));
    world.commit();
    let mut to_sign = Vec::new();
    for job in &world.jobs {
        if let Job::Sign(unsigned) = job {
            to_sign.push((unsigned.kind, unsigned.gas));
        }
    }
    assert_eq!(to_sign, [(AttemptKind::Cancel, NO_OP_GAS)]);
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    let mut sends = Vec::new();
    for job in &world.jobs {
        if let Job::Send(envelope) = job {
            sends.push(envelope.to_all);
        }
    }
    assert_eq!(sends, [true]);
    world.heal();
    super::invariants::at_the_end(&world);
}

/// The head is rejected last: its no-op has precedence, because the other one cannot be mined before it.
#[test]
fn no_op_of_the_head_has_precedence_over_all_others() {
    let mut world = World::ready(rules());
    let ids: Vec<TxId> = (0..3).map(|_| world.accept()).collect();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    for (nonce, is_first) in [(2, true), (1, false), (0, true)] {
        let is_meant = |job: &Job| matches!(job, Job::Send(out) if out.nonce.0 == nonce);
        world.answer_all(REJECTED, is_meant);
        world.commit();
        world.answer_all(0, |job| matches!(job, Job::Sign(_)));
        world.commit();
        let id = ids[usize::try_from(nonce).expect("small")];
        let has_no_op = kinds_of(&world, id).contains(&AttemptKind::Cancel);
        assert_eq!(has_no_op, is_first, "nonce {nonce}");
    }
    world.heal();
    super::invariants::at_the_end(&world);
}

#[test]
fn nothing_is_sent_behind_a_blocked_slot() {
    let mut world = World::ready(rules());
    for _ in 0..5 {
        world.accept();
    }
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(12, |job| matches!(job, Job::Send(_))); // the account cannot pay
    world.commit();
    world.tick(5_000);
    world.commit();
    let sends = |world: &World| {
        world
            .jobs
            .iter()
            .filter(|job| matches!(job, Job::Send(_)))
            .count()
    };
    assert_eq!(sends(&world), 1, "only the lowest is tried");
    world.answer_all(0, |job| matches!(job, Job::Send(_))); // it is funded
    world.commit();
    world.tick(0);
    world.commit();
    assert_eq!(sends(&world), 4, "the others follow at once");
    world.heal();
    let replaced = |kind: &EventKind| matches!(kind, EventKind::TxReplaced { .. });
    assert!(!world.store.events.iter().any(|event| replaced(&event.kind)));
}

/// A bump is at the signer, which fails for now; meanwhile a node accepts the old bytes.
#[test]
fn late_acceptance_does_not_drop_the_signature_request() {
    let mut world = World::ready(bumping(u128::MAX, None));
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.tick(30_000);
    world.answer_all(5, |job| matches!(job, Job::Sign(_))); // busy
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::Send(_)));
    world.commit();
    world.tick(1_000);
    world.deliver_all();
    assert_eq!(offers(&world, id).len(), 2, "the bump is signed after all");
    world.heal();
}

/// Asking a node again for what it does not hold is no claim: the next bump is still due.
#[test]
fn attempt_that_a_node_lost_is_sent_again_and_still_bumped() {
    let mut world = World::ready(LaneRules {
        nonce: NonceRules {
            chain_nonce_timeout: std::time::Duration::from_secs(10),
            ..bumping(u128::MAX, None).nonce
        },
        ..bumping(u128::MAX, None)
    });
    let id = world.accept();
    world.deliver_all();
    for _ in 0..7 {
        world.chain.pool.clear(); // it accepts every time and holds nothing
        world.tick(10_000);
        world.deliver_all();
    }
    assert!(offers(&world, id).len() >= 2);
    world.heal();
}

/// A tx that every node rejects, and whose no-op is signed.
fn reject_payload(world: &mut World) -> TxId {
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(REJECTED, |job| matches!(job, Job::Send(_)));
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    id
}

/// Without resubmits and without a view of the node's pool nothing else would show that the node was wrong.
#[test]
fn claim_to_hold_an_older_attempt_is_not_believed_for_ever() {
    const OLDER_IS_HELD: u8 = 11;
    let mut world = World::ready(LaneRules {
        nonce: NonceRules {
            chain_query: crate::lane::ChainQuery::Off,
            ..rules().nonce
        },
        resubmit: Resubmit {
            interval: None,
            ..rules().resubmit
        },
        ..rules()
    });
    let id = reject_payload(&mut world);
    world.answer_all(OLDER_IS_HELD, |job| matches!(job, Job::Send(_)));
    world.commit();
    assert!(world.chain.pool.is_empty(), "it holds nothing");
    world.tick(29_000);
    world.commit();
    assert!(!world.jobs.iter().any(|job| matches!(job, Job::Send(_))));
    world.tick(1_000);
    world.deliver_all();
    assert!(!world.chain.pool.is_empty(), "sent again");
    world.heal();
    assert_eq!(world.store.rows[&id].state, TxState::FailedFinal);
}

#[test]
fn count_of_resubmits_survives_takeovers() {
    let mut world = World::ready(LaneRules {
        resubmit: Resubmit {
            max_attempts: Some(3),
            ..rules().resubmit
        },
        ..rules()
    });
    let id = world.accept();
    world.deliver_all();
    for expected in 1..=3 {
        waits(&mut world, 1);
        assert_eq!(world.store.rows[&id].history.resubmits, expected);
        assert_ne!(world.store.rows[&id].state, TxState::Stuck);
        world.crash();
        world.deliver_all();
    }
    waits(&mut world, 1);
    assert_eq!(world.store.rows[&id].state, TxState::Stuck);
    world.heal();
}

/// A no-op is no payload whose attempts an operator limits: while it is not mined, the lane stands still.
#[test]
fn no_op_is_raised_although_the_attempts_are_used_up() {
    let mut world = World::ready(bumping(u128::MAX, Some(1)));
    let id = reject_payload(&mut world);
    world.deliver_all();
    waits(&mut world, 4);
    let row = &world.store.rows[&id];
    assert_eq!(
        (row.state, row.sub_state),
        (TxState::Tracking, Some(SubState::Rejected))
    );
    let reason = row.reason.clone().unwrap_or_default();
    assert!(reason.contains("refuse it for good"), "{reason}");
    let kinds = kinds_of(&world, id);
    let no_ops = kinds.iter().filter(|kind| **kind == AttemptKind::Cancel);
    assert_eq!(no_ops.count(), 5, "{kinds:?}");
    world.heal();
}

#[test]
fn no_op_at_its_fee_limit_does_not_hide_why_its_tx_ends() {
    let mut world = World::ready(bumping(18, None));
    let id = reject_payload(&mut world);
    world.deliver_all();
    waits(&mut world, 3);
    world.tick(30_000);
    let waits = world.lane.waiting_for().expect("until a node has it again");
    assert!(waits.contains("would exceed its limit"), "{waits}");
    world.heal();
    let row = &world.store.rows[&id];
    assert_eq!(row.sub_state, Some(SubState::Rejected));
    let reason = row.reason.clone().unwrap_or_default();
    assert!(reason.contains("refuse it for good"), "{reason}");
}

/// Its attempts are used up before nodes reject it for good.
#[test]
fn rejected_tx_leaves_stuck_when_a_no_op_takes_its_nonce() {
    let mut world = World::ready(bumping(u128::MAX, Some(0)));
    let id = world.accept();
    world.deliver_all();
    waits(&mut world, 1);
    assert_eq!(world.store.rows[&id].state, TxState::Stuck);
    for _ in 0..6 {
        world.chain.pool.clear();
        world.tick(30_000);
        world.commit();
        let is_payload = |job: &Job| matches!(job, Job::Send(out) if !out.to_all);
        world.answer_all(REJECTED, is_payload);
        world.commit();
    }
    assert!(
        world
            .jobs
            .iter()
            .any(|job| matches!(job, Job::Sign(unsigned) if unsigned.kind == AttemptKind::Cancel))
    );
    let row = &world.store.rows[&id];
    assert_eq!(
        (row.state, row.sub_state),
        (TxState::Tracking, Some(SubState::Rejected))
    );
    world.heal();
    assert_eq!(world.store.rows[&id].state, TxState::FailedFinal);
}

/// The gas of a tx's attempts of this kind, in the order in which they were signed.
fn gas_of(world: &World, id: TxId, kind: AttemptKind) -> Vec<u64> {
    let attempts = world.store.attempts_of(id).into_iter();
    let mut gas: Vec<u64> = attempts
        .filter(|attempt| attempt.kind == kind)
        .map(|attempt| attempt.gas)
        .collect();
    gas.sort_unstable();
    gas
}

/// Every node demands more gas than the present attempts have, so many times.
fn demand_more_gas(world: &mut World, times: u32) {
    const GAS_TOO_LOW: u8 = 4;
    for _ in 0..times {
        world.answer_all(GAS_TOO_LOW, |job| matches!(job, Job::Send(_)));
        world.commit();
        world.answer_all(0, |job| matches!(job, Job::Sign(_)));
        world.commit();
        world.tick(30_000);
        world.commit();
    }
}

fn accept_and_sign(world: &mut World, request: crate::lane::AdmittedRequest) -> TxId {
    let id = request.id;
    world.input(crate::lane::Input::Accept(request));
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    id
}

#[test]
fn no_op_below_the_intrinsic_gas_is_signed_again_with_more() {
    let mut world = World::ready(rules());
    let mut request = super::request(900);
    request.payload.gas = Some(request.gas);
    let id = accept_and_sign(&mut world, request);
    demand_more_gas(&mut world, 4);
    assert_eq!(gas_of(&world, id, AttemptKind::Original), [21_000]);
    assert_eq!(
        gas_of(&world, id, AttemptKind::Bump),
        [],
        "the request named it"
    );
    let no_ops = gas_of(&world, id, AttemptKind::Cancel);
    let doubled = [1, 2, 4, 8].map(|times| NO_OP_GAS * times);
    assert_eq!(no_ops, doubled);
    // There is an end to it: the lane waits, and says why.
    demand_more_gas(&mut world, 12);
    let most = gas_of(&world, id, AttemptKind::Cancel);
    assert!(most.iter().all(|gas| *gas <= 5_000_000), "{most:?}");
    let waits = world.lane.waiting_for().expect("blocked");
    assert!(waits.contains("refuse the no-op"), "{waits}");
    world.heal();
    assert_eq!(world.store.rows[&id].state, TxState::FailedFinal);
}

#[test]
fn estimated_gas_of_a_payload_is_raised_within_a_bound() {
    let mut world = World::ready(rules());
    let request = super::request(900);
    assert_eq!(request.payload.gas, None);
    let id = accept_and_sign(&mut world, request);
    demand_more_gas(&mut world, 2);
    assert_eq!(gas_of(&world, id, AttemptKind::Bump), [42_000, 84_000]);
    assert_eq!(gas_of(&world, id, AttemptKind::Cancel), []);
    world.crash(); // the next keeper goes on from there
    world.deliver_all_but(|job| matches!(job, Job::Send(_)));
    demand_more_gas(&mut world, 6);
    assert_eq!(gas_of(&world, id, AttemptKind::Bump), [42_000, 84_000]);
    assert!(!gas_of(&world, id, AttemptKind::Cancel).is_empty());
    world.heal();
}

/// What a no-op waits for is the lane's reason; the tx keeps the reason for which it ends.
#[test]
fn unfunded_no_op_does_not_hide_why_its_tx_ends() {
    let mut world = World::ready(rules());
    let id = reject_payload(&mut world);
    world.answer_all(12, |job| matches!(job, Job::Send(_))); // the account cannot pay
    world.commit();
    let waits = world.lane.waiting_for().expect("blocked");
    assert!(waits.contains("the account cannot pay"), "{waits}");
    world.heal();
    let reason = world.store.rows[&id].reason.clone().expect("it has one");
    assert!(reason.contains("refuse it for good"), "{reason}");
}

#[test]
fn payload_at_its_fee_limit_gets_more_gas_at_the_same_fees() {
    let mut world = World::ready(rules());
    let mut request = super::request(900);
    request.payload.max_fee_per_gas = Some(30);
    let id = accept_and_sign(&mut world, request);
    demand_more_gas(&mut world, 1);
    assert_eq!(gas_of(&world, id, AttemptKind::Bump), [42_000]);
    assert_eq!(offers(&world, id), [30, 30]);
    world.heal();
    assert_eq!(world.store.rows[&id].state, TxState::Confirmed);
}

/// An attempt at the same fees could not replace the one that a node may hold.
#[test]
fn payload_at_its_fee_limit_that_a_node_may_have_gets_no_more_gas() {
    const UNKNOWN: u8 = 9;
    let mut world = World::ready(rules());
    let mut request = super::request(900);
    request.payload.max_fee_per_gas = Some(30);
    let id = accept_and_sign(&mut world, request);
    world.answer_all(UNKNOWN, |job| matches!(job, Job::Send(_)));
    world.commit();
    world.tick(30_000);
    world.commit();
    demand_more_gas(&mut world, 5);
    assert_eq!(gas_of(&world, id, AttemptKind::Bump), []);
    let no_ops = gas_of(&world, id, AttemptKind::Cancel);
    assert_eq!(no_ops.first(), Some(&NO_OP_GAS));
    world.heal();
    assert_eq!(world.store.rows[&id].state, TxState::FailedFinal);
}

/// A node that holds an older attempt is asked again every half minute, and the next raise is due all the same.
#[test]
fn asking_again_about_an_older_attempt_does_not_delay_the_next_bump() {
    const OLDER_IS_HELD: u8 = 11;
    let mut rules = bumping(u128::MAX, None);
    rules.resubmit.interval = Some(std::time::Duration::from_secs(70));
    let mut world = World::ready(rules);
    let id = world.accept();
    world.deliver_all();
    let mut counts = Vec::new();
    for _ in 0..15 {
        world.tick(15_000);
        world.commit();
        world.answer_all(0, |job| matches!(job, Job::Sign(_)));
        world.commit();
        world.answer_all(OLDER_IS_HELD, |job| matches!(job, Job::Send(_)));
        world.deliver_all_but(|job| matches!(job, Job::Send(_)));
        counts.push(offers(&world, id).len());
    }
    assert_eq!(counts.last(), Some(&4), "{counts:?}");
    world.heal();
}
