//! The findings of an audit.

use crate::Outcome;

/// Findings of a kind that are reported in full.
const REPORTED_MAX: usize = 3;

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// Accepted, but not in the store or not paid.
    Lost,
    /// Paid more than once, or a request with two txs.
    Doubled,
    /// Not ended.
    Stuck,
    /// Any other contradiction.
    Broken,
}

impl FindingKind {
    pub const ALL: [Self; 4] = [Self::Lost, Self::Doubled, Self::Stuck, Self::Broken];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub wrong: FindingKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Promised payments.
    pub promised: usize,
    /// Txs in the store; those without a promise had a lost response.
    pub stored: usize,
    /// Promised payments that arrived exactly once.
    pub paid: usize,
    /// Rejected permanently, and not paid.
    pub rejected: usize,
    /// Nonces of fillers.
    pub no_ops: usize,
    /// Nonces of foreign transactions.
    pub foreign: usize,
}

impl AuditCounts {
    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            promised: self.promised + other.promised,
            stored: self.stored + other.stored,
            paid: self.paid + other.paid,
            rejected: self.rejected + other.rejected,
            no_ops: self.no_ops + other.no_ops,
            foreign: self.foreign + other.foreign,
        }
    }
}

/// The result of an audit.
#[derive(Clone, Debug, Default)]
pub struct AuditReport {
    pub counted: AuditCounts,
    pub findings: Vec<Finding>,
}

impl AuditReport {
    pub fn count(&self, wrong: FindingKind) -> usize {
        let of_kind = self.findings.iter().filter(|found| found.wrong == wrong);
        of_kind.count()
    }

    pub fn samples(&self) -> Vec<&Finding> {
        let mut samples = Vec::new();
        for wrong in FindingKind::ALL {
            let of_kind = self.findings.iter().filter(|found| found.wrong == wrong);
            samples.extend(of_kind.take(REPORTED_MAX));
        }
        samples
    }

    /// The counts; an error if there are findings.
    pub fn require_no_findings(self) -> Outcome<AuditCounts> {
        if self.findings.is_empty() {
            return Ok(self.counted);
        }
        let kinds = FindingKind::ALL.map(|wrong| format!("{} {wrong:?}", self.count(wrong)));
        let reported = self.samples().into_iter();
        let reported: Vec<&str> = reported.map(|found| found.text.as_str()).collect();
        Err(format!("{}: {}", kinds.join(", "), reported.join("; ")).into())
    }
}
