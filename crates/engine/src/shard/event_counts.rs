//! What becomes known once a batch is durable: waiters and the feed are woken, and its events are counted. A result that
//! was reorged out after it was final is logged.

use std::collections::BTreeMap;

use domain::{Event, EventKind, LaneKey, LeaseGrant, TxId};
use metrics::counter;

use super::Shard;

/// How many events of each counted kind a batch has; recorded once it is durable.
#[derive(Default)]
pub(crate) struct EventCounts {
    pub(crate) has_events: bool,
    after_final: u64,
    /// By the name of the counter, and its `result` where it has one.
    counts: BTreeMap<(&'static str, Option<&'static str>), u64>,
}

impl EventCounts {
    pub(crate) fn from_events(events: &[Event]) -> Self {
        let mut counts = Self {
            has_events: !events.is_empty(),
            ..Self::default()
        };
        for event in events {
            counts.add_kind(&event.kind);
        }
        counts
    }

    fn add_kind(&mut self, kind: &EventKind) {
        if let EventKind::TxReorged { after_final, .. } = kind {
            self.after_final += u64::from(*after_final);
        }
        let counter = match kind {
            EventKind::TxReorged { .. } | EventKind::TxConfirmations { new_fork: true, .. } => {
                ("lanekeeper_confirmations_new_fork_total", None)
            }
            EventKind::TxConfirmed { .. } => ("lanekeeper_finality_total", Some("confirmed")),
            EventKind::TxFailed { .. } => ("lanekeeper_finality_total", Some("failed")),
            EventKind::TxResubmitted { .. } => ("lanekeeper_tx_resubmitted_total", None),
            EventKind::TxReplaced { .. } => ("lanekeeper_tx_replaced_total", None),
            EventKind::TxStuck { .. } => ("lanekeeper_tx_stuck_total", None),
            EventKind::LaneForeignNonce { .. } | EventKind::LaneForeignPending { .. } => {
                ("lanekeeper_lane_foreign_total", None)
            }
            EventKind::TxAccepted { .. }
            | EventKind::TxAllocated { .. }
            | EventKind::TxSubmitted { .. }
            | EventKind::TxReceiptUpdated { .. }
            | EventKind::TxConfirmations { .. }
            | EventKind::TxRequeued { .. }
            | EventKind::LaneFenced { .. } => return,
        };
        *self.counts.entry(counter).or_default() += 1;
    }

    /// Records the batch, which is durable now.
    pub(crate) fn record(&self, lane: LaneKey) {
        for (&(name, result), &count) in &self.counts {
            match result {
                Some(result) => counter!(name, "result" => result).increment(count),
                None => counter!(name).increment(count),
            }
        }
        if self.after_final > 0 {
            let txs = self.after_final;
            tracing::error!(%lane, txs, "incident: a fork reorged out results that had been reported as final");
            counter!("lanekeeper_incidents_total", "kind" => "fork_below_finality").increment(1);
        }
    }
}

impl Shard {
    /// Wakes those who wait for what a durable batch has changed, and counts its events.
    pub(crate) fn announce(
        &self,
        key: LaneKey,
        lease_grant: LeaseGrant,
        changed: Vec<TxId>,
        event_counts: &EventCounts,
    ) {
        self.core.customers.waiters.notify_waiters_of(changed);
        event_counts.record(key);
        if event_counts.has_events {
            self.core.feed.mark_written([lease_grant.lane]);
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{Address, ChainId, Nonce, Timestamp};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn foreign_use_of_a_lane_is_counted() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let event = |seq, kind| Event {
            seq,
            at: Timestamp(1),
            tx_id: None,
            kind,
        };
        let nonce = Nonce(7);
        let events = [
            event(1, EventKind::LaneForeignPending { nonce }),
            event(
                2,
                EventKind::LaneForeignNonce {
                    nonce,
                    tx_hash: None,
                },
            ),
        ];
        EventCounts::from_events(&events).record(LaneKey {
            chain_id: ChainId(1),
            signer: Address::ZERO,
        });
        let name = "lanekeeper_lane_foreign_total";
        let page = recorder.handle().render();
        assert!(page.contains(&format!("{name} 2\n")), "{page}");
    }
}
