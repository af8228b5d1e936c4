//! Granting anew: how a keeper learns what became of a batch whose answer was lost.

use domain::{LeaseGrant, Writes};
use engine::ports::{CommitOutcome, RegrantOutcome};

use super::Backend;
use super::kit::{Keeper, Kit, LEASE, SKEW, inserts, lane, node};

pub async fn a_new_grant_tells_how_many_batches_landed(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    for batches in 0..3 {
        assert_eq!(regrant(&kit, &mut keeper).await, batches);
        kit.apply(&mut keeper, Writes::default()).await;
    }
    kit.accept(&mut keeper, 1).await;
}

pub async fn a_new_grant_kills_what_was_under_way(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let late = kit.batch(&keeper, inserts([kit.tx(0)]));
    regrant(&kit, &mut keeper).await;
    assert_eq!(kit.commit(late.clone()).await, CommitOutcome::Fenced);
    let again = kit.batch(&keeper, late.writes);
    assert_eq!(kit.commit(again).await, CommitOutcome::Applied);
}

pub async fn what_is_under_way_lands_before_the_new_grant_or_never(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    for _ in 0..10 {
        let batch = kit.batch(&keeper, Writes::default());
        let before = keeper.batch_seq;
        let (outcome, batch_seq) = futures::join!(kit.commit(batch), regrant(&kit, &mut keeper));
        // The grant's answer is the truth about the batch, whichever came first.
        let landed = batch_seq == before + 1;
        assert!(landed || batch_seq == before, "{before} then {batch_seq}");
        keeper.batch_seq = batch_seq;
        // A batch that met the row while the grant held it is not told yet that it is fenced.
        let expected: &[CommitOutcome] = if landed {
            &[CommitOutcome::Applied]
        } else {
            &[CommitOutcome::Fenced, CommitOutcome::Locked]
        };
        assert!(expected.contains(&outcome), "{outcome:?}");
    }
}

pub async fn a_new_grant_may_be_asked_for_again(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let keeper = kit.keeper(&node("a"), lane(1)).await;
    let grant = kit.grant();
    for _ in 0..2 {
        // The first answer may have been lost too: the same question must get the same answer.
        let answer = kit
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

pub async fn no_new_grant_for_a_lane_that_was_taken(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let stale = keeper.lease_grant;
    regrant(&kit, &mut keeper).await;
    let by_old_grant = kit
        .store
        .regrant(stale, kit.grant())
        .await
        .expect("regrant");
    assert_eq!(by_old_grant, RegrantOutcome::Fenced);
    backend.advance(LEASE + SKEW).await;
    kit.keeper(&node("b"), lane(1)).await;
    let by_old_token = kit
        .store
        .regrant(keeper.lease_grant, kit.grant())
        .await
        .expect("regrant");
    assert_eq!(by_old_token, RegrantOutcome::Fenced);
}

/// Grants anew, lets the keeper follow, and gives how many batches landed.
async fn regrant(kit: &Kit, keeper: &mut Keeper) -> u64 {
    let grant = kit.grant();
    let answer = kit
        .store
        .regrant(keeper.lease_grant, grant)
        .await
        .expect("regrant");
    let RegrantOutcome::Held {
        lease_grant,
        batch_seq,
    } = answer
    else {
        panic!("the lane is ours")
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
