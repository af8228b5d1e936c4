//! Leases: every arrow of the seeds' diagram, renewal, and giving back.

use std::time::Duration;

use domain::{LeaseGrant, NodeName, Token};
use engine::ports::{AcquireOutcome, LeaseRequest, RenewOutcome};

use super::Backend;
use super::kit::{Kit, LEASE, SKEW, lane, node, node_in_life};

/// The last moment at which `until` is surely not reached yet.
fn just_before(backend: &dyn Backend, until: Duration) -> Duration {
    until.saturating_sub(backend.monotonic())
}

pub async fn a_lane_nobody_held_is_granted_with_token_1(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let grant = kit.grant();
    let (lease_grant, previous_keeper) = granted(kit.acquire_as(&node("a"), lane(1), grant).await);
    assert_eq!(
        (lease_grant.token, lease_grant.grant, previous_keeper),
        (Token(1), grant, None)
    );
}

pub async fn the_keeper_that_asks_again_gets_a_new_grant_under_its_token(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let first = kit.keeper(&node("a"), lane(1)).await.lease_grant;
    let grant = kit.grant();
    let (second, previous_keeper) = granted(kit.acquire_as(&node("a"), lane(1), grant).await);
    assert_eq!(second, LeaseGrant { grant, ..first });
    assert_eq!(previous_keeper, None);
}

pub async fn the_keeper_keeps_its_token_until_the_skew_is_over(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("a"), lane(1)).await;
    backend.advance(just_before(backend, LEASE + SKEW)).await;
    let (lease_grant, previous_keeper) = granted(kit.acquire(&node("a"), lane(1)).await);
    assert_eq!((lease_grant.token, previous_keeper), (Token(1), None));
}

pub async fn the_keeper_that_comes_too_late_gets_the_next_token(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("a"), lane(1)).await;
    backend.advance(LEASE + SKEW).await;
    let (lease_grant, previous_keeper) = granted(kit.acquire(&node("a"), lane(1)).await);
    assert_eq!(
        (lease_grant.token, previous_keeper),
        (Token(2), Some(node("a").node))
    );
}

pub async fn another_node_is_refused_until_the_skew_is_over(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("a"), lane(1)).await;
    for wait in [Duration::ZERO, LEASE, just_before(backend, SKEW)] {
        backend.advance(wait).await;
        let answer = kit.acquire(&node("b"), lane(1)).await;
        let AcquireOutcome::NotKeeper { lease, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((lease.owner, lease.token), (node("a").node, Token(1)));
        assert_eq!(lease.incarnation, node("a").incarnation);
    }
}

pub async fn who_is_refused_is_told_how_long_the_lease_lasts(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("a"), lane(1)).await;
    let left = async || {
        let answer = kit.acquire(&node("b"), lane(1)).await;
        let AcquireOutcome::NotKeeper { left, .. } = answer else {
            panic!("{answer:?}")
        };
        left
    };
    let about = |expected: Duration| expected.saturating_sub(backend.monotonic())..=expected;
    assert!(about(LEASE).contains(&left().await));
    backend.advance(LEASE / 2).await;
    assert!(about(LEASE / 2).contains(&left().await));
    backend.advance(LEASE / 2).await;
    assert_eq!(
        left().await,
        Duration::ZERO,
        "over, and left alone for the skew"
    );
}

pub async fn a_lease_of_a_node_that_was_seen_at_work_is_left_alone(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let lease_grant = kit.keeper(&node("a"), lane(1)).await.lease_grant;
    backend.advance(100 * LEASE).await;
    // The store's clock may have jumped: the node itself was seen a moment ago.
    let alive = LeaseRequest {
        alive: vec![node("c").incarnation, node("a").incarnation],
        ..node("b")
    };
    let answer = kit.acquire(&alive, lane(1)).await;
    let AcquireOutcome::NotKeeper { lease, left } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((lease.owner, lease.token), (node("a").node, Token(1)));
    assert_eq!(left, Duration::ZERO, "by the store's clock");
    assert_eq!(
        renew(&kit, &node("a"), &[lease_grant]).await,
        [RenewOutcome::Renewed]
    );
}

pub async fn only_the_life_that_was_seen_at_work_is_left_alone(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let given_back = kit.keeper(&node("a"), lane(2)).await.lease_grant;
    kit.keeper(&node("a"), lane(1)).await;
    let alive = LeaseRequest {
        alive: vec![node("a").incarnation],
        ..node("b")
    };
    kit.store
        .release(&node("a"), &[given_back])
        .await
        .expect("release");
    let (lease_grant, _) = granted(kit.acquire(&alive, lane(2)).await);
    assert_eq!(lease_grant.token, Token(2), "what it gave back is free");

    backend.advance(LEASE + SKEW).await;
    let next_life = LeaseRequest {
        alive: vec![node_in_life("a", 2).incarnation],
        ..node("b")
    };
    let (lease_grant, _) = granted(kit.acquire(&next_life, lane(1)).await);
    assert_eq!(
        lease_grant.token,
        Token(2),
        "the life that held it was not seen"
    );
}

