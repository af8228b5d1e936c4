//! The other nodes as this one sees them: who is at work, who is silent, and who should keep a lane.
//!
//! A node is judged by whether its heartbeat *counter* moves, on our own monotonic clock: the store's
//! clock may jump, and the clocks of other machines say nothing. All of this decides who may *try*;
//! the fence decides who may write.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use domain::{Incarnation, LaneKey, MonotonicTime, NodeName};

use crate::ports::Member;

/// How long a node that was not reached is left alone, the first time; twice as long each time in a row.
const SUSPECT_FIRST: Duration = Duration::from_secs(1);
/// The longest.
const SUSPECT_MAX: Duration = Duration::from_secs(8);

/// What this node knows of the cluster.
#[derive(Default)]
pub(crate) struct Cluster {
    seen: Mutex<BTreeMap<NodeName, Seen>>,
    /// When the list was last asked for.
    looked_at: Mutex<MonotonicTime>,
    /// Earlier lives of nodes that have a later one: they are over, and what they held is nobody's. The
    /// newest last.
    past_lives: Mutex<VecDeque<Incarnation>>,
    /// Lives that leases named and the list did not: it may be the list that is old.
    in_question: Mutex<VecDeque<InQuestion>>,
}

/// The most past lives that are remembered: leases name one only until somebody asks for the lane.
const PAST_LIVES_MAX: usize = 64;

/// A life of a node whose lease was seen.
struct InQuestion {
    node: NodeName,
    life: Incarnation,
    seen_at: MonotonicTime,
}

struct Seen {
    member: Member,
    /// When its counter was last seen to move, or the node was first seen.
    moved_at: MonotonicTime,
    /// For how long it was seen to stand still: what was not looked at was not seen. (A node that was
    /// frozen itself, or cut off from the store, must not take everybody else for silent.)
    stood_still: Duration,
    /// Whether it was ever seen to move.
    has_moved: bool,
    /// Until when it counts as not reachable.
    suspect_until: MonotonicTime,
    /// How often in a row it was not reached.
    failures: u32,
}

/// A node that can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) node: NodeName,
    pub(crate) address: String,
}

/// What the lives of other nodes look like from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sightings {
    pub(crate) alive: Vec<Incarnation>,
    pub(crate) silent: Vec<Incarnation>,
}

impl Cluster {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeName, Seen>> {
        self.seen
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    /// Takes the list that came with a heartbeat, which was asked for at `asked_at`. Between two looks at
    /// most `look_counts` counts as seen.
    pub(crate) fn observe(
        &self,
        members: Vec<Member>,
        asked_at: MonotonicTime,
        now: MonotonicTime,
        look_counts: Duration,
    ) {
        let mut looked_at = self
            .looked_at
            .lock()
            .expect("nothing panics while it holds this lock");
        let looked_for = asked_at.since(*looked_at).min(look_counts);
        *looked_at = now;
        let mut seen = self.lock();
        let mut before = std::mem::take(&mut *seen);
        for member in members {
            let node = member.node.clone();
            let entry = match before.remove(&node) {
                Some(old) if old.member.incarnation == member.incarnation => {
                    let has_moved = old.member.heartbeats != member.heartbeats;
                    let moved_at = if has_moved { now } else { old.moved_at };
                    Seen {
                        moved_at,
                        stood_still: if has_moved {
                            Duration::ZERO
                        } else {
                            old.stood_still.saturating_add(looked_for)
                        },
                        has_moved: old.has_moved || has_moved,
                        suspect_until: old.suspect_until,
                        failures: old.failures,
                        member,
                    }
                }
                old @ (Some(_) | None) => {
                    if let Some(old) = old {
                        self.is_over(old.member.incarnation);
                    }
                    Seen {
                        member,
                        moved_at: now,
                        stood_still: Duration::ZERO,
                        has_moved: false,
                        suspect_until: MonotonicTime(0),
                        failures: 0,
                    }
                }
            };
            seen.insert(node, entry);
        }
        let present = |node: &NodeName| seen.get(node).map(|seen| seen.member.incarnation);
        self.in_question().retain(|question| {
            if question.seen_at > asked_at {
                return true; // this list may be older than the lease
            }
            if present(&question.node).is_some_and(|present| present != question.life) {
                self.is_over(question.life);
            }
            false
        });
    }

    /// A lease names this life of a node. Where a list that is asked for from now on names another one, it is over.
    pub(crate) fn saw_lease_of(&self, node: &NodeName, life: Incarnation, now: MonotonicTime) {
        let newest = self.lock().get(node).map(|seen| seen.member.incarnation);
        if newest.is_none_or(|newest| newest == life) || self.past_lives().contains(&life) {
            return;
        }
        let mut questions = self.in_question();
        if questions.iter().all(|question| question.life != life) {
            questions.push_back(InQuestion {
                node: node.clone(),
                life,
                seen_at: now,
            });
        }
        if questions.len() > PAST_LIVES_MAX {
            questions.pop_front();
        }
    }

