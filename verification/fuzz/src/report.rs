//! What was found, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::campaign::{CampaignResult, Found};

impl fmt::Display for CampaignResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let per_second = self.executions as f64 / self.seconds.max(0.001);
        let branches = match self.branches_in_all {
            0 => "no counters".to_owned(),
            all => format!("{} of {all} branches", self.branches),
        };
        write!(
            f,
            "{:8} {:>6.0} s  {:>10} inputs ({per_second:.0}/s)  {branches}  {} kept  most memory {} KiB  \
             slowest {:.0} ms  {} faults",
            self.target,
            self.seconds,
            self.executions,
            self.inputs,
            self.memory_most.div_ceil(1024),
            self.slowest_ms,
            self.faults.len(),
        )
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n  again with: fuzz --replay {}",
            self.fault,
            self.file.display()
        )
    }
}

/// Everything of one run.
pub struct Report {
    /// Each target.
    pub targets: Vec<CampaignResult>,
    /// What chance followed from.
    pub seed: u64,
}

impl Report {
    /// Whether nothing failed.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.targets.iter().all(|target| target.faults.is_empty())
    }

    /// In one line.
    #[must_use]
    pub fn figure(&self) -> String {
        let all = |of: fn(&CampaignResult) -> u64| self.targets.iter().map(of).sum::<u64>();
        let seconds: f64 = self.targets.iter().map(|target| target.seconds).sum();
        let time = Duration::from_secs_f64(seconds.round());
        let memory = self.targets.iter().map(|target| target.memory_most).max();
        let slowest = self.targets.iter().map(|target| target.slowest_ms);
        format!(
            "{} inputs on {} targets in {time:?}, {} faults; most memory of one input {} KiB, slowest {:.0} ms",
            all(|target| target.executions),
            self.targets.len(),
            all(|target| target.faults.len() as u64),
            memory.unwrap_or_default().div_ceil(1024),
            slowest.fold(0.0, f64::max),
        )
    }

    /// For programs.
    #[must_use]
    pub fn json(&self, proof: &str) -> Value {
        json!({
            "proof": proof, "holds": self.holds(), "figure": self.figure(),
            "seed": self.seed, "targets": self.targets,
        })
    }
}
