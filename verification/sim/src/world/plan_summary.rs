//! A plan as readable lines, one subject each.

use super::features::FeatureSet;
use super::plan::Plan;

impl Plan {
    /// The plan, for the beginning of a trace.
    pub(super) fn lines(&self) -> Vec<String> {
        let names = |nodes: &[domain::NodeName]| {
            let names: Vec<&str> = nodes.iter().map(|node| node.0.as_str()).collect();
            names.join(" ")
        };
        let ms = |time: std::time::Duration| time.as_millis();
        let mut lines = vec![
            format!(
                "plan   nodes {} (later also: {}), {} shards each, {:?} to the keeper",
                names(&self.nodes),
                names(&self.newcomers),
                self.shards,
                self.non_keeper
            ),
            format!(
                "plan   {} lanes, {:?}; faults last {} ms",
                self.signers.len(),
                self.request_plan,
                ms(self.fault_phase)
            ),
            format!("plan   leases {:?}", self.lease),
            format!("plan   rules of lanes {:?}", self.lane),
            format!("plan   chain {:?}", self.chain),
            format!(
                "plan   signer takes {:?}, is unavailable {} times in 1000",
                self.signer_travel, self.unsigned
            ),
            format!("plan   links to the store {:?}", self.store_link),
            format!("plan   links between nodes {:?}", self.peer_link),
            format!(
                "plan   faults every {:?}, clock jumps: {}, failovers: {}, with loss at {:?}, restored: {:?}",
                self.fault_interval,
                self.clock_jumps,
                self.failovers,
                self.lossy_failover,
                self.restore
            ),
            format!("plan   workloads: {}", self.workloads),
        ];
        if let Some(poison) = self.poison {
            lines.push(format!(
                "plan   poisoned {} by {:?}",
                poison.lane(),
                poison.kind
            ));
        }
        if let Some(hostile) = self.hostile {
            lines.push(format!("plan   hostile {hostile:?}"));
        }
        if let Some(reservations) = self.reservations {
            lines.push(format!(
                "plan   nonces of {} are reserved for {} ms",
                reservations.lane(),
                ms(reservations.timeout)
            ));
        }
        if self.without != FeatureSet::default() {
            lines.push(format!("plan   without {}", self.without));
        }
        lines
    }
}
