//! Foreign use of the account: before our attempt is sent, after it, and in the pool.

use super::resubmission::REJECTED;
use super::rules;
use super::world::{Job, World, agreed, answered};
use crate::lane::{
    AccountNonces, Agreement, EndpointNonces, FOREIGN_FINALITY_DEPTH_MIN, Input, LaneRules,
    NonceConsumer, NonceRules, OnForeignNonce, ResubmitPolicy,
};
use crate::{B256, EffectDigest, EventKind, Nonce, SendOutcome, SubState, TxId, TxState, U256};

/// One tx of ours at nonce 0, signed and sent, while a foreign transaction stands there in a block.
fn used_by_a_foreign_transaction(rules: LaneRules) -> (World, TxId) {
    let mut world = World::ready(rules);
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.use_elsewhere(0);
    world.mine(1, true);
    world.deliver_all();
    (world, id)
}

/// A consumer that did something else than any tx here wants.
fn by(hash: B256) -> NonceConsumer {
    let effect_digest = EffectDigest::of(None, U256::MAX, &[]);
    NonceConsumer::Transaction {
        hash,
        effect_digest,
    }
}

fn blocks(world: &mut World, count: u64) {
    for _ in 0..count {
        world.mine(usize::MAX, true);
        world.tick(100);
        world.deliver_all();
    }
}

/// Blocks come until what is mined is final for foreign use; queries are not answered.
fn become_final(world: &mut World) {
    for _ in 0..=FOREIGN_FINALITY_DEPTH_MIN {
        world.mine(0, true);
        world.follow();
        world.commit();
    }
}

fn words(world: &World, id: TxId) -> Vec<&'static str> {
    world.store.story(id)
}

#[test]
fn consumed_nonce_is_given_up_only_at_finality_depth() {
    let (mut world, id) = used_by_a_foreign_transaction(rules());
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN - 1);
    assert_eq!(world.store.rows[&id].nonce, Some(Nonce(0)), "too early");
    blocks(&mut world, 3);
    assert_eq!(world.store.rows[&id].nonce, Some(Nonce(1)));
    let story = words(&world, id);
    assert!(
        story.contains(&"TxRequeued") && story.contains(&"TxAllocated"),
        "{story:?}"
    );
    let reported = world.store.events.iter().any(|event| {
        matches!(
            event.kind,
            EventKind::LaneForeignNonce {
                nonce: Nonce(0),
                tx_hash: Some(_)
            }
        )
    });
    assert!(reported);
    world.heal();
    super::invariants::at_the_end(&world);
}

/// The search for a claimed nonce reads up to the tip, and its answer may come when the lane has allocated that nonce.
#[test]
fn consumer_in_a_block_that_is_not_final_gives_no_other_nonce() {
    let (mut world, id) = used_by_a_foreign_transaction(rules());
    let consumed_at = world.chain.height();
    for _ in 1..FOREIGN_FINALITY_DEPTH_MIN {
        world.mine(0, true);
        world.follow();
        world.commit();
    }
    for up_to in [consumed_at, world.chain.height()] {
        world.input(Input::Consumed {
            nonce: Nonce(0),
            up_to,
            by: Some(by(B256::repeat_byte(0xee))),
            hashes: Vec::new(),
            is_named: false,
        });
        world.commit();
        assert_eq!(world.store.rows[&id].nonce, Some(Nonce(0)));
    }
}

#[test]
fn hold_keeps_the_tx_stuck_for_a_decision() {
    let (mut world, id) = used_by_a_foreign_transaction(LaneRules {
        nonce: NonceRules {
            on_foreign_nonce: OnForeignNonce::Hold,
            ..rules().nonce
        },
        ..rules()
    });
    let behind = world.accept();
    world.deliver_all();
    blocks(&mut world, FOREIGN_FINALITY_DEPTH_MIN + 3);
    let tx = &world.store.rows[&id];
    assert_eq!(
        (tx.state, tx.sub_state),
        (TxState::Stuck, Some(SubState::ForeignNonce))
    );
    assert!(
        tx.reason
            .as_ref()
            .is_some_and(|why| why.contains("foreign transaction")),
        "{tx:?}"
    );
    assert!(
        world.store.rows[&behind].state.is_terminal(),
        "the others go on"
    );
}

#[test]
fn late_receipt_of_ours_is_no_foreign_use() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.deliver_all();
    world.mine(1, false); // ours, and its receipt got lost
    world.follow();
    world.tick(100);
    world.input(agreed(world.chain.nonces()));
    world.input(Input::Consumed {
        nonce: Nonce(0),
        up_to: 0,
        by: Some(NonceConsumer::NotConsumed),
        hashes: Vec::new(),
        is_named: false,
    });
    world.deliver_all();
    world.tick(4_000); // the follower did not bring it in time
    world.deliver_all();
    assert!(world.store.rows[&id].inclusion.is_some());
    world.heal();
}

