//! The other nodes as this one observes them: which are alive, which are silent, and which should keep a lane.
//!
//! A node is judged by whether its heartbeat *counter* moves, on our own monotonic clock: the store's
//! clock may jump, and clocks of other machines prove nothing. All of this decides which node may *try*;
//! the fence decides which may write.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use domain::{Incarnation, LaneKey, MonotonicTime, NodeName};

use crate::core::lock;
use crate::ports::Member;
use crate::rendezvous::rendezvous_hash;

/// For how long a node that was not reached gets no requests, the first time; twice as long each time in a row.
const SUSPECT_FIRST: Duration = Duration::from_secs(1);
const SUSPECT_MAX: Duration = Duration::from_secs(8);

#[derive(Default)]
pub(crate) struct Cluster {
    nodes: Mutex<BTreeMap<NodeName, ObservedNode>>,
    /// When the list of members was last read.
    observed_at: Mutex<MonotonicTime>,
    /// Incarnations that a newer one of the same node has replaced: their lanes may be taken over. The newest last.
    past_incarnations: Mutex<VecDeque<Incarnation>>,
    /// Incarnations that a lease named and the list of members did not: the list may be the older of the two.
    unlisted: Mutex<VecDeque<UnlistedIncarnation>>,
}

/// The most past incarnations that are kept: leases name one only until the lane is acquired again.
const PAST_INCARNATIONS_MAX: usize = 64;

struct UnlistedIncarnation {
    node: NodeName,
    incarnation: Incarnation,
    seen_at: MonotonicTime,
}

struct ObservedNode {
    member: Member,
    /// When its counter was last seen to move, or the node was first seen.
    moved_at: MonotonicTime,
    /// For how long its counter was observed not to move. Time without observations does not count: a node that was
    /// frozen itself, or cut off from the store, must not take all others for silent.
    stalled_for: Duration,
    /// Whether its counter was ever seen to move.
    has_moved: bool,
    /// Until when it counts as unreachable.
    suspect_until: MonotonicTime,
    /// How often in a row it was not reached.
    failures: u32,
}

/// A node that can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) node: NodeName,
    pub(crate) address: String,
}

/// The incarnations of other nodes, as this node observes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observations {
    pub(crate) alive: Vec<Incarnation>,
    pub(crate) silent: Vec<Incarnation>,
}

impl Cluster {
    /// Applies the list of members that came with a heartbeat sent at `requested_at`. Between two lists at most
    /// `observation_max` counts as observed.
    pub(crate) fn observe_members(
        &self,
        members: Vec<Member>,
        requested_at: MonotonicTime,
        now: MonotonicTime,
        observation_max: Duration,
    ) {
        let mut observed_at = lock(&self.observed_at);
        let observed_for = requested_at.since(*observed_at).min(observation_max);
        *observed_at = now;
        let mut seen = lock(&self.nodes);
        let mut before = std::mem::take(&mut *seen);
        for member in members {
            let node = member.node.clone();
            let entry = match before.remove(&node) {
                Some(mut old) if old.member.incarnation == member.incarnation => {
                    if old.member.heartbeats == member.heartbeats {
                        old.stalled_for = old.stalled_for.saturating_add(observed_for);
                    } else {
                        old.moved_at = now;
                        old.stalled_for = Duration::ZERO;
                        old.has_moved = true;
                    }
                    ObservedNode { member, ..old }
                }
                old @ (Some(_) | None) => {
                    if let Some(old) = old {
                        self.mark_past(old.member.incarnation);
                    }
                    ObservedNode {
                        member,
                        moved_at: now,
                        stalled_for: Duration::ZERO,
                        has_moved: false,
                        suspect_until: MonotonicTime(0),
                        failures: 0,
                    }
                }
            };
            seen.insert(node, entry);
        }
        let present = |node: &NodeName| seen.get(node).map(|seen| seen.member.incarnation);
        lock(&self.unlisted).retain(|unlisted| {
            if unlisted.seen_at > requested_at {
                return true; // this list may be older than the lease
            }
            if present(&unlisted.node).is_some_and(|present| present != unlisted.incarnation) {
                self.mark_past(unlisted.incarnation);
            }
            false
        });
    }

