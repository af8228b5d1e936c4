//! Nodes, and the lanes that somebody must take care of.

use domain::{Incarnation, NodeName, Nonce, SubState, Timestamp, Token, TxState, Writes};
use engine::ports::{HeartbeatOutcome, LeaseRequest, Member, Work};

use super::Backend;
use super::kit::{AT, Kit, LEASE, SKEW, lane, node, node_in_life, updates};

pub async fn members_are_what_nodes_last_said_of_themselves(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    assert_eq!(kit.store.members().await, Ok(vec![]));
    let (a, b) = (member("a", 1), member("b", 1));
    beat(&kit, &b).await;
    beat(&kit, &a).await;
    let later = Member {
        seen_at: Timestamp(AT.0 + 5),
        draining: true,
        advertise: None,
        ..b
    };
    let told = beat(&kit, &later).await;
    assert_eq!(without_beats(&told), [a, later], "by name");
    assert_eq!(kit.store.members().await, Ok(told));
}

pub async fn beats_count_up_by_one(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let (a, b) = (member("a", 1), member("b", 1));
    let first = beat(&kit, &a).await[0].heartbeats;
    beat(&kit, &b).await;
    for count in 1..=3 {
        // What a node says of its own count is nothing to go by.
        let claims = Member {
            heartbeats: 77,
            ..a.clone()
        };
        let members = beat(&kit, &claims).await;
        assert_eq!(members[0].heartbeats, first + count);
    }
    let members = beat(&kit, &b).await;
    assert_eq!(members[0].heartbeats, first + 3, "only its own beats count");
}

pub async fn every_beat_tells_the_same_history(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut histories = Vec::new();
    for (name, life) in [("a", 1), ("b", 1), ("a", 2), ("b", 1)] {
        match kit.store.heartbeat(&member(name, life)).await {
            Ok(HeartbeatOutcome::Taken { history, .. }) => histories.push(history),
            other => panic!("{other:?}"),
        }
    }
    assert!(histories.windows(2).all(|pair| pair[0] == pair[1]));
}

pub async fn a_node_learns_that_its_next_life_has_begun(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let (old, new) = (member("a", 1), member("a", 2));
    beat(&kit, &old).await;
    let mut members = beat(&kit, &new).await;
    for _ in 0..2 {
        let late = Member {
            draining: true,
            advertise: None,
            seen_at: Timestamp(AT.0 + 9),
            ..old.clone()
        };
        assert_eq!(
            kit.store.heartbeat(&late).await,
            Ok(HeartbeatOutcome::Replaced)
        );
        assert_eq!(kit.store.members().await, Ok(members), "nothing changed");
        members = beat(&kit, &new).await;
    }
    assert_eq!(without_beats(&members), [new]);
}

pub async fn lanes_with_work_are_those_with_open_or_waiting_txs(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let me = node("a");
    kit.keeper(&me, lane(1)).await;
    let mut finished = kit.keeper(&me, lane(2)).await;
    let (mut tx, _) = kit.accept(&mut finished, 1).await.remove(0);
    tx.transition(TxState::Confirmed, SubState::Mined, AT);
    kit.apply(&mut finished, updates([tx.clone()])).await;
    let mut open = kit.keeper(&me, lane(3)).await;
    kit.accept(&mut open, 1).await;
    kit.store
        .queue(vec![kit.new_queued(lane(4), "r1")])
        .await
        .expect("queue");
    let busy = |lane| Work {
        lane,
        has_queued: false,
    };
    let waiting = Work {
        lane: lane(4),
        has_queued: true,
    };
    assert_eq!(work(&kit, &me).await, [busy(lane(3)), waiting], "by lane");

    // A fork takes the finished one back: it is work again.
    tx.transition(TxState::Tracking, SubState::Reorged, AT);
    kit.apply(&mut finished, updates([tx])).await;
    let expected = [busy(lane(2)), busy(lane(3)), waiting];
    assert_eq!(work(&kit, &me).await, expected);
}