#[test]
fn unknown_transaction_with_the_same_effect_is_not_repeated() {
    let (mut world, id) = used_by_a_foreign_transaction(rules());
    become_final(&mut world);
    let effect_digest = world.store.rows[&id].request.payload.effect_digest();
    let hash = B256::repeat_byte(0xee);
    world.input(Input::Consumed {
        nonce: Nonce(0),
        up_to: 0,
        by: Some(NonceConsumer::Transaction {
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
    assert!(
        reason.contains("did exactly what this tx asks for"),
        "{reason}"
    );
}

#[test]
fn own_attempt_that_consumed_the_nonce_is_not_requeued() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.deliver_all();
    world.mine(1, false);
    let hash = world.store.rows[&id].tx_hash.expect("signed");
    world.input(Input::Consumed {
        nonce: Nonce(0),
        up_to: 0,
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
fn unseen_consumer_needs_a_decision() {
    let (mut world, id) = used_by_a_foreign_transaction(rules());
    become_final(&mut world);
    let ours: Vec<B256> = world.lane.hashes().collect();
    for (hashes, state) in [(Vec::new(), TxState::Tracking), (ours, TxState::Stuck)] {
        world.input(Input::Consumed {
            nonce: Nonce(0),
            up_to: 0,
            by: Some(NonceConsumer::Unattributed),
            hashes,
            is_named: false,
        });
        world.commit();
        assert_eq!(world.store.rows[&id].state, state);
    }
}

/// A tx that every node rejects, and whose no-op is signed when something else consumes its nonce. Its state after that.
fn given_up_and_consumed(
    may_be_lost: bool,
    by: impl Fn(EffectDigest) -> NonceConsumer,
) -> (TxState, Option<SubState>) {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.answer_all(REJECTED, |job| matches!(job, Job::Send(_)));
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    assert_eq!(world.store.attempts_of(id).len(), 2);
    world.use_elsewhere(0);
    world.mine(1, true);
    become_final(&mut world);
    if may_be_lost {
        world.lane = world.lane.clone().with_possible_loss(true);
    }
    let wanted = world.store.rows[&id].request.payload.effect_digest();
    world.input(Input::Consumed {
        nonce: Nonce(0),
        up_to: 0,
        by: Some(by(wanted)),
        hashes: world.lane.hashes().collect(),
        is_named: false,
    });
    world.commit();
    let row = &world.store.rows[&id];
    (row.state, row.sub_state)
}

#[test]
fn given_up_tx_is_held_where_its_payload_may_have_been_executed() {
    const HASH: B256 = B256::repeat_byte(0xee);
    let held = (TxState::Stuck, Some(SubState::ForeignNonce));
    let ended = (TxState::FailedFinal, Some(SubState::Rejected));
    assert_eq!(given_up_and_consumed(false, |_| by(HASH)), ended);
    let unseen = given_up_and_consumed(false, |_| NonceConsumer::Unattributed);
    assert_eq!(unseen, held);
    let same_effect = given_up_and_consumed(false, |effect_digest| NonceConsumer::Transaction {
        hash: HASH,
        effect_digest,
    });
    assert_eq!(same_effect, held);
    assert_eq!(given_up_and_consumed(true, |_| by(HASH)), held, "lost");
}

#[test]
fn pending_foreign_transaction_is_never_outbid() {
    let mut world = World::ready(rules());
    let id = world.accept();
    world.answer_all(0, |job| matches!(job, Job::Sign(_)));
    world.commit();
    world.use_elsewhere(0);
    world.deliver_all();
    let tx = &world.store.rows[&id];
    assert_eq!(tx.sub_state, Some(SubState::ForeignPending));
    let reported = |kind: &EventKind| matches!(kind, EventKind::LaneForeignPending { .. });
    assert_eq!(
        world
            .store
            .events
            .iter()
            .filter(|event| reported(&event.kind))
            .count(),
        1
    );
    for _ in 0..10 {
        world.tick(31_000);
        world.deliver_all();
    }
    assert_eq!(world.store.attempts_of(id).len(), 1);
    assert_eq!(
        world
            .store
            .events
            .iter()
            .filter(|event| reported(&event.kind))
            .count(),
        1
    );
    world.heal();
}

/// The account runs dry while it waits, and the lane is loaded again by a keeper that knows only the store.
#[test]
fn next_keeper_does_not_outbid_a_foreign_transaction_either() {
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
    world.deliver_all();
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
fn jump_that_no_second_endpoint_confirms_halts_the_lane() {
    let report_nonces = |latest: u64| AccountNonces {
        latest: Nonce(latest),
        pending: Nonce(latest),
    };
    let mut world = World::ready(rules());
    world.accept();
    world.deliver_all();
    // One endpoint alone, where there are two: the other is queried, and a dead one does not agree.
    for agreement in [Agreement::Living, Agreement::One] {
        world.input(answered(EndpointNonces::new(
            report_nonces(3),
            None,
            agreement,
        )));
        world.commit();
        assert_eq!(world.lane.next_nonce(), Nonce(1));
    }
    assert!(
        world
            .jobs
            .iter()
            .any(|job| matches!(job, Job::QueryNonces(_)))
    );
    for (second, moved) in [(1, Nonce(1)), (3, Nonce(3))] {
        world.input(answered(EndpointNonces::new(
            report_nonces(3),
            Some(report_nonces(second)),
            Agreement::Quorum,
        )));
        assert_eq!(world.lane.next_nonce(), moved);
        let why = world.lane.waiting_for();
        assert_eq!(why.is_some_and(|why| why.contains("second")), second == 1);
    }
}

#[test]
fn hole_that_a_reorg_makes_below_all_slots_is_filled() {
    let mut world = World::ready(rules());
    world.use_elsewhere(0);
    world.mine(1, true);
    world.accept();
    world.deliver_all();
    world.input(agreed(world.chain.nonces()));
    world.deliver_all();
    let ours = world.accept(); // above the foreign one
    world.deliver_all();
    world.fork(1, 0, 0xff, true); // which a fork takes, for good
    world.heal();
    assert!(world.store.rows[&ours].inclusion.is_some());
    assert_ne!(world.store.rows[&ours].tx_hash, Some(B256::ZERO));
}

/// No node accepts anything for a while, and a foreign transaction uses the first nonce meanwhile.
#[test]
fn slots_behind_a_used_nonce_do_not_wait_for_proof() {
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
        world.deliver_all();
    }
    assert_eq!(
        world.store.rows[&behind].sub_state,
        Some(SubState::Submitted)
    );
    world.heal();
}
