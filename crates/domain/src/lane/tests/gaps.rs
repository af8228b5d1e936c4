//! Nonces that were given up: taken by the next, or filled, and never forgotten.

use crate::lane::{Agreement, CapacityRules, ChainQuery, EndpointNonces, LaneRules, NonceRules};
use crate::window::MempoolDepth;
use crate::{AttemptKind, Nonce, TxId, TxState};

use super::rules;
use super::world::{Job, World, agreed, answered};

/// What the signer answers for this nonce: 0 signs, 5 fails for now, 7 refuses.
fn signer_says(world: &mut World, nonce: u64, how: u8) {
    let is_meant = |job: &Job| matches!(job, Job::Sign(envelope) if envelope.nonce == Nonce(nonce));
    let index = world.jobs.iter().position(is_meant).expect("at the signer");
    world.answer(index, how);
}

fn nonce_of(world: &World, id: TxId) -> Option<Nonce> {
    world.draft.rows[&id].nonce
}

#[test]
fn next_request_gets_the_gap() {
    let mut world = World::ready(rules());
    let (refused, _) = (world.accept(), world.accept());
    signer_says(&mut world, 0, 7);
    let tx = &world.draft.rows[&refused];
    assert_eq!((tx.state, tx.nonce), (TxState::FailedFinal, None));

    // Two rows of one commit may not hold one nonce, so a gap is allocated from the next commit on.
    let same_turn = world.accept();
    world.commit();
    let next_turn = world.accept();
    assert_eq!(nonce_of(&world, same_turn), Some(Nonce(2)));
    assert_eq!(nonce_of(&world, next_turn), Some(Nonce(0)));
    world.heal();
}

#[test]
fn filler_closes_a_gap_that_no_request_takes() {
    let mut world = World::ready(rules());
    let (_, behind) = (world.accept(), world.accept());
    signer_says(&mut world, 0, 7);
    world.deliver_all();
    world.tick(4_000);
    world.deliver_all();
    assert_eq!(world.lane.gaps(), [Nonce(0)], "somebody may still come");
    for _ in 0..2 {
        // The chain is queried first whether a foreign transaction is pending there.
        world.tick(2_000);
        world.deliver_all();
    }
    let filler = world.store.holder(Nonce(0)).expect("filled").id;
    assert_eq!(world.store.attempts_of(filler)[0].kind, AttemptKind::Filler);
    world.heal();
    assert!(world.store.rows[&behind].inclusion.is_some());
}

/// The keeper dies before the signature of its filler came, and a foreign transaction takes the nonce.
#[test]
fn filler_that_was_stored_unsigned_stays_a_filler() {
    let mut world = World::ready(rules());
    let _behind = (world.accept(), world.accept());
    signer_says(&mut world, 0, 7);
    world.deliver_all();
    for _ in 0..10 {
        world.tick(2_000);
        world.answer_all(0, |job| matches!(job, Job::QueryNonces(_)));
        world.commit();
    }
    let filler = world.store.holder(Nonce(0)).expect("filled").id;
    assert!(world.store.attempts_of(filler).is_empty());
    world.crash();
    world.deliver_all();
    assert_eq!(world.store.attempts_of(filler)[0].kind, AttemptKind::Filler);
    world.heal();
}

#[test]
fn living_endpoint_fills_a_gap_while_the_other_one_is_dead() {
    let mut world = World::ready(rules());
    let _behind = (world.accept(), world.accept());
    signer_says(&mut world, 0, 7);
    world.deliver_all();
    for (agreement, is_filled) in [(Agreement::One, false), (Agreement::Living, true)] {
        for _ in 0..4 {
            world.tick(4_000);
            world.commit();
            let nonces = world.chain.nonces();
            world.jobs.retain(|job| !matches!(job, Job::QueryNonces(_)));
            world.input(answered(EndpointNonces::new(nonces, None, agreement)));
            world.commit();
        }
        assert_eq!(world.store.holder(Nonce(0)).is_some(), is_filled);
    }
    world.heal();
}

#[test]
fn gap_without_txs_behind_it_is_no_work() {
    let mut world = World::ready(rules());
    world.accept();
    signer_says(&mut world, 0, 7);
    world.deliver_all();
    assert_eq!(world.lane.gaps(), [Nonce(0)]);
    assert!(world.lane.is_idle());
}

/// Mempool depth 2, both places taken, and the nonce before them waits for its signature.
fn signed_out_of_order() -> World {
    let mut world = World::ready(LaneRules {
        capacity: CapacityRules {
            mempool_depth: MempoolDepth::Fixed(2),
            ..rules().capacity
        },
        ..rules()
    });
    let _given_up = (world.accept(), world.accept());
    signer_says(&mut world, 0, 7);
    world.accept();
    world.commit();
    world.deliver_all();
    world
}

