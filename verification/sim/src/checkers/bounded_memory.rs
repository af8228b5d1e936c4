//! Bounded memory and queues: under any load, no queue of a node exceeds its limit.

use engine::node::NodeLoad;

use super::Checker;
use crate::event::WorldEvent;

/// The limits of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages in one shard's inbox.
    pub inbox: usize,
    /// Callers whose requests are being processed by one lane.
    pub callers: usize,
    /// Callers that wait for txs.
    pub waiters: usize,
    /// Lanes that it keeps.
    pub lanes: usize,
    /// Txs of one lane in memory that are not mined; as many of them may wait to be sent.
    pub unmined: usize,
}

pub struct BoundedMemory {
    limits: Limits,
}

impl BoundedMemory {
    pub(super) const PROMISE: &'static str = "memory and queues are bounded";

    /// Nodes with these limits.
    #[must_use]
    pub fn with_limits(limits: Limits) -> Self {
        Self { limits }
    }
}

impl Checker for BoundedMemory {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        let WorldEvent::Sampled { node, load } = event else {
            return Ok(());
        };
        let NodeLoad {
            inboxes,
            callers,
            waiters,
            lanes,
            unmined,
            outgoing,
            watched: _, // includes watched finals: as many as blocks hold
            tasks: _,   // callers are tasks; the final checks inspect idle nodes
        } = load;
        let limits = &self.limits;
        let longest = inboxes.iter().copied().max().unwrap_or(0);
        let all = [
            ("messages in an inbox", longest, limits.inbox),
            ("callers of a lane", *callers, limits.callers),
            ("waiters", *waiters, limits.waiters),
            ("lanes", *lanes, limits.lanes),
            ("txs of a lane in memory", *unmined, limits.unmined),
            ("envelopes of a lane to send", *outgoing, limits.unmined),
        ];
        match all.iter().find(|(_, found, limit)| found > limit) {
            Some((what, found, limit)) => {
                Err(format!("{node} has {found} {what}, the limit is {limit}"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::NodeName;

    use super::*;

    #[test]
    fn exceeding_a_limit_is_reported() {
        let limits = Limits {
            inbox: 4,
            callers: 2,
            waiters: 3,
            lanes: 1,
            unmined: 5,
        };
        let full = NodeLoad {
            inboxes: vec![0, 4],
            callers: 2,
            waiters: 3,
            lanes: 1,
            unmined: 5,
            outgoing: 5,
            watched: 1_000,
            tasks: 1_000,
        };
        let check = |change: fn(&mut NodeLoad)| {
            let mut load = full.clone();
            change(&mut load);
            let node = NodeName("a".to_owned());
            BoundedMemory::with_limits(limits).after(&WorldEvent::Sampled { node, load })
        };
        assert_eq!(check(|_| {}), Ok(()));
        assert!(check(|load| load.inboxes[0] = 5).is_err());
        assert!(check(|load| load.callers = 3).is_err());
        assert!(check(|load| load.waiters = 4).is_err());
        assert!(check(|load| load.unmined = 6).is_err());
        assert!(check(|load| load.outgoing = 6).is_err());
    }
}
