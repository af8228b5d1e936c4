//! Leases: every transition of a lane's ownership, renewal, and release.

use std::time::Duration;

use domain::{LeaseGrant, NodeName, Token};
use engine::ports::{AcquireOutcome, LeaseRequest, RenewOutcome};

use crate::Backend;
use crate::fixture::{Fixture, LEASE, SKEW, lane, node, node_in_incarnation};

/// The longest advance after which `until` is certainly not reached yet.
fn just_before(backend: &dyn Backend, until: Duration) -> Duration {
    until.saturating_sub(backend.clock_tolerance())
}

pub async fn new_lane_is_granted_with_token_1(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let grant = fixture.grant();
    let (lease_grant, previous_keeper) =
        granted(fixture.acquire_as(&node("a"), lane(1), grant).await);
    assert_eq!(
        (lease_grant.token, lease_grant.grant, previous_keeper),
        (Token(1), grant, None)
    );
}

pub async fn reacquiring_keeper_gets_new_grant_under_same_token(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let first = fixture.keeper(&node("a"), lane(1)).await.lease_grant;
    let grant = fixture.grant();
    let (second, previous_keeper) = granted(fixture.acquire_as(&node("a"), lane(1), grant).await);
    assert_eq!(second, LeaseGrant { grant, ..first });
    assert_eq!(previous_keeper, None);
}

pub async fn expired_keeper_keeps_its_token_within_the_skew(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    fixture.keeper(&node("a"), lane(1)).await;
    backend.advance(just_before(backend, LEASE + SKEW)).await;
    let (lease_grant, previous_keeper) = granted(fixture.acquire(&node("a"), lane(1)).await);
    assert_eq!((lease_grant.token, previous_keeper), (Token(1), None));
}

pub async fn keeper_that_returns_after_the_skew_gets_the_next_token(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    fixture.keeper(&node("a"), lane(1)).await;
    backend.advance(LEASE + SKEW).await;
    let (lease_grant, previous_keeper) = granted(fixture.acquire(&node("a"), lane(1)).await);
    assert_eq!((lease_grant.token, previous_keeper), (Token(2), None));
}

pub async fn other_node_is_refused_until_the_skew_has_passed(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    fixture.keeper(&node("a"), lane(1)).await;
    for wait in [Duration::ZERO, LEASE, just_before(backend, SKEW)] {
        backend.advance(wait).await;
        let answer = fixture.acquire(&node("b"), lane(1)).await;
        let AcquireOutcome::NotKeeper { lease, .. } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!((lease.owner, lease.token), (node("a").node, Token(1)));
        assert_eq!(lease.incarnation, node("a").incarnation);
    }
}

pub async fn refusal_returns_the_remaining_lease_time(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    fixture.keeper(&node("a"), lane(1)).await;
    let left = async || {
        let answer = fixture.acquire(&node("b"), lane(1)).await;
        let AcquireOutcome::NotKeeper { left, .. } = answer else {
            panic!("{answer:?}")
        };
        left
    };
    let about = |expected: Duration| expected.saturating_sub(backend.clock_tolerance())..=expected;
    assert!(about(LEASE).contains(&left().await));
    backend.advance(LEASE / 2).await;
    assert!(about(LEASE / 2).contains(&left().await));
    backend.advance(LEASE / 2).await;
    assert_eq!(
        left().await,
        Duration::ZERO,
        "expired, and protected for the skew"
    );
}

pub async fn lease_of_a_node_seen_alive_is_not_taken_over(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let lease_grant = fixture.keeper(&node("a"), lane(1)).await.lease_grant;
    backend.advance(100 * LEASE).await;
    // The store's clock may have jumped: the node itself was seen alive a moment ago.
    let alive = LeaseRequest {
        alive: vec![node("c").incarnation, node("a").incarnation],
        ..node("b")
    };
    let answer = fixture.acquire(&alive, lane(1)).await;
    let AcquireOutcome::NotKeeper { lease, left } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!((lease.owner, lease.token), (node("a").node, Token(1)));
    assert_eq!(left, Duration::ZERO, "by the store's clock");
    assert_eq!(
        renew(&fixture, &node("a"), &[lease_grant]).await,
        [RenewOutcome::Renewed]
    );
}

