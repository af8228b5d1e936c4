//! Heartbeats.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{Incarnation, NodeName, Timestamp};
use engine::ports::{HeartbeatOutcome, Member, Store};
use uuid::Uuid;

use crate::World;

fn member(name: &str, life: u128) -> Member {
    Member {
        node: NodeName(name.into()),
        incarnation: Incarnation(Uuid::from_u128(life)),
        advertise: None,
        started_at: Timestamp(5),
        seen_at: Timestamp(1_800_000_000_000),
        heartbeats: 0,
        draining: false,
    }
}

impl World {
    /// The other nodes as a beat tells of them; `None` when this life was replaced.
    async fn beat(&self, member: &Member) -> Option<Vec<Member>> {
        match self.store.heartbeat(member).await.expect("heartbeat") {
            HeartbeatOutcome::Taken { members, history } => {
                assert_eq!(history, 1, "a new server's timeline");
                Some(members)
            }
            HeartbeatOutcome::Replaced => None,
        }
    }
}

#[tokio::test]
async fn beats_are_counted_and_tell_of_all_nodes() {
    let world = World::new("beats").await;
    let (a, b) = (member("a", 1), member("b", 2));
    for heartbeats in 1..=3 {
        let seen = world.beat(&b).await;
        assert_eq!(
            seen.expect("it lives").last(),
            Some(&Member {
                heartbeats,
                ..b.clone()
            })
        );
    }
    let seen = world.beat(&a).await.expect("it lives");
    let a_again = Member { heartbeats: 1, ..a };
    assert_eq!(seen, [a_again, Member { heartbeats: 3, ..b }]);
    assert_eq!(world.store.members().await, Ok(seen));
}

#[tokio::test]
async fn of_lives_that_begin_at_the_same_moment_one_stays() {
    let world = World::new("lives").await;
    for round in 0..20_u128 {
        let lives: Vec<Member> = (1..=4).map(|n| member("a", round * 10 + n)).collect();
        let heartbeats = lives.iter().map(|life| {
            let (store, life) = (Arc::clone(&world.store), life.clone());
            tokio::spawn(async move { store.heartbeat(&life).await })
        });
        for beat in heartbeats.collect::<Vec<_>>() {
            beat.await.expect("no panic").expect("heartbeat");
        }
        // After one more beat of each, the newest has told all others, and after another each knows.
        let mut alive = BTreeSet::new();
        for _ in 0..2 {
            alive.clear();
            for life in &lives {
                if world.beat(life).await.is_some() {
                    alive.insert(life.incarnation);
                }
            }
        }
        assert_eq!(alive.len(), 1, "{alive:?}");
        let members = world.store.members().await.expect("members");
        let shown: Vec<Incarnation> = members.iter().map(|member| member.incarnation).collect();
        assert_eq!(shown, alive.into_iter().collect::<Vec<_>>());
    }
    let lives = world.database.ask("SELECT count(*) FROM node");
    let lives: u64 = lives.expect("a count").parse().expect("a number");
    assert!((64..=72).contains(&lives), "{lives} of 80 are remembered");
    assert_eq!(
        world.beat(&member("a", 191)).await,
        None,
        "replaced, and remembered"
    );
}

#[tokio::test]
async fn nodes_that_were_silent_for_long_are_forgotten() {
    let world = World::new("silent").await;
    let old = Member {
        seen_at: Timestamp(1_700_000_000_000),
        ..member("old", 1)
    };
    world.beat(&old).await.expect("it lives");
    world.beat(&member("new", 2)).await.expect("it lives");
    let names = || async {
        let members = world.store.members().await.expect("members");
        members
            .into_iter()
            .map(|member| member.node.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["new"]);
    world.beat(&old).await.expect("it was only silent");
    assert_eq!(names().await, ["new", "old"]);
}