    /// A lease names this incarnation. It is past where a list that is requested from now on names another one.
    pub(crate) fn observe_lease(
        &self,
        node: &NodeName,
        incarnation: Incarnation,
        now: MonotonicTime,
    ) {
        let newest = lock(&self.nodes)
            .get(node)
            .map(|seen| seen.member.incarnation);
        if newest.is_none_or(|newest| newest == incarnation)
            || lock(&self.past_incarnations).contains(&incarnation)
        {
            return;
        }
        let mut unlisted = lock(&self.unlisted);
        if unlisted
            .iter()
            .all(|unlisted| unlisted.incarnation != incarnation)
        {
            unlisted.push_back(UnlistedIncarnation {
                node: node.clone(),
                incarnation,
                seen_at: now,
            });
        }
        if unlisted.len() > PAST_INCARNATIONS_MAX {
            unlisted.pop_front();
        }
    }

    fn mark_past(&self, incarnation: Incarnation) {
        let mut past = lock(&self.past_incarnations);
        if !past.contains(&incarnation) {
            past.push_back(incarnation);
        }
        if past.len() > PAST_INCARNATIONS_MAX {
            past.pop_front();
        }
    }

    /// Which incarnations were alive within the last lease, and which were silent for a whole one.
    pub(crate) fn observations(
        &self,
        me: &NodeName,
        lease: Duration,
        now: MonotonicTime,
    ) -> Observations {
        let mut observations = Observations {
            silent: lock(&self.past_incarnations).iter().copied().collect(),
            alive: Vec::new(),
        };
        for (node, seen) in &*lock(&self.nodes) {
            if node == me {
                continue;
            }
            let has_moved = seen.has_moved && now.since(seen.moved_at) < lease;
            if seen.stalled_for >= lease {
                // Also one that drains: it may have ended before it released a lane.
                observations.silent.push(seen.member.incarnation);
            } else if has_moved && !seen.member.draining {
                observations.alive.push(seen.member.incarnation);
            }
        }
        observations
    }

    /// Whether a node counts as silent by the last observation. (A past incarnation needs no second one.)
    pub(crate) fn has_silent_node(&self, me: &NodeName, lease: Duration) -> bool {
        lock(&self.nodes)
            .iter()
            .any(|(node, seen)| node != me && !seen.member.draining && seen.stalled_for >= lease)
    }

    /// The address of a node, unless it was unreachable a moment ago.
    pub(crate) fn reachable_peer(&self, node: &NodeName, now: MonotonicTime) -> Option<Peer> {
        let seen = lock(&self.nodes);
        let seen = seen.get(node).filter(|seen| seen.suspect_until <= now)?;
        Some(Peer {
            node: node.clone(),
            address: seen.member.advertise.clone()?,
        })
    }

    /// The addresses of all other nodes.
    pub(crate) fn peer_addresses(&self, me: &NodeName) -> Vec<String> {
        let seen = lock(&self.nodes);
        let others = seen.iter().filter(|(node, _)| *node != me);
        others
            .filter_map(|(_, seen)| seen.member.advertise.clone())
            .collect()
    }

    /// A node was not reached, or drains.
    pub(crate) fn mark_suspect(&self, node: &NodeName, now: MonotonicTime) {
        if let Some(seen) = lock(&self.nodes).get_mut(node) {
            let factor = 2_u32.saturating_pow(seen.failures);
            let wait = SUSPECT_FIRST.saturating_mul(factor).min(SUSPECT_MAX);
            seen.suspect_until = now.plus(wait);
            seen.failures = seen.failures.saturating_add(1);
        }
    }

    pub(crate) fn mark_reached(&self, node: &NodeName) {
        if let Some(seen) = lock(&self.nodes).get_mut(node) {
            seen.failures = 0;
        }
    }