pub async fn only_the_incarnation_seen_alive_is_protected(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let released = fixture.keeper(&node("a"), lane(2)).await.lease_grant;
    fixture.keeper(&node("a"), lane(1)).await;
    let alive = LeaseRequest {
        alive: vec![node("a").incarnation],
        ..node("b")
    };
    fixture
        .store
        .release(&node("a"), &[released])
        .await
        .expect("release");
    let (lease_grant, _) = granted(fixture.acquire(&alive, lane(2)).await);
    assert_eq!(
        lease_grant.token,
        Token(2),
        "the lane that it released is free"
    );

    backend.advance(LEASE + SKEW).await;
    let next_incarnation = LeaseRequest {
        alive: vec![node_in_incarnation("a", 2).incarnation],
        ..node("b")
    };
    let (lease_grant, _) = granted(fixture.acquire(&next_incarnation, lane(1)).await);
    assert_eq!(
        lease_grant.token,
        Token(2),
        "the incarnation that held it was not seen alive"
    );
}

pub async fn unexpired_lease_of_a_silent_node_is_taken_over(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let old = fixture.keeper(&node("a"), lane(1)).await.lease_grant;
    let other_incarnation = LeaseRequest {
        silent: vec![node_in_incarnation("a", 2).incarnation],
        ..node("b")
    };
    let answer = fixture.acquire(&other_incarnation, lane(1)).await;
    assert!(
        matches!(answer, AcquireOutcome::NotKeeper { .. }),
        "{answer:?}"
    );

    let silent = LeaseRequest {
        silent: vec![node("c").incarnation, node("a").incarnation],
        ..node("b")
    };
    let (lease_grant, previous_keeper) = granted(fixture.acquire(&silent, lane(1)).await);
    assert_eq!(
        (lease_grant.token, previous_keeper),
        (Token(2), Some(node("a").node))
    );
    assert_eq!(
        renew(&fixture, &node("a"), &[old]).await,
        [RenewOutcome::Lost]
    );
    assert!(matches!(
        fixture.acquire(&node("a"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
}

pub async fn other_node_takes_over_after_the_skew(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let old = fixture.keeper(&node("a"), lane(1)).await.lease_grant;
    backend.advance(LEASE + SKEW).await;
    let (lease_grant, previous_keeper) = granted(fixture.acquire(&node("b"), lane(1)).await);
    assert_eq!((lease_grant.lane, lease_grant.token), (old.lane, Token(2)));
    assert_eq!(previous_keeper, Some(node("a").node));
    assert!(matches!(
        fixture.acquire(&node("a"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
}

pub async fn restarted_node_takes_over_its_lane_immediately(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    fixture.keeper(&node("a"), lane(1)).await;
    let restarted = node_in_incarnation("a", 2);
    let (lease_grant, previous_keeper) = granted(fixture.acquire(&restarted, lane(1)).await);
    assert_eq!(
        (lease_grant.token, previous_keeper),
        (Token(2), Some(restarted.node))
    );
}

pub async fn released_lane_is_granted_at_once_under_the_next_token(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture
        .store
        .release(&node("a"), &[keeper.lease_grant])
        .await
        .expect("release");
    let (second, previous_keeper) = granted(fixture.acquire(&node("a"), lane(1)).await);
    assert_eq!((second.token, previous_keeper), (Token(2), None), "its own");
    let again = fixture.store.release(&node("a"), &[second]).await;
    again.expect("release");
    let (third, previous_keeper) = granted(fixture.acquire(&node("b"), lane(1)).await);
    let from = Some(node("a").node);
    assert_eq!((third.token, previous_keeper), (Token(3), from));
}

pub async fn node_releases_only_its_own_lanes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let lost = fixture.keeper(&node("a"), lane(1)).await.lease_grant;
    backend.advance(LEASE + SKEW).await;
    fixture.keeper(&node("b"), lane(1)).await;
    fixture
        .store
        .release(&node("a"), &[lost])
        .await
        .expect("release");
    fixture
        .store
        .release(&node_in_incarnation("b", 2), &[lost])
        .await
        .expect("release");
    assert!(matches!(
        fixture.acquire(&node("c"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
}

pub async fn release_of_an_earlier_grant_is_ignored(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let first = fixture.keeper(&node("a"), lane(1)).await.lease_grant;
    let second = fixture.keeper(&node("a"), lane(1)).await.lease_grant;
    assert_eq!(first.token, second.token, "its own lane keeps the token");
    let late = fixture.store.release(&node("a"), &[first]).await;
    late.expect("release");
    assert!(matches!(
        fixture.acquire(&node("b"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
    assert_eq!(
        renew(&fixture, &node("a"), &[second]).await,
        [RenewOutcome::Renewed]
    );
    let now = fixture.store.release(&node("a"), &[second]).await;
    now.expect("release");
    let (taken, _) = granted(fixture.acquire(&node("b"), lane(1)).await);
    assert_eq!(taken.token, Token(2));
}

pub async fn renewal_extends_from_the_present(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let lease_grant = fixture.keeper(&node("a"), lane(1)).await.lease_grant;
    backend.advance(just_before(backend, LEASE)).await;
    assert_eq!(
        renew(&fixture, &node("a"), &[lease_grant]).await,
        [RenewOutcome::Renewed]
    );
    backend.advance(just_before(backend, LEASE + SKEW)).await;
    assert!(matches!(
        fixture.acquire(&node("b"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
    backend.advance(backend.clock_tolerance()).await;
    let (taken, _) = granted(fixture.acquire(&node("b"), lane(1)).await);
    assert_eq!(taken.token, Token(2), "a renewal does not change the token");
}

pub async fn expired_lease_without_takeover_is_renewed(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let lease_grant = fixture.keeper(&node("a"), lane(1)).await.lease_grant;
    backend.advance(10 * LEASE).await;
    assert_eq!(
        renew(&fixture, &node("a"), &[lease_grant]).await,
        [RenewOutcome::Renewed]
    );
    assert!(matches!(
        fixture.acquire(&node("b"), lane(1)).await,
        AcquireOutcome::NotKeeper { .. }
    ));
}

pub async fn renewals_are_answered_in_request_order(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let (a, b) = (node("a"), node("b"));
    let kept = fixture.keeper(&a, lane(1)).await.lease_grant;
    let taken = fixture.keeper(&a, lane(2)).await.lease_grant;
    let released = fixture.keeper(&a, lane(3)).await.lease_grant;
    fixture
        .store
        .release(&a, &[taken, released])
        .await
        .expect("release");
    fixture.keeper(&b, lane(2)).await;
    let answers = renew(&fixture, &a, &[taken, kept, released]).await;
    assert_eq!(
        answers,
        [
            RenewOutcome::Lost,
            RenewOutcome::Renewed,
            RenewOutcome::Lost
        ]
    );
    assert_eq!(
        renew(&fixture, &node_in_incarnation("a", 2), &[kept]).await,
        [RenewOutcome::Lost]
    );
    assert_eq!(renew(&fixture, &a, &[]).await, []);
}

pub async fn acquisitions_are_answered_in_request_order(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    fixture.keeper(&node("b"), lane(2)).await;
    let requested: Vec<_> = [3, 2, 1]
        .map(|signer| (lane(signer), fixture.grant()))
        .into();
    let answers = fixture
        .store
        .acquire(&node("a"), &requested)
        .await
        .expect("acquire");
    let [third, second, first] = answers.try_into().expect("three lanes, three answers");
    assert!(
        matches!(second, AcquireOutcome::NotKeeper { .. }),
        "{second:?}"
    );
    let ((third, _), (first, _)) = (granted(third), granted(first));
    assert_eq!((third.grant, first.grant), (requested[0].1, requested[2].1));
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
    fixture: &Fixture,
    lease_request: &LeaseRequest,
    lease_grants: &[LeaseGrant],
) -> Vec<RenewOutcome> {
    fixture
        .store
        .renew(lease_request, lease_grants)
        .await
        .expect("renew")
}
