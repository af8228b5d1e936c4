//! Nodes, and the lanes that somebody must take care of.

use domain::{Incarnation, NodeName, Nonce, SubState, Time, Token, Tx, TxState, Writes};
use engine::ports::{Member, Work};

use super::Backend;
use super::kit::{AT, Kit, LEASE, SKEW, lane, node, node_in_life, updates};

pub async fn members_are_what_nodes_last_said_of_themselves(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    assert_eq!(kit.store.members().await, Ok(vec![]));
    let b = member("b", 1);
    let a = member("a", 1);
    for member in [&b, &a] {
        assert_eq!(kit.store.heartbeat(member).await, Ok(true));
    }
    let later = Member {
        seen_at: Time(AT.0 + 5),
        draining: true,
        advertise: None,
        ..b
    };
    assert_eq!(kit.store.heartbeat(&later).await, Ok(true));
    assert_eq!(kit.store.members().await, Ok(vec![a, later]), "by name");
}

pub async fn a_node_learns_that_its_next_life_has_begun(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let (old, new) = (member("a", 1), member("a", 2));
    assert_eq!(kit.store.heartbeat(&old).await, Ok(true));
    assert_eq!(kit.store.heartbeat(&new).await, Ok(true));
    for _ in 0..2 {
        assert_eq!(kit.store.heartbeat(&old).await, Ok(false), "replaced");
        assert_eq!(kit.store.heartbeat(&new).await, Ok(true));
    }
    assert_eq!(kit.store.members().await, Ok(vec![new]));
}

pub async fn lanes_with_work_are_those_with_open_or_waiting_txs(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let me = node("a");
    kit.keeper(&me, lane(1)).await;
    let mut finished = kit.keeper(&me, lane(2)).await;
    let (tx, _) = kit.accept(&mut finished, 1).await.remove(0);
    let done = Tx {
        state: TxState::Confirmed,
        ..tx
    };
    kit.apply(&mut finished, updates([done])).await;
    let mut open = kit.keeper(&me, lane(3)).await;
    kit.accept(&mut open, 1).await;
    kit.store
        .queue(vec![kit.new_queued(lane(4), "r1")])
        .await
        .expect("queue");
    let work = kit
        .store
        .lanes_with_work(&me)
        .await
        .expect("lanes_with_work");
    assert_eq!(
        work,
        [
            Work {
                lane: lane(3),
                has_queued: false
            },
            Work {
                lane: lane(4),
                has_queued: true
            }
        ],
        "by lane"
    );
}

pub async fn a_live_keepers_lanes_are_nobody_elses_work(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    kit.accept(&mut keeper, 1).await;
    let work = async |name, life| {
        let ask = node_in_life(name, life);
        kit.store
            .lanes_with_work(&ask)
            .await
            .expect("lanes_with_work")
            .len()
    };
    assert_eq!(
        (work("a", 1).await, work("a", 2).await, work("b", 1).await),
        (1, 1, 0)
    );
    backend.advance(LEASE + SKEW).await;
    assert_eq!(work("b", 1).await, 1, "nobody keeps it any more");
    let keeper = kit.keeper(&node("c"), lane(1)).await;
    assert_eq!(work("b", 1).await, 0);
    kit.store
        .release(&node("c"), &[keeper.right])
        .await
        .expect("release");
    assert_eq!(work("b", 1).await, 1, "given back");
}

pub async fn lanes_are_shown_as_far_as_they_are_known(backend: &dyn Backend) {
    let kit = Kit::new(backend);
    let mut keeper = kit.keeper(&node("a"), lane(1)).await;
    let (mut tx, _) = kit.accept(&mut keeper, 3).await.remove(0);
    tx.go(TxState::Confirmed, SubState::Mined, AT);
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

fn member(name: &str, life: u128) -> Member {
    let Incarnation(incarnation) = node_in_life(name, life).incarnation;
    Member {
        node: NodeName(name.into()),
        incarnation: Incarnation(incarnation),
        advertise: Some(format!("http://{name}:8645")),
        started_at: AT,
        seen_at: AT,
        draining: false,
    }
}