pub async fn a_running_lease_of_a_silent_node_is_taken(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let old = kit.keeper(&node("a"), lane(1)).await.lease_grant;
    let other_life = LeaseRequest {
        silent: vec![node_in_life("a", 2).incarnation],
        ..node("b")
    };
    let answer = kit.acquire(&other_life, lane(1)).await;
    assert!(
        matches!(answer, AcquireOutcome::NotKeeper { .. }),
        "{answer:?}"
    );

    let silent = LeaseRequest {
        silent: vec![node("c").incarnation, node("a").incarnation],
        ..node("b")
    };
    let (lease_grant, previous_keeper) = granted(kit.acquire(&silent, lane(1)).await);
    assert_eq!(
        (lease_grant.token, previous_keeper),
        (Token(2), Some(node("a").node))
    );
    assert_eq!(renew(&kit, &node("a"), &[old]).await, [RenewOutcome::Lost]);
    assert!(matches!(
        kit.acquire(&node("a"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
}

pub async fn another_node_takes_over_when_the_skew_is_over(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let old = kit.keeper(&node("a"), lane(1)).await.lease_grant;
    backend.advance(LEASE + SKEW).await;
    let (lease_grant, previous_keeper) = granted(kit.acquire(&node("b"), lane(1)).await);
    assert_eq!((lease_grant.lane, lease_grant.token), (old.lane, Token(2)));
    assert_eq!(previous_keeper, Some(node("a").node));
    assert!(matches!(
        kit.acquire(&node("a"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
}

pub async fn a_restarted_node_takes_its_lane_over_at_once(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    kit.keeper(&node("a"), lane(1)).await;
    let reborn = node_in_life("a", 2);
    let (lease_grant, previous_keeper) = granted(kit.acquire(&reborn, lane(1)).await);
    assert_eq!(
        (lease_grant.token, previous_keeper),
        (Token(2), Some(reborn.node))
    );
}

pub async fn a_lane_given_back_is_taken_at_once_under_the_next_token(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.store
        .release(&node("a"), &[keeper.lease_grant])
        .await
        .expect("release");
    let (lease_grant, _) = granted(kit.acquire(&node("b"), lane(1)).await);
    assert_eq!(lease_grant.token, Token(2));
}

pub async fn a_node_gives_back_only_what_is_its_own(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let lost = kit.keeper(&node("a"), lane(1)).await.lease_grant;
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
        AcquireOutcome::NotKeeper { .. }
    ));
}

pub async fn a_renewal_extends_from_now(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let lease_grant = kit.keeper(&node("a"), lane(1)).await.lease_grant;
    backend.advance(just_before(backend, LEASE)).await;
    assert_eq!(
        renew(&kit, &node("a"), &[lease_grant]).await,
        [RenewOutcome::Renewed]
    );
    backend.advance(just_before(backend, LEASE + SKEW)).await;
    assert!(matches!(
        kit.acquire(&node("b"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
    backend.advance(backend.monotonic()).await;
    let (taken, _) = granted(kit.acquire(&node("b"), lane(1)).await);
    assert_eq!(taken.token, Token(2), "a renewal leaves the token alone");
}

pub async fn a_lease_that_ran_out_and_nobody_took_is_renewed(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let lease_grant = kit.keeper(&node("a"), lane(1)).await.lease_grant;
    backend.advance(10 * LEASE).await;
    assert_eq!(
        renew(&kit, &node("a"), &[lease_grant]).await,
        [RenewOutcome::Renewed]
    );
    assert!(matches!(
        kit.acquire(&node("b"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
}

pub async fn renewals_are_answered_one_by_one_in_order(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let (a, b) = (node("a"), node("b"));
    let kept = kit.keeper(&a, lane(1)).await.lease_grant;
    let taken = kit.keeper(&a, lane(2)).await.lease_grant;
    let given_back = kit.keeper(&a, lane(3)).await.lease_grant;
    kit.store
        .release(&a, &[taken, given_back])
        .await
        .expect("release");
    kit.keeper(&b, lane(2)).await;
    let answers = renew(&kit, &a, &[taken, kept, given_back]).await;
    assert_eq!(
        answers,
        [
            RenewOutcome::Lost,
            RenewOutcome::Renewed,
            RenewOutcome::Lost
        ]
    );
    assert_eq!(
        renew(&kit, &node_in_life("a", 2), &[kept]).await,
        [RenewOutcome::Lost]
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
    assert!(
        matches!(second, AcquireOutcome::NotKeeper { .. }),
        "{second:?}"
    );
    let ((third, _), (first, _)) = (granted(third), granted(first));
    assert_eq!((third.grant, first.grant), (asked[0].1, asked[2].1));
    assert_ne!(third.lane, first.lane);
}

fn granted(answer: AcquireOutcome) -> (LeaseGrant, Option<NodeName>) {
    match answer {
        AcquireOutcome::Granted {
            lease_grant,
            previous_keeper,
            ..
        } => (lease_grant, previous_keeper),
        AcquireOutcome::NotKeeper { lease, .. } => panic!("held by {lease:?}"),
        AcquireOutcome::Halted(reason) => panic!("halted: {reason}"),
        AcquireOutcome::Busy => panic!("locked, although nothing else runs"),
    }
}

async fn renew(
    kit: &Kit,
    lease_request: &LeaseRequest,
    lease_grants: &[LeaseGrant],
) -> Vec<RenewOutcome> {
    kit.store
        .renew(lease_request, lease_grants)
        .await
        .expect("renew")
}
