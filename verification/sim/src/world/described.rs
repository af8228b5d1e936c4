//! A plan in lines that people read, one subject each.

use super::parts::Parts;
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
                "plan   {} lanes, {:?}; unrest lasts {} ms",
                self.signers.len(),
                self.workload,
                ms(self.unrest)
            ),
            format!("plan   leases {:?}", self.lease),
            format!("plan   rules of lanes {:?}", self.lane),
            format!("plan   chain {:?}", self.chain),
            format!(
                "plan   signer takes {:?}, puts off {} in 1000",
                self.signer_travel, self.unsigned
            ),
            format!("plan   lines to the store {:?}", self.store_line),
            format!("plan   lines between nodes {:?}", self.peer_line),
            format!(
                "plan   strikes every {:?}, clock set: {}, failovers: {}, with loss at {:?}",
                self.strike_interval, self.clock_jumps, self.failovers, self.lossy_failover
            ),
            format!("plan   habits: {}", self.habits),
        ];
        if let Some(poison) = self.poison {
            lines.push(format!(
                "plan   poisoned {} by {:?}",
                poison.lane(),
                poison.way
            ));
        }
        if let Some(loans) = self.loans {
            lines.push(format!(
                "plan   nonces of {} are lent for {} ms",
                loans.lane(),
                ms(loans.timeout)
            ));
        }
        if self.without != Parts::default() {
            lines.push(format!("plan   without {}", self.without));
        }
        lines
    }
}
