//! What the chain says of the account's nonce, and who held the lane before.

use crate::lane::AccountNonces;
use crate::{EventKind, NodeName, Nonce, Token};

use super::rules;
use super::world::{World, agreed};

fn says(world: &mut World, latest: u64, pending: u64) {
    let nonces = AccountNonces {
        latest: Nonce(latest),
        pending: Nonce(pending),
    };
    world.input(agreed(nonces));
}

#[test]
fn a_stale_nonce_changes_nothing() {
    let mut world = World::ready(rules());
    for _ in 0..3 {
        world.accept();
    }
    world.settle_all();
    world.mine(3, true);
    world.settle_all();
    let before = world.draft.event_seq();
    says(&mut world, 0, 0);
    assert_eq!(world.lane.next_nonce(), Nonce(3));
    assert_eq!(world.lane.gaps(), []);
    assert_eq!(world.draft.event_seq(), before);
    assert_eq!(world.lane.waiting_for(), None);
    world.heal();
}

#[test]
fn a_lane_without_any_tx_takes_the_chains_nonce_as_it_is() {
    let mut world = World::new(rules(), Nonce(5_000));
    world.settle_all();
    world.tick(0);
    world.settle_all();
    assert_eq!(world.lane.next_nonce(), Nonce(5_000));
    assert_eq!(world.store.events, []);
}

#[test]
fn a_credible_jump_raises_the_cursor_and_is_told() {
    let mut world = World::ready(rules());
    world.accept();
    world.commit();
    says(&mut world, 4, 4);
    assert_eq!(world.lane.next_nonce(), Nonce(4));
    let told = &world.draft.events.last().expect("told").kind;
    assert_eq!(
        *told,
        EventKind::LaneForeignNonce {
            nonce: Nonce(1),
            tx_hash: None
        }
    );
}

#[test]
fn a_jump_too_far_halts_the_lane() {
    let mut world = World::ready(rules());
    world.accept();
    world.commit();
    says(&mut world, 12, 12);
    assert_eq!(world.lane.next_nonce(), Nonce(1));
    let reason = world.lane.waiting_for().expect("halted");
    assert!(reason.contains("nonce.maxChainJump"), "{reason}");
    let id = world.accept();
    assert_eq!(world.draft.rows[&id].nonce, None, "nothing is dealt");
    assert!(world.draft.wakes.contains(&id));
}

#[test]
fn a_lane_that_changed_hands_says_from_whom_before_anything_else() {
    let mut world = World::ready(rules());
    world.crash();
    world.accept();
    let told = &world.draft.events[0].kind;
    assert_eq!(
        *told,
        EventKind::LaneFenced {
            from: NodeName("old".into()),
            token: Token(1)
        }
    );
    world.heal();
}
