//! Metrics of a batch's events, and the log line for results that were reorged out after they were final.

use domain::{Event, EventKind, LaneKey};
use metrics::counter;

/// How many events of each counted kind a batch has; recorded once it is durable.
#[derive(Default)]
pub(crate) struct EventCounts {
    pub(crate) has_events: bool,
    new_forks: u64,
    after_final: u64,
    final_ends: [u64; 2],
    resubmitted: u64,
    replaced: u64,
    stuck: u64,
    foreign: u64,
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
        let counted = match kind {
            EventKind::TxReorged { after_final, .. } => {
                self.after_final += u64::from(*after_final);
                &mut self.new_forks
            }
            EventKind::TxConfirmations { new_fork: true, .. } => &mut self.new_forks,
            EventKind::TxConfirmed { .. } => &mut self.final_ends[0],
            EventKind::TxFailed { .. } => &mut self.final_ends[1],
            EventKind::TxResubmitted { .. } => &mut self.resubmitted,
            EventKind::TxReplaced { .. } => &mut self.replaced,
            EventKind::TxStuck { .. } => &mut self.stuck,
            EventKind::LaneForeignNonce { .. } | EventKind::LaneForeignPending { .. } => {
                &mut self.foreign
            }
            EventKind::TxAccepted { .. }
            | EventKind::TxAllocated { .. }
            | EventKind::TxSubmitted { .. }
            | EventKind::TxReceiptUpdated { .. }
            | EventKind::TxConfirmations { .. }
            | EventKind::TxRequeued { .. }
            | EventKind::LaneFenced { .. } => return,
        };
        *counted += 1;
    }

    /// Records the batch, which is durable now.
    pub(crate) fn record(&self, lane: LaneKey) {
        let [confirmed, failed] = self.final_ends;
        let add = |name: &'static str, count: u64| {
            if count > 0 {
                counter!(name).increment(count);
            }
        };
        add("lanekeeper_confirmations_new_fork_total", self.new_forks);
        add("lanekeeper_tx_resubmitted_total", self.resubmitted);
        add("lanekeeper_tx_replaced_total", self.replaced);
        add("lanekeeper_tx_stuck_total", self.stuck);
        add("lanekeeper_lane_foreign_total", self.foreign);
        for (result, count) in [("confirmed", confirmed), ("failed", failed)] {
            if count > 0 {
                counter!("lanekeeper_finality_total", "result" => result).increment(count);
            }
        }
        if self.after_final > 0 {
            let txs = self.after_final;
            tracing::error!(%lane, txs, "incident: a fork reorged out results that had been reported as final");
            counter!("lanekeeper_incidents_total", "kind" => "fork_below_finality").increment(1);
        }
    }
}
