//! Heartbeats.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{History, Incarnation, NodeName, Timestamp};
use engine::ports::{HeartbeatOutcome, Member, Store};
use uuid::Uuid;

use crate::World;

fn member(name: &str, incarnation: u128) -> Member {
    Member {
        node: NodeName(name.into()),
        incarnation: Incarnation(Uuid::from_u128(incarnation)),
        advertise: None,
        started_at: Timestamp(5),
        seen_at: Timestamp(1_800_000_000_000),
        heartbeats: 0,
        draining: false,
    }
}

impl World {
    /// The other nodes as a heartbeat returns them; `None` when this incarnation was replaced.
    async fn heartbeat(&self, member: &Member) -> Option<Vec<Member>> {
        match self.store.heartbeat(member).await.expect("heartbeat") {
            HeartbeatOutcome::Recorded { members, history } => {
                let History {
                    store: _,
                    timeline,
                    restores,
                    suspicions,
                } = history;
                assert_eq!(
                    (timeline, restores, suspicions),
                    (1, 0, 0),
                    "a new server's"
                );
                Some(members)
            }
            HeartbeatOutcome::Replaced => None,
        }
    }
}

#[tokio::test]
async fn heartbeats_are_counted_and_return_all_nodes() {
    let world = World::new("beats").await;
    let (a, b) = (member("a", 1), member("b", 2));
    for heartbeats in 1..=3 {
        let seen = world.heartbeat(&b).await;
        assert_eq!(
            seen.expect("it lives").last(),
            Some(&Member {
                heartbeats,
                ..b.clone()
            })
        );
    }
    let seen = world.heartbeat(&a).await.expect("it lives");
    let a_again = Member { heartbeats: 1, ..a };
    assert_eq!(seen, [a_again, Member { heartbeats: 3, ..b }]);
    assert_eq!(world.store.members().await, Ok(seen));
}

#[tokio::test]
async fn one_of_concurrent_incarnations_stays() {
    let world = World::new("lives").await;
    for round in 0..20_u128 {
        let incarnations: Vec<Member> = (1..=4).map(|n| member("a", round * 10 + n)).collect();
        let heartbeats = incarnations.iter().map(|incarnation| {
            let (store, incarnation) = (Arc::clone(&world.store), incarnation.clone());
            tokio::spawn(async move { store.heartbeat(&incarnation).await })
        });
        for heartbeat in heartbeats.collect::<Vec<_>>() {
            heartbeat.await.expect("no panic").expect("heartbeat");
        }
        // After one more heartbeat of each, the newest has replaced all others, and after another each knows.
        let mut alive = BTreeSet::new();
        for _ in 0..2 {
            alive.clear();
            for incarnation in &incarnations {
                if world.heartbeat(incarnation).await.is_some() {
                    alive.insert(incarnation.incarnation);
                }
            }
        }
        assert_eq!(alive.len(), 1, "{alive:?}");
        let members = world.store.members().await.expect("members");
        let shown: Vec<Incarnation> = members.iter().map(|member| member.incarnation).collect();
        assert_eq!(shown, alive.into_iter().collect::<Vec<_>>());
    }
    let incarnations = world.database.query_value("SELECT count(*) FROM node");
    let incarnations: u64 = incarnations.expect("a count").parse().expect("a number");
    assert!(
        (64..=72).contains(&incarnations),
        "{incarnations} of 80 are remembered"
    );
    assert_eq!(
        world.heartbeat(&member("a", 191)).await,
        None,
        "replaced, and remembered"
    );
}

#[tokio::test]
async fn nodes_silent_for_long_are_deleted() {
    let world = World::new("silent").await;
    let old = Member {
        seen_at: Timestamp(1_700_000_000_000),
        ..member("old", 1)
    };
    world.heartbeat(&old).await.expect("it lives");
    world.heartbeat(&member("new", 2)).await.expect("it lives");
    let names = || async {
        let members = world.store.members().await.expect("members");
        members
            .into_iter()
            .map(|member| member.node.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["new"]);
    world.heartbeat(&old).await.expect("it was only silent");
    assert_eq!(names().await, ["new", "old"]);
}
