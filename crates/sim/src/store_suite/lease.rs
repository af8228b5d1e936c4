//! Leases: every arrow of the seeds' diagram, renewal, and giving back.

use std::time::Duration;

use domain::{NodeName, Right, Token};
use engine::ports::{Acquired, Ask, Renewal};

use super::Backend;
use super::kit::{Kit, LEASE, SKEW, lane, node, node_in_life};

const A_MOMENT: Duration = Duration::from_millis(1);

/// The last moment at which `until` is not reached yet.
fn just_before(until: Duration) -> Duration {
    until.saturating_sub(A_MOMENT)
}

pub async fn a_lane_nobody_held_is_granted_with_token_1(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let grant = kit.grant();
    let (right, taken_from) = granted(kit.acquire_as(&node("a"), lane(1), grant).await);
    assert_eq!(
        (right.token, right.grant, taken_from),
        (Token(1), grant, None)
    );
}

pub async fn the_keeper_that_asks_again_gets_a_new_grant_under_its_token(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let first = kit.keeper(&node("a"), lane(1)).await.right;
    let grant = kit.grant();
    let (second, taken_from) = granted(kit.acquire_as(&node("a"), lane(1), grant).await);
    assert_eq!(second, Right { grant, ..first });
    assert_eq!(taken_from, None);
}

pub async fn the_keeper_keeps_its_token_until_the_skew_is_over(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("a"), lane(1)).await;
    backend.advance(just_before(LEASE + SKEW)).await;
    let (right, taken_from) = granted(kit.acquire(&node("a"), lane(1)).await);
    assert_eq!((right.token, taken_from), (Token(1), None));
}

pub async fn the_keeper_that_comes_too_late_gets_the_next_token(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("a"), lane(1)).await;
    backend.advance(LEASE + SKEW).await;
    let (right, taken_from) = granted(kit.acquire(&node("a"), lane(1)).await);
    assert_eq!((right.token, taken_from), (Token(2), Some(node("a").node)));
}

pub async fn another_node_is_refused_until_the_skew_is_over(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("a"), lane(1)).await;
    for wait in [Duration::ZERO, LEASE, just_before(SKEW)] {
        backend.advance(wait).await;
        let answer = kit.acquire(&node("b"), lane(1)).await;
        let Acquired::NotKeeper { lease } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((lease.owner, lease.token), (node("a").node, Token(1)));
        assert_eq!(lease.incarnation, node("a").incarnation);
    }
}

pub async fn another_node_takes_over_when_the_skew_is_over(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let old = kit.keeper(&node("a"), lane(1)).await.right;
    backend.advance(LEASE + SKEW).await;
    let (right, taken_from) = granted(kit.acquire(&node("b"), lane(1)).await);
    assert_eq!((right.lane, right.token), (old.lane, Token(2)));
    assert_eq!(taken_from, Some(node("a").node));
    assert!(matches!(
        kit.acquire(&node("a"), lane(1)).await,
        Acquired::NotKeeper { .. }
    ));
}

pub async fn a_restarted_node_takes_its_lane_over_at_once(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("a"), lane(1)).await;
    let reborn = node_in_life("a", 2);
    let (right, taken_from) = granted(kit.acquire(&reborn, lane(1)).await);
    assert_eq!((right.token, taken_from), (Token(2), Some(reborn.node)));
}

pub async fn a_lane_given_back_is_taken_at_once_under_the_next_token(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.store
        .release(&node("a"), &[keeper.right])
        .await
        .expect("release");
    let (right, _) = granted(kit.acquire(&node("b"), lane(1)).await);
    assert_eq!(right.token, Token(2));
}

pub async fn a_node_gives_back_only_what_is_its_own(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let lost = kit.keeper(&node("a"), lane(1)).await.right;
    backend.advance(LEASE + SKEW).await;
    kit.keeper(&node("b"), lane(1)).await;
    kit.store
        .release(&node("a"), &[lost])
        .await
        .expect("release");
    kit.store
        .release(&node_in_life("b", 2), &[lost])
        .await
        .expect("release");
    assert!(matches!(
        kit.acquire(&node("c"), lane(1)).await,
        Acquired::NotKeeper { .. }
    ));
}

pub async fn a_renewal_extends_from_now(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let right = kit.keeper(&node("a"), lane(1)).await.right;
    backend.advance(just_before(LEASE)).await;
    assert_eq!(renew(&kit, &node("a"), &[right]).await, [Renewal::Renewed]);
    backend.advance(just_before(LEASE + SKEW)).await;
    assert!(matches!(
        kit.acquire(&node("b"), lane(1)).await,
        Acquired::NotKeeper { .. }
    ));
    backend.advance(A_MOMENT).await;
    let (taken, _) = granted(kit.acquire(&node("b"), lane(1)).await);
    assert_eq!(taken.token, Token(2), "a renewal leaves the token alone");
}

pub async fn a_lease_that_ran_out_and_nobody_took_is_renewed(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let right = kit.keeper(&node("a"), lane(1)).await.right;
    backend.advance(10 * LEASE).await;
    assert_eq!(renew(&kit, &node("a"), &[right]).await, [Renewal::Renewed]);
    assert!(matches!(
        kit.acquire(&node("b"), lane(1)).await,
        Acquired::NotKeeper { .. }
    ));
}

pub async fn renewals_are_answered_one_by_one_in_order(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let (a, b) = (node("a"), node("b"));
    let kept = kit.keeper(&a, lane(1)).await.right;
    let taken = kit.keeper(&a, lane(2)).await.right;
    let given_back = kit.keeper(&a, lane(3)).await.right;
    kit.store
        .release(&a, &[taken, given_back])
        .await
        .expect("release");
    kit.keeper(&b, lane(2)).await;
    let answers = renew(&kit, &a, &[taken, kept, given_back]).await;
    assert_eq!(answers, [Renewal::Lost, Renewal::Renewed, Renewal::Lost]);
    assert_eq!(
        renew(&kit, &node_in_life("a", 2), &[kept]).await,
        [Renewal::Lost]
    );
    assert_eq!(renew(&kit, &a, &[]).await, []);
}

pub async fn many_lanes_are_asked_for_at_once_and_answered_in_order(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("b"), lane(2)).await;
    let asked: Vec<_> = [3, 2, 1].map(|signer| (lane(signer), kit.grant())).into();
    let answers = kit
        .store
        .acquire(&node("a"), &asked)
        .await
        .expect("acquire");
    let [third, second, first] = answers.try_into().expect("three lanes, three answers");
    assert!(matches!(second, Acquired::NotKeeper { .. }), "{second:?}");
    let ((third, _), (first, _)) = (granted(third), granted(first));
    assert_eq!((third.grant, first.grant), (asked[0].1, asked[2].1));
    assert_ne!(third.lane, first.lane);
}

fn granted(answer: Acquired) -> (Right, Option<NodeName>) {
    match answer {
        Acquired::Granted { right, taken_from } => (right, taken_from),
        Acquired::NotKeeper { lease } => panic!("held by {lease:?}"),
    }
}

async fn renew(kit: &Kit, ask: &Ask, rights: &[Right]) -> Vec<Renewal> {
    kit.store.renew(ask, rights).await.expect("renew")
}
