//! Somebody else uses the account: before ours is out, after it, and in the pool.

use super::rules;
use super::world::{Job, World, agreed, answered};
use crate::lane::{
    AccountNonces, EndpointNonces, FOREIGN_DEPTH_MIN, Input, LaneRules, NonceConsumer,
    OnForeignNonce, ResubmitPolicy,
};
use crate::{B256, EffectDigest, EventKind, Nonce, SendOutcome, SubState, TxId, TxState, U256};

/// One tx of ours at nonce 0, signed and handed out, while somebody else's stands there in a block.
fn used_by_somebody_else(rules: LaneRules) -> (World, TxId) {
    let mut world = World::ready(rules);
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.use_elsewhere(0);
    world.mine(1, true);
    world.settle_all();
    (world, id)
}

/// A consumer that did something else than any tx here wants.
fn by(hash: B256) -> NonceConsumer {
    let effect_digest = EffectDigest::of(None, U256::MAX, &[]);
    NonceConsumer::By {
        hash,
        effect_digest,
    }
}

fn blocks(world: &mut World, count: u64) {
    for _ in 0..count {
        world.mine(usize::MAX, true);
        world.tick(100);
        world.settle_all();
    }
}

fn words(world: &World, id: TxId) -> Vec<&'static str> {
    world.store.story(id)
}

#[test]
fn a_consumed_nonce_is_given_up_at_final_depth_and_not_before() {
    let (mut world, id) = used_by_somebody_else(rules());
    blocks(&mut world, FOREIGN_DEPTH_MIN - 1);
    assert_eq!(world.store.rows[&id].nonce, Some(Nonce(0)), "too early");
    blocks(&mut world, 3);
    assert_eq!(world.store.rows[&id].nonce, Some(Nonce(1)));
    let story = words(&world, id);
    assert!(
        story.contains(&"TxRequeued") && story.contains(&"TxAllocated"),
        "{story:?}"
    );
    let told = world.store.events.iter().any(|event| {
        matches!(
            event.kind,
            EventKind::LaneForeignNonce {
                nonce: Nonce(0),
                tx_hash: Some(_)
            }
        )
    });
    assert!(told);
    world.heal();
    super::invariants::at_the_end(&world);
}

#[test]
fn hold_keeps_it_for_a_decision() {
    let (mut world, id) = used_by_somebody_else(LaneRules {
        on_foreign_nonce: OnForeignNonce::Hold,
        ..rules()
    });
    let behind = world.accept();
    world.settle_all();
    blocks(&mut world, FOREIGN_DEPTH_MIN + 3);
    let tx = &world.store.rows[&id];
    assert_eq!(
        (tx.state, tx.sub_state),
        (TxState::Stuck, Some(SubState::ForeignNonce))
    );
    assert!(
        tx.reason
            .as_ref()
            .is_some_and(|why| why.contains("somebody else")),
        "{tx:?}"
    );
    assert!(
        world.store.rows[&behind].state.is_terminal(),
        "the others go on"
    );
}

#[test]
fn a_late_receipt_of_ours_is_no_foreign_use() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.settle_all();
    world.mine(1, false); // ours, and its receipt got lost
    world.follow();
    world.tick(100);
    world.input(agreed(world.chain.nonces()));
    world.input(Input::Consumed {
        nonce: Nonce(0),
        by: Some(NonceConsumer::Nobody),
        hashes: Vec::new(),
        is_named: false,
    });
    world.settle_all();
    world.tick(4_000); // the follower did not bring it in time
    world.settle_all();
    assert!(world.store.rows[&id].inclusion.is_some());
    world.heal();
}

#[test]
fn what_nobody_remembers_and_did_just_the_same_is_not_paid_again() {
    let (mut world, id) = used_by_somebody_else(rules());
    let effect_digest = world.store.rows[&id].payload.effect_digest();
    let hash = B256::repeat_byte(0xee);
    world.input(Input::Consumed {
        nonce: Nonce(0),
        by: Some(NonceConsumer::By {
            hash,
            effect_digest,
        }),
        hashes: Vec::new(),
        is_named: false,
    });
    world.commit();
    let row = &world.store.rows[&id];
    assert_eq!(
        (row.state, row.sub_state),
        (TxState::Stuck, Some(SubState::ForeignNonce))
    );
    let reason = row.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("did just what this tx wants"), "{reason}");
}

#[test]
fn one_of_ours_that_consumed_it_is_read_and_not_requeued() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.settle_all();
    world.mine(1, false);
    let hash = world.store.rows[&id].tx_hash.expect("signed");
    world.input(Input::Consumed {
        nonce: Nonce(0),
        by: Some(by(hash)),
        hashes: vec![hash],
        is_named: false,
    });
    world.commit();
    assert_eq!(world.store.rows[&id].nonce, Some(Nonce(0)));
    assert!(
        world
            .jobs
            .iter()
            .any(|job| matches!(job, Job::Fetch(hashes) if hashes == &[hash]))
    );
    world.heal();
}

