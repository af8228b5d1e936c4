//! Regrants: how a keeper learns the outcome of a batch whose answer was lost.

use domain::{LeaseGrant, Writes};
use engine::ports::{CommitOutcome, RegrantOutcome};

use crate::Backend;
use crate::fixture::{Fixture, Keeper, LEASE, SKEW, inserts, lane, node};

pub async fn regrant_returns_the_applied_batch_count(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    for batches in 0..3 {
        assert_eq!(regrant(&fixture, &mut keeper).await, batches);
        fixture.apply(&mut keeper, Writes::default()).await;
    }
    fixture.accept(&mut keeper, 1).await;
}

pub async fn regrant_fences_batches_in_progress(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let late = fixture.batch(&keeper, inserts([fixture.tx(0)]));
    regrant(&fixture, &mut keeper).await;
    assert_eq!(fixture.commit(late.clone()).await, CommitOutcome::Fenced);
    let again = fixture.batch(&keeper, late.writes);
    assert_eq!(fixture.commit(again).await, CommitOutcome::Applied);
}

pub async fn racing_batch_is_applied_before_the_regrant_or_never(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    for _ in 0..10 {
        let batch = fixture.batch(&keeper, Writes::default());
        let before = keeper.batch_seq;
        let (outcome, batch_seq) =
            futures::join!(fixture.commit(batch), regrant(&fixture, &mut keeper));
        // The regrant's answer is the truth about the batch, in either order.
        let landed = batch_seq == before + 1;
        assert!(landed || batch_seq == before, "{before} then {batch_seq}");
        keeper.batch_seq = batch_seq;
        // A batch that meets the row while the regrant holds it is not known to be fenced yet.
        let expected: &[CommitOutcome] = if landed {
            &[CommitOutcome::Applied]
        } else {
            &[CommitOutcome::Fenced, CommitOutcome::Locked]
        };
        assert!(expected.contains(&outcome), "{outcome:?}");
    }
}

pub async fn regrant_is_idempotent(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let keeper = fixture.keeper(&node("a"), lane(1)).await;
    let grant = fixture.grant();
    for _ in 0..2 {
        // The first answer may be lost as well: the same request must return the same answer.
        let answer = fixture
            .store
            .regrant(keeper.lease_grant, grant)
            .await
            .expect("regrant");
        let lease_grant = LeaseGrant {
            grant,
            ..keeper.lease_grant
        };
        assert_eq!(
            answer,
            RegrantOutcome::Held {
                lease_grant,
                batch_seq: 0
            }
        );
    }
}

pub async fn regrant_of_a_lost_lane_is_fenced(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let stale = keeper.lease_grant;
    regrant(&fixture, &mut keeper).await;
    let by_old_grant = fixture
        .store
        .regrant(stale, fixture.grant())
        .await
        .expect("regrant");
    assert_eq!(by_old_grant, RegrantOutcome::Fenced);
    backend.advance(LEASE + SKEW).await;
    fixture.keeper(&node("b"), lane(1)).await;
    let by_old_token = fixture
        .store
        .regrant(keeper.lease_grant, fixture.grant())
        .await
        .expect("regrant");
    assert_eq!(by_old_token, RegrantOutcome::Fenced);
}

/// Regrants, updates the keeper, and returns how many batches were applied.
async fn regrant(fixture: &Fixture, keeper: &mut Keeper) -> u64 {
    let grant = fixture.grant();
    let answer = fixture
        .store
        .regrant(keeper.lease_grant, grant)
        .await
        .expect("regrant");
    let RegrantOutcome::Held {
        lease_grant,
        batch_seq,
    } = answer
    else {
        panic!("the keeper holds the lane")
    };
    assert_eq!(
        lease_grant,
        LeaseGrant {
            grant,
            ..keeper.lease_grant
        }
    );
    keeper.lease_grant = lease_grant;
    batch_seq
}
