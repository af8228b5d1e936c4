//! Members of the cluster, and the lanes that have work for a node.

use domain::{Incarnation, NodeName, Nonce, SubState, Timestamp, Token, TxState, Writes};
use engine::ports::{HeartbeatOutcome, LaneWork, LeaseRequest, Member};

use crate::Backend;
use crate::fixture::{AT, Fixture, LEASE, SKEW, lane, node, node_in_incarnation, updates};

pub async fn members_show_the_last_heartbeat_of_each_node(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    assert_eq!(fixture.store.members().await, Ok(vec![]));
    let (a, b) = (member("a", 1), member("b", 1));
    send_heartbeat(&fixture, &b).await;
    send_heartbeat(&fixture, &a).await;
    let later = Member {
        seen_at: Timestamp(AT.0 + 5),
        draining: true,
        advertise: None,
        ..b
    };
    let members = send_heartbeat(&fixture, &later).await;
    assert_eq!(without_heartbeats(&members), [a, later], "by name");
    assert_eq!(fixture.store.members().await, Ok(members));
}

pub async fn heartbeats_count_up_by_one(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let (a, b) = (member("a", 1), member("b", 1));
    let first = send_heartbeat(&fixture, &a).await[0].heartbeats;
    send_heartbeat(&fixture, &b).await;
    for count in 1..=3 {
        // The count that a node sends about itself is ignored.
        let claims = Member {
            heartbeats: 77,
            ..a.clone()
        };
        let members = send_heartbeat(&fixture, &claims).await;
        assert_eq!(members[0].heartbeats, first + count);
    }
    let members = send_heartbeat(&fixture, &b).await;
    assert_eq!(
        members[0].heartbeats,
        first + 3,
        "only its own heartbeats count"
    );
}

pub async fn every_heartbeat_returns_the_present_history(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut histories = Vec::new();
    for change in [false, true] {
        if change {
            backend.change_history().await;
        }
        for (name, incarnation) in [("a", 1), ("b", 1), ("a", 2), ("b", 1)] {
            match fixture.store.heartbeat(&member(name, incarnation)).await {
                Ok(HeartbeatOutcome::Recorded { history, .. }) => histories.push(history),
                // The first incarnation of "a" was replaced in the first round.
                Ok(HeartbeatOutcome::Replaced) => assert!(change),
                other @ Err(_) => panic!("{other:?}"),
            }
        }
    }
    let (before, after) = histories.split_at(4);
    assert!(before.iter().all(|history| *history == before[0]));
    assert!(after.iter().all(|history| *history == after[0]) && after[0] != before[0]);
}

pub async fn heartbeat_of_replaced_incarnation_is_refused(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let (old, new) = (member("a", 1), member("a", 2));
    send_heartbeat(&fixture, &old).await;
    let mut members = send_heartbeat(&fixture, &new).await;
    for _ in 0..2 {
        let late = Member {
            draining: true,
            advertise: None,
            seen_at: Timestamp(AT.0 + 9),
            ..old.clone()
        };
        assert_eq!(
            fixture.store.heartbeat(&late).await,
            Ok(HeartbeatOutcome::Replaced)
        );
        assert_eq!(
            fixture.store.members().await,
            Ok(members),
            "nothing changed"
        );
        members = send_heartbeat(&fixture, &new).await;
    }
    assert_eq!(without_heartbeats(&members), [new]);
}

pub async fn lanes_with_work_have_open_or_queued_txs(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let me = node("a");
    fixture.keeper(&me, lane(1)).await;
    let mut finished = fixture.keeper(&me, lane(2)).await;
    let (mut tx, _) = fixture.accept(&mut finished, 1).await.remove(0);
    tx.transition(TxState::Confirmed, SubState::Mined, AT);
    fixture.apply(&mut finished, updates([tx.clone()])).await;
    let mut open = fixture.keeper(&me, lane(3)).await;
    fixture.accept(&mut open, 1).await;
    fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(4), "r1")])
        .await
        .expect("queue");
    let busy = |lane| LaneWork {
        lane,
        has_queued: false,
    };
    let waiting = LaneWork {
        lane: lane(4),
        has_queued: true,
    };
    assert_eq!(
        work(&fixture, &me).await,
        [busy(lane(3)), waiting],
        "by lane"
    );

    // A reorg reopens the finished tx: the lane has work again.
    tx.transition(TxState::Tracking, SubState::Reorged, AT);
    fixture.apply(&mut finished, updates([tx])).await;
    let expected = [busy(lane(2)), busy(lane(3)), waiting];
    assert_eq!(work(&fixture, &me).await, expected);
}

