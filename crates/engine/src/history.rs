//! What reveals that the store has lost commits: its history, the tokens that this node has seen, and what it knew
//! of lanes that left its memory.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::{History, LaneKey, Token};
use metrics::counter;

use crate::core::lock;
use crate::ownership::LastKnownLane;
use crate::witness::CommittedLanes;

#[derive(Default)]
pub(crate) struct HistoryWatch {
    /// The store's history as last seen.
    history: Mutex<Option<History>>,
    /// Whether it changed and no heartbeat has acted upon that.
    changed: AtomicBool,
    /// The highest token of each lane that this node has seen.
    tokens: Mutex<BTreeMap<LaneKey, Token>>,
    last_known_lanes: Mutex<BTreeMap<LaneKey, LastKnownLane>>,
    pub(crate) committed: CommittedLanes,
}

impl HistoryWatch {
    pub(crate) fn observe_history(&self, history: History) {
        let before = lock(&self.history).replace(history);
        if before.is_some_and(|before| before != history) {
            self.changed.store(true, Ordering::Release);
        }
    }

    /// The store's history as last seen.
    pub(crate) fn present(&self) -> Option<History> {
        *lock(&self.history)
    }

    /// Whether the history changed since the last call.
    pub(crate) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::AcqRel)
    }

    /// Keeps what a lane knew that leaves memory without having been released.
    pub(crate) fn remember_lane(&self, lane: LaneKey, last_known: LastKnownLane) {
        lock(&self.last_known_lanes).insert(lane, last_known);
    }

    pub(crate) fn last_known_lane(&self, lane: LaneKey) -> Option<LastKnownLane> {
        lock(&self.last_known_lanes).get(&lane).cloned()
    }

    pub(crate) fn forget_last_known_lane(&self, lane: LaneKey) {
        lock(&self.last_known_lanes).remove(&lane);
    }

    pub(crate) fn record_token(&self, lane: LaneKey, token: Token) {
        lock(&self.tokens).insert(lane, token);
    }

    /// Whether this node was the lane's last keeper as far as it knows: the token rises with every ownership change.
    pub(crate) fn is_last_token(&self, lane: LaneKey, token: Token) -> bool {
        lock(&self.tokens).get(&lane) == Some(&token)
    }

    /// Whether a lane's token is below one that was granted before: the store has lost commits.
    pub(crate) fn is_token_backwards(&self, lane: LaneKey, token: Token) -> bool {
        let highest = lock(&self.tokens).get(&lane).copied();
        let is_lower = highest.is_some_and(|highest| token < highest);
        if is_lower {
            counter!("lanekeeper_lease_token_backwards_total").increment(1);
            tracing::error!(%lane, %token, ?highest, "a lane's token moved backwards: the store has lost commits");
        }
        is_lower
    }
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    const LANE: LaneKey = LaneKey {
        chain_id: ChainId(1),
        signer: Address::ZERO,
    };

    const HISTORY: History = History {
        store: 5,
        timeline: 7,
        restores: 0,
        suspicions: 0,
    };

    #[test]
    fn history_change_is_reported_once_and_never_for_the_first_one() {
        let watch = HistoryWatch::default();
        watch.observe_history(HISTORY);
        assert!(!watch.take_changed(), "the first history is no change");
        let changes = [
            History {
                store: 6,
                ..HISTORY
            },
            History {
                timeline: 8,
                ..HISTORY
            },
            History {
                restores: 1,
                ..HISTORY
            },
            History {
                suspicions: 1,
                ..HISTORY
            },
        ];
        for changed in changes {
            watch.observe_history(changed);
            watch.observe_history(changed);
            assert!(watch.take_changed(), "{changed}");
            assert!(!watch.take_changed());
        }
    }

    #[test]
    fn token_below_a_seen_one_proves_lost_commits() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let watch = HistoryWatch::default();
        assert!(!watch.is_token_backwards(LANE, Token(1)));
        watch.record_token(LANE, Token(5));
        assert!(!watch.is_token_backwards(LANE, Token(5)));
        assert!(watch.is_last_token(LANE, Token(5)) && !watch.is_last_token(LANE, Token(6)));
        assert_eq!(recorder.handle().render(), "");
        assert!(watch.is_token_backwards(LANE, Token(4)));
        let name = "lanekeeper_lease_token_backwards_total";
        let page = recorder.handle().render();
        assert!(page.contains(&format!("{name} 1\n")), "{page}");
    }
}
