//! What an audit found.

use crate::Outcome;

/// How many findings of a kind are told in full.
const TOLD_MAX: usize = 3;

/// What is wrong with a payment or a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// It was accepted and is not in the store, or its money has not arrived.
    Lost,
    /// Its money arrived more than once, or a request has two txs.
    Doubled,
    /// It has not ended.
    Stuck,
    /// Anything else that does not fit together.
    Broken,
}

impl Wrong {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lost, Self::Doubled, Self::Stuck, Self::Broken];
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub wrong: Wrong,
    /// About what.
    pub text: String,
}

/// What an audit counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Promised to the business.
    pub promised: usize,
    /// In the store; those that were not promised had their answer lost on the way.
    pub stored: usize,
    /// Promised payments that arrived, each once.
    pub paid: usize,
    /// Rejected for good, with nothing paid.
    pub rejected: usize,
    /// Nonces that a no-op of the store took.
    pub no_ops: usize,
    /// Nonces that somebody else took.
    pub foreign: usize,
}

impl Counted {
    /// Of both.
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

/// The end of an audit.
#[derive(Clone, Debug, Default)]
pub struct Audited {
    /// How much there is.
    pub counted: Counted,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
}

impl Audited {
    /// How many findings there are of a kind.
    pub fn count(&self, wrong: Wrong) -> usize {
        let of_kind = self.findings.iter().filter(|found| found.wrong == wrong);
        of_kind.count()
    }

    /// Some findings of each kind.
    pub fn samples(&self) -> Vec<&Finding> {
        let mut samples = Vec::new();
        for wrong in Wrong::ALL {
            let of_kind = self.findings.iter().filter(|found| found.wrong == wrong);
            samples.extend(of_kind.take(TOLD_MAX));
        }
        samples
    }

    /// The counts, if nothing is wrong.
    pub fn sound(self) -> Outcome<Counted> {
        if self.findings.is_empty() {
            return Ok(self.counted);
        }
        let kinds = Wrong::ALL.map(|wrong| format!("{} {wrong:?}", self.count(wrong)));
        let told = self.samples().into_iter();
        let told: Vec<&str> = told.map(|found| found.text.as_str()).collect();
        Err(format!("{}: {}", kinds.join(", "), told.join("; ")).into())
    }
}