    fn in_question(&self) -> MutexGuard<'_, VecDeque<InQuestion>> {
        self.in_question
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    fn is_over(&self, life: Incarnation) {
        let mut past = self.past_lives();
        if !past.contains(&life) {
            past.push_back(life);
        }
        if past.len() > PAST_LIVES_MAX {
            past.pop_front();
        }
    }

    fn past_lives(&self) -> MutexGuard<'_, VecDeque<Incarnation>> {
        self.past_lives
            .lock()
            .expect("nothing panics while it holds this lock")
    }

    /// Who was at work within the last lease, and who was not for a whole one.
    pub(crate) fn sightings(
        &self,
        me: &NodeName,
        lease: Duration,
        now: MonotonicTime,
    ) -> Sightings {
        let mut sightings = Sightings {
            silent: self.past_lives().iter().copied().collect(),
            alive: Vec::new(),
        };
        for (node, seen) in &*self.lock() {
            if node == me || seen.member.draining {
                continue; // who is leaving does not look after its lanes any more
            } else if seen.stood_still >= lease {
                sightings.silent.push(seen.member.incarnation);
            } else if seen.has_moved && now.since(seen.moved_at) < lease {
                sightings.alive.push(seen.member.incarnation);
            }
        }
        sightings
    }

    /// Whether some node counts as silent by what was seen last. (A life that has a later one is over without
    /// a second look.)
    pub(crate) fn is_anyone_silent(&self, me: &NodeName, lease: Duration) -> bool {
        self.lock()
            .iter()
            .any(|(node, seen)| node != me && !seen.member.draining && seen.stood_still >= lease)
    }

    /// Where a node is reached, unless it was tried in vain a moment ago.
    pub(crate) fn peer(&self, node: &NodeName, now: MonotonicTime) -> Option<Peer> {
        let seen = self.lock();
        let seen = seen.get(node).filter(|seen| seen.suspect_until <= now)?;
        Some(Peer {
            node: node.clone(),
            address: seen.member.advertise.clone()?,
        })
    }

    /// Where all the others are reached.
    pub(crate) fn addresses(&self, me: &NodeName) -> Vec<String> {
        let seen = self.lock();
        let others = seen.iter().filter(|(node, _)| *node != me);
        others
            .filter_map(|(_, seen)| seen.member.advertise.clone())
            .collect()
    }

    /// A node was not reached, or is on its way out.
    pub(crate) fn suspect(&self, node: &NodeName, now: MonotonicTime) {
        if let Some(seen) = self.lock().get_mut(node) {
            let factor = 2_u32.saturating_pow(seen.failures);
            let wait = SUSPECT_FIRST.saturating_mul(factor).min(SUSPECT_MAX);
            seen.suspect_until = now.plus(wait);
            seen.failures = seen.failures.saturating_add(1);
        }
    }

    /// A node answered.
    pub(crate) fn reached(&self, node: &NodeName) {
        if let Some(seen) = self.lock().get_mut(node) {
            seen.failures = 0;
        }
    }

    /// Who should keep a lane that nobody keeps: the highest rendezvous hash among this node and those at
    /// work, as far as they may keep it. Every node comes to the same answer, lanes spread, and a node
    /// that comes or goes moves only its own share.
    pub(crate) fn preferred(
        &self,
        lane: LaneKey,
        me: &NodeName,
        may_keep: impl Fn(&NodeName) -> bool,
        lease: Duration,
        now: MonotonicTime,
    ) -> Option<NodeName> {
        let seen = self.lock();
        let others = seen.iter().filter(|(node, seen)| {
            *node != me
                && !seen.member.draining
                && seen.member.advertise.is_some()
                && seen.suspect_until <= now
                && seen.stood_still < lease
        });
        let nodes = others.map(|(node, _)| node).chain([me]);
        nodes
            .filter(|node| may_keep(node))
            .max_by_key(|node| (rendezvous(lane, node), (*node).clone()))
            .cloned()
    }
}

