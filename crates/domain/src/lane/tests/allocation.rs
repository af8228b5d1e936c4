//! Accepting, the window, and waiting in the store.

use crate::lane::{CapacityRules, Input, LaneRules};
use crate::window::{MempoolDepth, Release, Window};
use crate::{EventKind, Nonce, TxState};

use super::rules;
use super::world::{Job, World};

#[test]
fn accepted_request_gets_its_nonce_at_once() {
    let mut world = World::ready(rules());
    let (first, second) = (world.accept(), world.accept());
    for (id, nonce) in [(first, Nonce(0)), (second, Nonce(1))] {
        let tx = &world.draft.rows[&id];
        assert_eq!((tx.nonce, tx.state), (Some(nonce), TxState::Allocated));
        let reported = world
            .draft
            .events
            .iter()
            .find(|event| event.tx_id == Some(id))
            .unwrap();
        assert_eq!(reported.kind, EventKind::TxAccepted { nonce: Some(nonce) });
    }
    assert_eq!(
        world.jobs.len(),
        2,
        "both are at the signer, before the commit"
    );
}

#[test]
fn strict_mode_allocates_the_next_nonce_only_after_finality() {
    let window = Window {
        limit: Some(1),
        releases: Release::Final,
    };
    let mut world = World::ready(LaneRules {
        capacity: CapacityRules {
            window,
            ..rules().capacity
        },
        ..rules()
    });
    let (first, second) = (world.accept(), world.accept());
    world.deliver_all();
    assert_eq!(world.store.rows[&second].nonce, None);
    world.mine(1, true);
    world.deliver_all();
    assert!(world.store.rows[&first].inclusion.is_some());
    assert_eq!(world.store.rows[&second].nonce, None, "mined is not final");
    world.mine(0, true);
    world.mine(0, true);
    world.deliver_all();
    assert!(world.store.rows[&first].state.is_terminal());
    assert_eq!(world.store.rows[&second].nonce, Some(Nonce(1)));
}

#[test]
fn narrow_window_reads_no_more_queued_than_it_can_allocate() {
    let window = Window {
        limit: Some(2),
        releases: Release::Mined,
    };
    let mut world = World::ready(LaneRules {
        capacity: CapacityRules {
            window,
            ..rules().capacity
        },
        ..rules()
    });
    for _ in 0..9 {
        world.queue_elsewhere();
    }
    world.input(Input::QueueChanged);
    world.commit();
    assert!(matches!(world.jobs[..], [Job::Queued { limit: 2, .. }]));
    world.heal();
}

#[test]
fn txs_beyond_the_mempool_depth_wait_in_the_store_in_order() {
    let mut world = World::ready(LaneRules {
        capacity: CapacityRules {
            mempool_depth: MempoolDepth::Fixed(2),
            ..rules().capacity
        },
        ..rules()
    });
    let ids: Vec<_> = (0..5).map(|_| world.accept()).collect();
    world.deliver_all();
    assert_eq!(world.chain.pool.len(), 2);
    assert_eq!(world.lane.paging.backlog_from(), Some(Nonce(2)));

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
fn requests_queue_in_order_while_the_chain_is_unreachable() {
    let mut world = World::new(rules(), Nonce(7));
    let ids = [world.accept(), world.accept(), world.accept()];
    world.commit();
    assert!(
        ids.iter()
            .all(|id| world.store.rows[id].state == TxState::Created)
    );
    assert_eq!(world.store.queued.len(), 3);
    world.deliver_all();
    let nonces = ids.map(|id| world.store.rows[&id].nonce);
    assert_eq!(nonces, [Some(Nonce(7)), Some(Nonce(8)), Some(Nonce(9))]);
    assert_eq!(
        world.store.story(ids[0]),
        ["TxAccepted", "TxAllocated", "TxSubmitted"]
    );
}

#[test]
fn tx_queued_by_another_node_is_reported_with_its_own_time() {
    let mut world = World::ready(rules());
    let id = world.queue_elsewhere();
    let left_at = world.now;
    world.tick(5_000);
    world.input(Input::QueueChanged);
    world.deliver_all();
    assert_eq!(world.store.story(id)[..2], ["TxAccepted", "TxAllocated"]);
    let reported = world
        .store
        .events
        .iter()
        .find(|event| event.tx_id == Some(id))
        .unwrap();
    assert_eq!(reported.at, left_at);
}

#[test]
fn queue_ends_under_steady_load() {
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
    assert!(world.store.queued.is_empty());
    world.heal();
}

#[test]
fn unrequested_page_allocates_nothing() {
    let mut world = World::ready(rules());
    world.queue_elsewhere();
    let (txs, more) = world.store.queued_page(10);
    world.input(Input::QueueChanged);
    world.deliver_all();
    world.input(Input::Queued { txs, more });
    assert_eq!(world.lane.next_nonce(), Nonce(1));
    world.heal();
}

#[test]
fn only_nonces_below_the_backlog_are_at_the_signer() {
    let mut world = World::ready(LaneRules {
        capacity: CapacityRules {
            mempool_depth: MempoolDepth::Fixed(2),
            ..rules().capacity
        },
        ..rules()
    });
    for _ in 0..3 {
        world.accept();
    }
    world.deliver_all();
    world.mine(2, true);
    while world.follow() {
        world.commit();
    }
    // Allocated after the page was requested, and on it nevertheless. If it went to the signer now, the
    // next page, read while it is there, could bring it back after it was refused or mined.
    world.accept();
    world.commit();
    world.answer_all(0, |job| matches!(job, Job::Backlog { .. }));
    world.commit();
    assert_eq!(
        world.lane.paging.backlog_from(),
        Some(Nonce(3)),
        "it is read again"
    );
    assert!(world.lane.slots.get(Nonce(3)).is_none());
    world.heal();
}