pub async fn a_lane_without_waiting_or_open_txs_is_no_work_any_more(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let me = node("a");
    let mut keeper = kit.keeper(&me, lane(1)).await;
    let queued = kit.store.queue(vec![kit.new_queued(lane(1), "r1")]).await;
    let mut tx = queued.expect("queue").remove(0);
    assert_eq!(work(&kit, &me).await.len(), 1, "it waits for a nonce");
    tx.nonce = Some(Nonce(0));
    tx.transition(TxState::Allocated, SubState::Waiting, AT);
    let dealt = Writes {
        queued_removed: vec![tx.id],
        ..updates([tx.clone()])
    };
    kit.apply(&mut keeper, dealt).await;
    let found = work(&kit, &me).await;
    assert_eq!(found.len(), 1, "it is open");
    assert!(!found[0].has_queued);
    tx.nonce = None;
    tx.transition(TxState::FailedFinal, SubState::SigningFailed, AT);
    kit.apply(&mut keeper, updates([tx])).await;
    assert_eq!(work(&kit, &me).await, [], "its nonce lies below the cursor");
}

pub async fn a_live_keepers_lanes_are_nobody_elses_work(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.accept(&mut keeper, 1).await;
    let count = async |name, life| work(&kit, &node_in_life(name, life)).await.len();
    assert_eq!(
        (
            count("a", 1).await,
            count("a", 2).await,
            count("b", 1).await
        ),
        (1, 1, 0)
    );
    backend.advance(LEASE + SKEW).await;
    assert_eq!(count("b", 1).await, 1, "nobody keeps it any more");
    let keeper = kit.keeper(&node("c"), lane(1)).await;
    assert_eq!(count("b", 1).await, 0);
    kit.store
        .release(&node("c"), &[keeper.lease_grant])
        .await
        .expect("release");
    assert_eq!(count("b", 1).await, 1, "given back");
}

pub async fn who_was_seen_at_work_or_silent_decides_whose_lanes_are_work(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.accept(&mut keeper, 1).await;
    let silent = LeaseRequest {
        silent: vec![node("a").incarnation],
        ..node("b")
    };
    assert_eq!(work(&kit, &silent).await.len(), 1, "its lease lasts");
    backend.advance(LEASE + SKEW).await;
    let alive = LeaseRequest {
        alive: vec![node("a").incarnation],
        ..node("b")
    };
    assert_eq!(work(&kit, &alive).await, [], "its lease is over");
    kit.store
        .release(&node("a"), &[keeper.lease_grant])
        .await
        .expect("release");
    assert_eq!(work(&kit, &alive).await.len(), 1, "given back");
}

pub async fn lanes_are_shown_as_far_as_they_are_known(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, _) = kit.accept(&mut keeper, 3).await.remove(0);
    tx.transition(TxState::Confirmed, SubState::Mined, AT);
    let paused = Some(true);
    kit.apply(
        &mut keeper,
        Writes {
            updates: vec![tx],
            paused,
            ..Writes::default()
        },
    )
    .await;
    kit.store
        .queue(vec![kit.new_queued(lane(2), "r1")])
        .await
        .expect("queue");

    let records = kit
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

async fn work(kit: &Kit, lease_request: &LeaseRequest) -> Vec<Work> {
    kit.store
        .lanes_with_work(lease_request)
        .await
        .expect("lanes_with_work")
}

/// A heartbeat that must be taken; gives the members that it tells of.
async fn beat(kit: &Kit, member: &Member) -> Vec<Member> {
    match kit.store.heartbeat(member).await {
        Ok(HeartbeatOutcome::Taken { members, .. }) => members,
        other => panic!("{other:?}"),
    }
}

fn without_beats(members: &[Member]) -> Vec<Member> {
    let forget = |member: &Member| Member {
        heartbeats: 0,
        ..member.clone()
    };
    members.iter().map(forget).collect()
}

fn member(name: &str, life: u128) -> Member {
    let Incarnation(incarnation) = node_in_life(name, life).incarnation;
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
