//! How the cursor follows the chain's nonce, and how a takeover is recorded.

use crate::lane::AccountNonces;
use crate::{EventKind, NodeName, Nonce, Token};

use super::rules;
use super::world::{World, agreed};

fn report_nonces(world: &mut World, latest: u64, pending: u64) {
    let nonces = AccountNonces {
        latest: Nonce(latest),
        pending: Nonce(pending),
    };
    world.input(agreed(nonces));
}

#[test]
fn stale_nonce_changes_nothing() {
    let mut world = World::ready(rules());
    for _ in 0..3 {
        world.accept();
    }
    world.deliver_all();
    world.mine(3, true);
    world.deliver_all();
    let before = world.draft.event_seq();
    report_nonces(&mut world, 0, 0);
    assert_eq!(world.lane.next_nonce(), Nonce(3));
    assert_eq!(world.lane.gaps(), []);
    assert_eq!(world.draft.event_seq(), before);
    assert_eq!(world.lane.waiting_for(), None);
    world.heal();
}

#[test]
fn lane_without_txs_starts_at_the_chains_nonce() {
    let mut world = World::new(rules(), Nonce(5_000));
    world.deliver_all();
    world.tick(0);
    world.deliver_all();
    assert_eq!(world.lane.next_nonce(), Nonce(5_000));
    assert_eq!(world.store.events, []);
}

#[test]
fn credible_jump_raises_the_cursor_and_is_reported() {
    let mut world = World::ready(rules());
    world.accept();
    world.commit();
    report_nonces(&mut world, 4, 4);
    assert_eq!(world.lane.next_nonce(), Nonce(4));
    let reported = &world.draft.events.last().expect("reported").kind;
    assert_eq!(
        *reported,
        EventKind::LaneForeignNonce {
            nonce: Nonce(1),
            tx_hash: None
        }
    );
}

#[test]
fn jump_above_the_maximum_halts_the_lane() {
    let mut world = World::ready(rules());
    world.accept();
    world.commit();
    report_nonces(&mut world, 12, 12);
    assert_eq!(world.lane.next_nonce(), Nonce(1));
    let reason = world.lane.waiting_for().expect("halted");
    assert!(reason.contains("nonce.maxChainJump"), "{reason}");
    let id = world.accept();
    assert_eq!(world.draft.rows[&id].nonce, None, "nothing is dealt");
    assert!(world.draft.queued.contains(&id));
}

#[test]
fn takeover_is_the_first_event_of_the_new_keeper() {
    let mut world = World::ready(rules());
    world.crash();
    world.accept();
    let reported = &world.draft.events[0].kind;
    assert_eq!(
        *reported,
        EventKind::LaneFenced {
            from: NodeName("old".into()),
            token: Token(1)
        }
    );
    world.heal();
}

#[test]
fn floor_is_unstored_until_a_batch_wrote_it() {
    let mut world = World::ready(rules());
    assert!(
        world.lane.has_unstored_floor(),
        "the row of a loaded lane may show a lower one"
    );
    world.lane.count_batch();
    assert!(!world.lane.has_unstored_floor());
    // A page that was read before its last tx ended keeps the floor low without any write.
    world.accept();
    world.lane.count_batch();
    let floor = world.lane.floor_nonce();
    world.heal();
    assert!(world.lane.floor_nonce() > floor);
    assert!(world.lane.has_unstored_floor());
}