    /// The preferred keeper of a lane without one: the highest rendezvous hash among this node and the others that
    /// are alive and may keep it. Every node chooses the same one, lanes spread, and a node that starts or ends
    /// moves only its own share.
    pub(crate) fn preferred_keeper(
        &self,
        lane: LaneKey,
        me: &NodeName,
        may_keep: impl Fn(&NodeName) -> bool,
        lease: Duration,
        now: MonotonicTime,
    ) -> Option<NodeName> {
        let seen = lock(&self.nodes);
        let others = seen.iter().filter(|(node, seen)| {
            *node != me
                && !seen.member.draining
                && seen.member.advertise.is_some()
                && seen.suspect_until <= now
                && seen.stalled_for < lease
        });
        let nodes = others.map(|(node, _)| node).chain([me]);
        nodes
            .filter(|node| may_keep(node))
            .max_by_key(|node| (rendezvous_hash(lane, node), (*node).clone()))
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId, Timestamp};
    use uuid::Uuid;

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const OBSERVATION_MAX: Duration = Duration::from_secs(6);

    fn name(node: &str) -> NodeName {
        NodeName(node.into())
    }

    fn member(node: &str, incarnation: u128, heartbeats: u64) -> Member {
        Member {
            node: name(node),
            incarnation: Incarnation(Uuid::from_u128(incarnation)),
            advertise: Some(format!("http://{node}")),
            started_at: Timestamp(0),
            seen_at: Timestamp(0),
            heartbeats,
            draining: false,
        }
    }

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds.saturating_mul(1_000_000))
    }

    fn lane(number: u8) -> LaneKey {
        LaneKey {
            chain_id: ChainId(1),
            signer: Address::repeat_byte(number),
        }
    }

    #[test]
    fn node_whose_counter_is_stalled_for_a_lease_is_silent() {
        let cluster = Cluster::default();
        let me = name("a");
        cluster.observe_members(
            vec![member("a", 1, 1), member("b", 2, 5)],
            at(0),
            at(0),
            OBSERVATION_MAX,
        );
        assert_eq!(
            cluster.observations(&me, LEASE, at(1)),
            Observations::default(),
            "seen once, it may be the row of a dead node"
        );
        cluster.observe_members(vec![member("b", 2, 6)], at(3), at(3), OBSERVATION_MAX);
        let b = vec![Incarnation(Uuid::from_u128(2))];
        assert_eq!(cluster.observations(&me, LEASE, at(12)).alive, b);
        assert_eq!(
            cluster.observations(&me, LEASE, at(60)),
            Observations::default(),
            "not observed since: this node itself slept"
        );
        cluster.observe_members(vec![member("b", 2, 6)], at(60), at(60), OBSERVATION_MAX);
        assert_eq!(
            cluster.observations(&me, LEASE, at(60)),
            Observations::default(),
            "one observation after a long sleep, or an outage of the store for all"
        );
        cluster.observe_members(vec![member("b", 2, 6)], at(64), at(64), OBSERVATION_MAX);
        assert_eq!(cluster.observations(&me, LEASE, at(64)).silent, b);
        cluster.observe_members(vec![member("b", 3, 1)], at(65), at(65), OBSERVATION_MAX);
        let only_the_old_incarnation = Observations {
            silent: b,
            alive: Vec::new(),
        };
        assert_eq!(
            cluster.observations(&me, LEASE, at(66)),
            only_the_old_incarnation,
            "a new incarnation starts afresh, and the old one is past"
        );
    }

    #[test]
    fn node_that_ended_while_it_drained_is_silent_too() {
        let cluster = Cluster::default();
        let drains = |heartbeats| Member {
            draining: true,
            ..member("b", 2, heartbeats)
        };
        let observe = |heartbeats, seconds| {
            let (sent, now) = (at(seconds), at(seconds));
            cluster.observe_members(vec![drains(heartbeats)], sent, now, OBSERVATION_MAX);
            cluster.observations(&name("a"), LEASE, now)
        };
        observe(1, 0);
        let leaves_by_itself = Observations::default();
        assert_eq!(observe(2, 3), leaves_by_itself, "no claim on its lanes");
        assert_eq!(observe(2, 9), leaves_by_itself);
        let b = vec![Incarnation(Uuid::from_u128(2))];
        assert_eq!(observe(2, 15).silent, b);
    }

    #[test]
    fn newer_incarnation_of_a_node_is_decided_by_a_later_list() {
        let cluster = Cluster::default();
        let silent = || cluster.observations(&name("a"), LEASE, at(9)).silent;
        let [older, before, now] =
            [1, 2, 3].map(|incarnation| Incarnation(Uuid::from_u128(incarnation)));
        cluster.observe_members(vec![member("b", 2, 1)], at(0), at(0), OBSERVATION_MAX);
        cluster.observe_lease(&name("b"), older, at(2));
        cluster.observe_lease(&name("b"), now, at(2)); // restarted, which the list did not show
        assert_eq!(silent(), [], "not decided yet");
        cluster.observe_members(vec![member("b", 2, 1)], at(1), at(3), OBSERVATION_MAX);
        assert_eq!(silent(), [], "this list was requested before");
        cluster.observe_members(vec![member("b", 3, 1)], at(4), at(4), OBSERVATION_MAX);
        assert_eq!(silent(), [before, older]);
    }

    #[test]
    fn lanes_spread_and_only_the_share_of_an_ended_node_moves() {
        let cluster = Cluster::default();
        let (me, members) = (name("a"), |names: &[&str]| {
            names.iter().map(|n| member(n, 1, 1)).collect::<Vec<_>>()
        });
        let keepers = |cluster: &Cluster| -> Vec<NodeName> {
            (0..200)
                .map(|n| {
                    let found = cluster.preferred_keeper(lane(n), &me, |_| true, LEASE, at(1));
                    found.expect("this node stays")
                })
                .collect()
        };
        cluster.observe_members(members(&["a", "b", "c"]), at(0), at(0), OBSERVATION_MAX);
        let three = keepers(&cluster);
        for node in ["a", "b", "c"] {
            let share = three.iter().filter(|n| **n == name(node)).count();
            assert!((45..90).contains(&share), "{node} keeps {share} of 200");
        }
        cluster.observe_members(members(&["a", "b"]), at(0), at(0), OBSERVATION_MAX);
        for (before, after) in three.iter().zip(keepers(&cluster)) {
            assert!(*before == after || *before == name("c"));
        }
    }

    #[test]
    fn suspect_is_avoided_for_a_while_and_draining_node_for_good() {
        let cluster = Cluster::default();
        cluster.observe_members(vec![member("b", 1, 1)], at(0), at(0), OBSERVATION_MAX);
        let not_a = |node: &NodeName| *node != name("a");
        let b = name("b");
        assert!(cluster.reachable_peer(&b, at(0)).is_some());
        cluster.mark_suspect(&b, at(0));
        assert!(cluster.reachable_peer(&b, at(0)).is_none());
        assert!(cluster.reachable_peer(&b, at(2)).is_some());
        cluster.mark_suspect(&b, at(2));
        assert!(
            cluster.reachable_peer(&b, at(3)).is_none(),
            "twice in a row"
        );
        cluster.mark_reached(&b);
        cluster.mark_suspect(&b, at(4));
        assert!(
            cluster.reachable_peer(&b, at(5)).is_some(),
            "it answered in between"
        );
        let leaving = cluster.preferred_keeper(lane(1), &name("a"), not_a, LEASE, at(5));
        assert_eq!(leaving, Some(b.clone()));
        let drained = Member {
            draining: true,
            ..member("b", 1, 2)
        };
        cluster.observe_members(vec![drained], at(6), at(6), OBSERVATION_MAX);
        assert_eq!(
            cluster.preferred_keeper(lane(1), &name("a"), not_a, LEASE, at(6)),
            None
        );
    }
}