#[test]
fn tx_below_all_slots_does_not_wait_for_room() {
    let mut world = signed_out_of_order();
    world.crash();
    world.answer_all(0, |_| true);
    world.tick(0);
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::QueryNonces(_)));
    let taker = world.accept();
    assert_eq!(nonce_of(&world, taker), Some(Nonce(0)));
    assert_eq!(
        world.lane.paging.backlog_from(),
        Some(Nonce(0)),
        "the head is not known: no fees, no envelope"
    );
    world.deliver_all();
    assert!(world.chain.pool.contains_key(&Nonce(0)));
    world.heal();
}

/// Read again after a crash: a page that holds 0, 2 and 3 is on its way, and 1 is a gap.
fn gap_behind_a_page() -> World {
    let mut world = World::ready(rules());
    for _ in 0..4 {
        world.accept();
    }
    signer_says(&mut world, 1, 7);
    world.commit();
    world.crash();
    world.tick(0);
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::QueryNonces(_)));
    world.follow();
    world.commit();
    assert!(matches!(
        world.jobs[..],
        [Job::Backlog { from: Nonce(0), .. }]
    ));
    world.freeze(0);
    world
}

#[test]
fn gap_allocated_while_a_page_is_read_is_not_forgotten() {
    let mut world = gap_behind_a_page();
    let taker = world.accept();
    world.commit();
    assert_eq!(nonce_of(&world, taker), Some(Nonce(1)));
    world.answer(0, 0);
    world.commit();
    assert_eq!(world.lane.paging.backlog_from(), Some(Nonce(1)));
    world.heal();
    assert!(world.store.rows[&taker].state.is_terminal());
}

#[test]
fn gap_is_not_filled_before_its_turn() {
    let mut world = gap_behind_a_page();
    world.tick(6_000);
    world.commit();
    assert_eq!(world.lane.gaps(), [Nonce(1)]);
    world.answer(0, 0);
    world.tick(6_000);
    assert_eq!(world.lane.gaps(), [], "now it is");
    world.heal();
}

#[test]
fn gap_made_before_the_first_chain_answer_is_kept() {
    let mut world = World::ready(rules());
    world.accept();
    world.accept();
    signer_says(&mut world, 1, 0);
    world.commit();
    world.crash();
    while world.follow() {
        world.commit();
    }
    world.answer_all(0, |job| matches!(job, Job::Backlog { .. }));
    signer_says(&mut world, 0, 7);
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::QueryNonces(_)));
    world.commit();
    assert_eq!(world.lane.gaps(), [Nonce(0)]);
    world.heal();
}

#[test]
fn nonce_allocated_before_the_first_chain_answer_is_no_gap() {
    let mut world = World::ready(LaneRules {
        nonce: NonceRules {
            chain_query: ChainQuery::Off,
            ..rules().nonce
        },
        ..rules()
    });
    world.accept();
    world.accept();
    world.commit();
    world.input(agreed(world.chain.nonces()));
    world.commit();
    assert_eq!(world.lane.gaps(), []);
    world.heal();
}

/// A foreign transaction stands between two of ours; the upper one is final when a reorg loses both of them.
fn foreign_nonce_lost_below_a_final_one(is_loaded_between: bool) {
    let mut world = World::ready(rules());
    world.accept();
    world.deliver_all();
    let mine = |world: &mut World, blocks: u64| {
        for _ in 0..blocks {
            world.mine(1, true);
            world.tick(100);
            world.deliver_all();
        }
    };
    mine(&mut world, 6);
    world.use_elsewhere(0);
    mine(&mut world, 1);
    world.crash(); // the next load raises the cursor above the foreign transaction
    world.deliver_all();
    let ours = world.accept();
    assert_eq!(nonce_of(&world, ours), Some(Nonce(2)));
    world.deliver_all();
    mine(&mut world, 3);
    assert!(world.store.rows[&ours].state.is_terminal());
    if is_loaded_between {
        world.crash();
        world.deliver_all();
    }
    world.fork(4, 0, 0xff, true);
    world.deliver_all();
    world.heal();
    let filler = world.store.holder(Nonce(1)).expect("filled").id;
    assert_eq!(world.store.attempts_of(filler)[0].kind, AttemptKind::Filler);
}

#[test]
fn foreign_nonce_that_a_reorg_loses_below_a_final_one_is_filled() {
    foreign_nonce_lost_below_a_final_one(false);
}

#[test]
fn foreign_nonce_that_a_reorg_loses_is_filled_after_a_load_too() {
    foreign_nonce_lost_below_a_final_one(true);
}
