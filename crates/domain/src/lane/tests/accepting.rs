//! Accepting, the window, and waiting in the store.

use crate::lane::{Input, LaneRules};
use crate::window::{Depth, Release, Window};
use crate::{EventKind, Nonce, TxState};

use super::rules;
use super::world::{Job, World};

#[test]
fn an_accepted_request_has_its_nonce_at_once() {
    let mut world = World::ready(rules());
    let (first, second) = (world.accept(), world.accept());
    for (id, nonce) in [(first, Nonce(0)), (second, Nonce(1))] {
        let tx = &world.draft.rows[&id];
        assert_eq!((tx.nonce, tx.state), (Some(nonce), TxState::Allocated));
        let told = world
            .draft
            .events
            .iter()
            .find(|event| event.tx_id == Some(id))
            .unwrap();
        assert_eq!(told.kind, EventKind::TxAccepted { nonce: Some(nonce) });
    }
    assert_eq!(
        world.jobs.len(),
        2,
        "both are at the signer, before the commit"
    );
}

#[test]
fn strict_mode_deals_the_next_nonce_only_when_the_last_is_final() {
    let window = Window {
        limit: Some(1),
        releases: Release::Final,
    };
    let mut world = World::ready(LaneRules { window, ..rules() });
    let (first, second) = (world.accept(), world.accept());
    world.settle_all();
    assert_eq!(world.store.rows[&second].nonce, None);
    world.mine(1, true);
    world.settle_all();
    assert!(world.store.rows[&first].inclusion.is_some());
    assert_eq!(world.store.rows[&second].nonce, None, "mined is not final");
    world.mine(0, true);
    world.mine(0, true);
    world.settle_all();
    assert!(world.store.rows[&first].state.is_terminal());
    assert_eq!(world.store.rows[&second].nonce, Some(Nonce(1)));
}

#[test]
fn a_narrow_window_reads_no_more_queued_than_it_can_deal() {
    let window = Window {
        limit: Some(2),
        releases: Release::Mined,
    };
    let mut world = World::ready(LaneRules { window, ..rules() });
    for _ in 0..9 {
        world.queue_elsewhere();
    }
    world.input(Input::QueueChanged);
    world.commit();
    assert!(matches!(world.jobs[..], [Job::Queued { limit: 2, .. }]));
    world.heal();
}

#[test]
fn beyond_the_depth_txs_wait_in_the_store_and_follow_in_order() {
    let mut world = World::ready(LaneRules {
        depth: Depth::Fixed(2),
        ..rules()
    });
    let ids: Vec<_> = (0..5).map(|_| world.accept()).collect();
    world.settle_all();
    assert_eq!(world.chain.pool.len(), 2);
    assert_eq!(world.lane.backlog, Some(Nonce(2)));

    world.mine(2, true);
    while world.follow() {
        world.commit();
    }
    // New requests come while the next page is being read: they queue up behind it.
    let late = [world.accept(), world.accept()];
    world.heal();
    let nonces: Vec<_> = ids
        .iter()
        .chain(&late)
        .map(|id| world.store.rows[id].nonce)
        .collect();
    assert_eq!(nonces, (0..7).map(|n| Some(Nonce(n))).collect::<Vec<_>>());
}

#[test]
fn while_the_chain_is_silent_requests_queue_and_are_adopted_in_order() {
    let mut world = World::new(rules(), Nonce(7));
    let ids = [world.accept(), world.accept(), world.accept()];
    world.commit();
    assert!(
        ids.iter()
            .all(|id| world.store.rows[id].state == TxState::Created)
    );
    assert_eq!(world.store.wakes.len(), 3);
    world.settle_all();
    let nonces = ids.map(|id| world.store.rows[&id].nonce);
    assert_eq!(nonces, [Some(Nonce(7)), Some(Nonce(8)), Some(Nonce(9))]);
    assert_eq!(
        world.store.story(ids[0]),
        ["TxAccepted", "TxAllocated", "TxSubmitted"]
    );
}

#[test]
fn what_another_node_left_in_the_store_is_told_with_its_own_time() {
    let mut world = World::ready(rules());
    let id = world.queue_elsewhere();
    let left_at = world.now;
    world.tick(5_000);
    world.input(Input::QueueChanged);
    world.settle_all();
    assert_eq!(world.store.story(id)[..2], ["TxAccepted", "TxAllocated"]);
    let told = world
        .store
        .events
        .iter()
        .find(|event| event.tx_id == Some(id))
        .unwrap();
    assert_eq!(told.at, left_at);
}

#[test]
fn a_queue_ends_under_a_steady_load() {
    let mut world = World::ready(rules());
    let first = world.queue_elsewhere();
    world.input(Input::QueueChanged);
    world.commit();
    let (txs, more) = world.store.queued_page(10);
    // They come while the page is being read, and are not on it.
    let meanwhile = [world.accept(), world.accept()];
    world.commit();
    assert_eq!(world.store.rows[&meanwhile[0]].nonce, None);
    world.input(Input::Queued { txs, more });
    let nonce = |world: &World, id| world.draft.rows[&id].nonce;
    assert_eq!(nonce(&world, first), Some(Nonce(0)));
    assert_eq!(nonce(&world, meanwhile[0]), Some(Nonce(1)));
    assert_eq!(nonce(&world, meanwhile[1]), Some(Nonce(2)));
    let next = world.accept();
    assert_eq!(nonce(&world, next), Some(Nonce(3)), "nobody waits any more");
    world.commit();
    assert!(world.store.wakes.is_empty());
    world.heal();
}

#[test]
fn a_page_that_nobody_asked_for_deals_nothing() {
    let mut world = World::ready(rules());
    world.queue_elsewhere();
    let (txs, more) = world.store.queued_page(10);
    world.input(Input::QueueChanged);
    world.settle_all();
    world.input(Input::Queued { txs, more });
    assert_eq!(world.lane.next_nonce(), Nonce(1));
    world.heal();
}

#[test]
fn only_what_lies_below_the_backlog_is_at_the_signer() {
    let mut world = World::ready(LaneRules {
        depth: Depth::Fixed(2),
        ..rules()
    });
    for _ in 0..3 {
        world.accept();
    }
    world.settle_all();
    world.mine(2, true);
    while world.follow() {
        world.commit();
    }
    // Dealt after the page was asked for, and on it nevertheless. If it went to the signer now, the
    // next page, read while it is there, could bring it back after it was refused or mined.
    world.accept();
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::Backlog { .. }));
    world.commit();
    assert_eq!(world.lane.backlog, Some(Nonce(3)), "it is read again");
    assert!(!world.lane.slots.contains_key(&Nonce(3)));
    world.heal();
}