/// The same in every process and version.
fn rendezvous(lane: LaneKey, node: &NodeName) -> u64 {
    let mut hasher = Fnv::default();
    lane.hash(&mut hasher);
    node.0.hash(&mut hasher);
    // The last bytes of FNV hardly reach its high bits: mix once more.
    let mut mixed = hasher.finish();
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

/// FNV-1a: the same in every process and version, unlike the standard library's hasher.
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId, Timestamp};
    use uuid::Uuid;

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);
    const LOOK: Duration = Duration::from_secs(6);

    fn name(node: &str) -> NodeName {
        NodeName(node.into())
    }

    fn member(node: &str, life: u128, heartbeats: u64) -> Member {
        Member {
            node: name(node),
            incarnation: Incarnation(Uuid::from_u128(life)),
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
    fn a_counter_that_stands_still_for_a_lease_is_a_silent_node() {
        let cluster = Cluster::default();
        let me = name("a");
        cluster.observe(
            vec![member("a", 1, 1), member("b", 2, 5)],
            at(0),
            at(0),
            LOOK,
        );
        assert_eq!(
            cluster.sightings(&me, LEASE, at(1)),
            Sightings::default(),
            "seen once, it may be the row of a dead node"
        );
        cluster.observe(vec![member("b", 2, 6)], at(3), at(3), LOOK);
        let b = vec![Incarnation(Uuid::from_u128(2))];
        assert_eq!(cluster.sightings(&me, LEASE, at(12)).alive, b);
        assert_eq!(
            cluster.sightings(&me, LEASE, at(60)),
            Sightings::default(),
            "nobody looked since: that was our own sleep"
        );
        cluster.observe(vec![member("b", 2, 6)], at(60), at(60), LOOK);
        assert_eq!(
            cluster.sightings(&me, LEASE, at(60)),
            Sightings::default(),
            "one look after a long sleep, or a store that was away for all"
        );
        cluster.observe(vec![member("b", 2, 6)], at(64), at(64), LOOK);
        assert_eq!(cluster.sightings(&me, LEASE, at(64)).silent, b);
        cluster.observe(vec![member("b", 3, 1)], at(65), at(65), LOOK);
        let only_the_old_life = Sightings {
            silent: b,
            alive: Vec::new(),
        };
        assert_eq!(
            cluster.sightings(&me, LEASE, at(66)),
            only_the_old_life,
            "another life starts afresh, and the old one is over"
        );
    }

    #[test]
    fn which_life_of_a_node_is_the_later_one_a_later_list_tells() {
        let cluster = Cluster::default();
        let silent = || cluster.sightings(&name("a"), LEASE, at(9)).silent;
        let [older, before, now] = [1, 2, 3].map(|life| Incarnation(Uuid::from_u128(life)));
        cluster.observe(vec![member("b", 2, 1)], at(0), at(0), LOOK);
        cluster.saw_lease_of(&name("b"), older, at(2));
        cluster.saw_lease_of(&name("b"), now, at(2)); // it has started again, which the list did not show
        assert_eq!(silent(), [], "nobody can tell yet");
        cluster.observe(vec![member("b", 2, 1)], at(1), at(3), LOOK);
        assert_eq!(silent(), [], "this list was asked for before");
        cluster.observe(vec![member("b", 3, 1)], at(4), at(4), LOOK);
        assert_eq!(silent(), [before, older]);
    }

    #[test]
    fn lanes_spread_and_only_the_share_of_a_lost_node_moves() {
        let cluster = Cluster::default();
        let (me, members) = (name("a"), |names: &[&str]| {
            names.iter().map(|n| member(n, 1, 1)).collect::<Vec<_>>()
        });
        let place = |cluster: &Cluster| -> Vec<NodeName> {
            (0..200)
                .map(|n| {
                    let found = cluster.preferred(lane(n), &me, |_| true, LEASE, at(1));
                    found.expect("this node stays")
                })
                .collect()
        };
        cluster.observe(members(&["a", "b", "c"]), at(0), at(0), LOOK);
        let three = place(&cluster);
        for node in ["a", "b", "c"] {
            let share = three.iter().filter(|n| **n == name(node)).count();
            assert!((45..90).contains(&share), "{node} keeps {share} of 200");
        }
        cluster.observe(members(&["a", "b"]), at(0), at(0), LOOK);
        for (before, after) in three.iter().zip(place(&cluster)) {
            assert!(*before == after || *before == name("c"));
        }
    }

    #[test]
    fn a_suspect_is_left_alone_for_a_moment_and_a_leaving_node_for_good() {
        let cluster = Cluster::default();
        cluster.observe(vec![member("b", 1, 1)], at(0), at(0), LOOK);
        let not_a = |node: &NodeName| *node != name("a");
        let b = name("b");
        assert!(cluster.peer(&b, at(0)).is_some());
        cluster.suspect(&b, at(0));
        assert!(cluster.peer(&b, at(0)).is_none());
        assert!(cluster.peer(&b, at(2)).is_some());
        cluster.suspect(&b, at(2));
        assert!(cluster.peer(&b, at(3)).is_none(), "twice in a row");
        cluster.reached(&b);
        cluster.suspect(&b, at(4));
        assert!(cluster.peer(&b, at(5)).is_some(), "it answered in between");
        let leaving = cluster.preferred(lane(1), &name("a"), not_a, LEASE, at(5));
        assert_eq!(leaving, Some(b.clone()));
        let drained = Member {
            draining: true,
            ..member("b", 1, 2)
        };
        cluster.observe(vec![drained], at(6), at(6), LOOK);
        assert_eq!(
            cluster.preferred(lane(1), &name("a"), not_a, LEASE, at(6)),
            None
        );
    }
}