#[test]
fn what_nobody_can_show_is_for_a_person_when_none_of_ours_has_a_receipt() {
    let (mut world, id) = used_by_somebody_else(rules());
    let ours: Vec<B256> = world.lane.hashes().collect();
    for (hashes, state) in [(Vec::new(), TxState::Tracking), (ours, TxState::Stuck)] {
        world.input(Input::Consumed {
            nonce: Nonce(0),
            by: Some(NonceConsumer::Unseen),
            hashes,
            is_named: false,
        });
        world.commit();
        assert_eq!(world.store.rows[&id].state, state);
    }
}

#[test]
fn a_foreign_transaction_in_the_pool_is_waited_for_and_never_outbid() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.use_elsewhere(0);
    world.settle_all();
    let tx = &world.store.rows[&id];
    assert_eq!(tx.sub_state, Some(SubState::ForeignPending));
    let told = |kind: &EventKind| matches!(kind, EventKind::LaneForeignPending { .. });
    assert_eq!(
        world
            .store
            .events
            .iter()
            .filter(|event| told(&event.kind))
            .count(),
        1
    );
    for _ in 0..10 {
        world.tick(31_000);
        world.settle_all();
    }
    assert_eq!(world.store.attempts_of(id).len(), 1);
    assert_eq!(
        world
            .store
            .events
            .iter()
            .filter(|event| told(&event.kind))
            .count(),
        1
    );
    world.heal();
}

/// The account runs dry while it waits, and the lane is read again by somebody who knows only what is written.
#[test]
fn who_reads_the_lane_again_does_not_outbid_it_either() {
    let bump = ResubmitPolicy::Bump {
        percent: 12,
        max_fee: u128::MAX,
    };
    let mut rules = rules();
    rules.resubmit.policy = bump;
    let mut world = World::ready(rules);
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.use_elsewhere(0);
    world.settle_all();
    let hash = world.store.rows[&id].tx_hash.expect("signed");
    let is_dry = |world: &mut World| {
        world.jobs.retain(|job| !matches!(job, Job::Send(_)));
        world.input(Input::Sent {
            hash,
            nonce: Nonce(0),
            outcome: SendOutcome::Underfunded("said the node".to_owned()),
        });
        world.commit();
    };
    is_dry(&mut world);
    world.crash();
    world.follow();
    for _ in 0..10 {
        world.tick(31_000);
        is_dry(&mut world);
        world.answer_all(0, |job| !matches!(job, Job::Send(_)));
        world.commit();
    }
    assert_eq!(world.store.attempts_of(id).len(), 1);
    world.heal();
}

#[test]
fn a_jump_that_a_second_endpoint_does_not_confirm_stops_the_lane() {
    let says = |latest: u64| AccountNonces {
        latest: Nonce(latest),
        pending: Nonce(latest),
    };
    let mut world = World::ready(rules());
    world.accept();
    world.settle_all();
    // One endpoint alone, where there are two: the other is asked.
    world.input(answered(EndpointNonces {
        first: says(3),
        second: None,
        is_complete: false,
    }));
    world.commit();
    assert_eq!(world.lane.next_nonce(), Nonce(1));
    assert!(
        world
            .jobs
            .iter()
            .any(|job| matches!(job, Job::LeaseRequest(_)))
    );
    for (second, moved) in [(1, Nonce(1)), (3, Nonce(3))] {
        world.input(answered(EndpointNonces {
            first: says(3),
            second: Some(says(second)),
            is_complete: true,
        }));
        assert_eq!(world.lane.next_nonce(), moved);
        let why = world.lane.waiting_for();
        assert_eq!(why.is_some_and(|why| why.contains("second")), second == 1);
    }
}

#[test]
fn a_hole_that_a_fork_makes_below_all_of_ours_is_filled() {
    let mut world = World::ready(rules());
    world.use_elsewhere(0);
    world.mine(1, true);
    world.accept();
    world.settle_all();
    world.input(agreed(world.chain.nonces()));
    world.settle_all();
    let ours = world.accept(); // above somebody else's
    world.settle_all();
    world.fork(1, 0, 0xff, true); // which a fork takes, for good
    world.heal();
    assert!(world.store.rows[&ours].inclusion.is_some());
    assert_ne!(world.store.rows[&ours].tx_hash, Some(B256::ZERO));
}

/// No node takes anything for a while, and somebody else uses the first nonce meanwhile.
#[test]
fn those_behind_a_used_nonce_do_not_wait_for_the_proof() {
    let mut world = World::ready(rules());
    let (_, behind) = (world.accept(), world.accept());
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(13, |job| matches!(job, Job::Send(_))); // busy
    world.commit();
    world.use_elsewhere(0);
    world.mine(1, true);
    for _ in 0..3 {
        world.tick(1_000);
        world.settle_all();
    }
    assert_eq!(
        world.store.rows[&behind].sub_state,
        Some(SubState::Submitted)
    );
    world.heal();
}