pub async fn lane_without_open_or_queued_txs_has_no_work(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let me = node("a");
    let mut keeper = fixture.keeper(&me, lane(1)).await;
    let queued = fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(1), "r1")])
        .await;
    let mut tx = queued.expect("queue").remove(0);
    assert_eq!(work(&fixture, &me).await.len(), 1, "it waits for a nonce");
    tx.nonce = Some(Nonce(0));
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    let allocated = Writes {
        queued_removed: vec![tx.id],
        ..updates([tx.clone()])
    };
    fixture.apply(&mut keeper, allocated).await;
    let found = work(&fixture, &me).await;
    assert_eq!(found.len(), 1, "it is open");
    assert!(!found[0].has_queued);
    tx.nonce = None;
    tx.transition(TxState::FailedFinal, SubState::SigningFailed, AT);
    fixture.apply(&mut keeper, updates([tx])).await;
    assert_eq!(
        work(&fixture, &me).await,
        [],
        "its nonce lies below the cursor"
    );
}

pub async fn lanes_of_a_live_keeper_are_not_offered_to_other_nodes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 1).await;
    let count = async |name, incarnation| {
        work(&fixture, &node_in_incarnation(name, incarnation))
            .await
            .len()
    };
    assert_eq!(
        (
            count("a", 1).await,
            count("a", 2).await,
            count("b", 1).await
        ),
        (1, 1, 0)
    );
    backend.advance(LEASE + SKEW).await;
    assert_eq!(count("b", 1).await, 1, "it has no keeper any more");
    let keeper = fixture.keeper(&node("c"), lane(1)).await;
    assert_eq!(count("b", 1).await, 0);
    fixture
        .store
        .release(&node("c"), &[keeper.lease_grant])
        .await
        .expect("release");
    assert_eq!(count("b", 1).await, 1, "released");
}

pub async fn observed_heartbeats_decide_which_lanes_are_offered(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    fixture.accept(&mut keeper, 1).await;
    let silent = LeaseRequest {
        silent: vec![node("a").incarnation],
        ..node("b")
    };
    assert_eq!(work(&fixture, &silent).await.len(), 1, "its lease lasts");
    backend.advance(LEASE + SKEW).await;
    let alive = LeaseRequest {
        alive: vec![node("a").incarnation],
        ..node("b")
    };
    assert_eq!(work(&fixture, &alive).await, [], "its lease is over");
    fixture
        .store
        .release(&node("a"), &[keeper.lease_grant])
        .await
        .expect("release");
    assert_eq!(work(&fixture, &alive).await.len(), 1, "released");
}

pub async fn lanes_returns_only_known_lanes(backend: &dyn Backend) {
    let fixture = Fixture::new(backend);
    let mut keeper = fixture.keeper(&node("a"), lane(1)).await;
    let (mut tx, _) = fixture.accept(&mut keeper, 3).await.remove(0);
    tx.transition(TxState::Confirmed, SubState::Mined, AT);
    let paused = Some(true);
    fixture
        .apply(
            &mut keeper,
            Writes {
                updates: vec![tx],
                paused,
                ..Writes::default()
            },
        )
        .await;
    fixture
        .store
        .queue_requests(vec![fixture.new_queued(lane(2), "r1")])
        .await
        .expect("queue");

    let records = fixture
        .store
        .lanes(&[lane(2), lane(9), lane(1)])
        .await
        .expect("lanes");
    let [second, first] = records.try_into().expect("two of three are known");
    assert_eq!((second.key, second.lease), (lane(2), None));
    assert_eq!(
        (second.next_nonce, second.in_flight, second.queued),
        (Nonce(0), 0, 1)
    );
    assert!(!second.paused && first.paused);
    assert_eq!((first.key, first.next_nonce), (lane(1), Nonce(3)));
    assert_eq!((first.in_flight, first.queued), (2, 0));
    let lease = first.lease.expect("it is kept");
    assert_eq!((lease.owner, lease.token), (node("a").node, Token(1)));
}

async fn work(fixture: &Fixture, lease_request: &LeaseRequest) -> Vec<LaneWork> {
    fixture
        .store
        .lanes_with_work(lease_request)
        .await
        .expect("lanes_with_work")
}

/// A heartbeat that must be accepted; returns the members in its answer.
async fn send_heartbeat(fixture: &Fixture, member: &Member) -> Vec<Member> {
    match fixture.store.heartbeat(member).await {
        Ok(HeartbeatOutcome::Recorded { members, .. }) => members,
        other => panic!("{other:?}"),
    }
}

fn without_heartbeats(members: &[Member]) -> Vec<Member> {
    let forget = |member: &Member| Member {
        heartbeats: 0,
        ..member.clone()
    };
    members.iter().map(forget).collect()
}

fn member(name: &str, incarnation: u128) -> Member {
    let Incarnation(incarnation) = node_in_incarnation(name, incarnation).incarnation;
    Member {
        node: NodeName(name.into()),
        incarnation: Incarnation(incarnation),
        advertise: Some(format!("http://{name}:8645")),
        started_at: AT,
        seen_at: AT,
        heartbeats: 0,
        draining: false,
    }
}
