//! What several endpoints report of an account's nonces, and how far they agree.

use super::{AccountNonces, Agreement, EndpointNonces};
use crate::Nonce;

impl EndpointNonces {
    /// The reports of one endpoint, or of two.
    #[must_use]
    pub fn new(first: AccountNonces, second: Option<AccountNonces>, agreement: Agreement) -> Self {
        Self {
            first,
            second,
            third: None,
            agreement,
        }
    }

    /// Whether a quorum answered: two endpoints, or the only one.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.agreement == Agreement::Quorum
    }

    /// Whether two endpoints contradict each other, so that a third one should be asked.
    #[must_use]
    pub fn is_contradictory(&self) -> bool {
        self.second.is_some_and(|second| second != self.first)
    }

    /// What any endpoint has seen.
    #[must_use]
    pub fn highest(&self) -> AccountNonces {
        self.merged(|reported| reported.max().unwrap_or_default())
    }

    /// What two of the endpoints have seen, or the only one that was queried.
    #[must_use]
    pub fn confirmed(&self) -> AccountNonces {
        self.merged(|reported| {
            let mut highest_first: Vec<Nonce> = reported.collect();
            highest_first.sort_unstable_by(|one, other| other.cmp(one));
            let confirmed = highest_first.get(1).or(highest_first.first());
            confirmed.copied().unwrap_or_default()
        })
    }

    /// How many endpoints answered.
    pub(super) fn count(&self) -> usize {
        self.reports().count()
    }

    /// The answer of the endpoints whose report passes; `None` when there is none. Fewer than two endpoints are no
    /// quorum.
    pub(super) fn retain(
        &self,
        is_credible: impl Fn(AccountNonces) -> bool,
    ) -> Option<EndpointNonces> {
        let mut left = self.reports().filter(|reported| is_credible(*reported));
        let first = left.next()?;
        let (second, third) = (left.next(), left.next());
        let agreement = match second {
            Some(_) => self.agreement,
            None => Agreement::One,
        };
        Some(Self {
            first,
            second,
            third,
            agreement,
        })
    }

    /// The same answer, in which no report is above these.
    pub(super) fn capped(&self, most: AccountNonces) -> EndpointNonces {
        let cap = |reported: AccountNonces| AccountNonces {
            latest: reported.latest.min(most.latest),
            pending: reported.pending.min(most.pending),
        };
        Self {
            first: cap(self.first),
            second: self.second.map(cap),
            third: self.third.map(cap),
            agreement: self.agreement,
        }
    }

    fn reports(&self) -> impl Iterator<Item = AccountNonces> {
        let others = self.second.into_iter().chain(self.third);
        std::iter::once(self.first).chain(others)
    }

    fn merged(&self, choose: impl Fn(&mut dyn Iterator<Item = Nonce>) -> Nonce) -> AccountNonces {
        AccountNonces {
            latest: choose(&mut self.reports().map(|reported| reported.latest)),
            pending: choose(&mut self.reports().map(|reported| reported.pending)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nonces(latest: u64, pending: u64) -> AccountNonces {
        AccountNonces {
            latest: Nonce(latest),
            pending: Nonce(pending),
        }
    }

    #[test]
    fn two_of_three_endpoints_confirm_a_nonce() {
        let only = EndpointNonces::new(nonces(3, 4), None, Agreement::Quorum);
        assert_eq!(only.confirmed(), nonces(3, 4));
        let mut several = EndpointNonces::new(nonces(9, 9), Some(nonces(3, 5)), Agreement::Quorum);
        assert_eq!(several.confirmed(), nonces(3, 5));
        assert!(several.is_contradictory());
        several.third = Some(nonces(4, 4));
        assert_eq!(several.confirmed(), nonces(4, 5), "each for itself");
        assert_eq!(several.highest(), nonces(9, 9));
    }

    #[test]
    fn capped_report_does_not_exceed_what_is_confirmed() {
        let several = EndpointNonces::new(nonces(9, 9), Some(nonces(3, 5)), Agreement::Quorum);
        let capped = several.capped(several.confirmed());
        assert_eq!(
            (capped.first, capped.second),
            (nonces(3, 5), Some(nonces(3, 5)))
        );
        assert!(capped.is_complete());
    }

    #[test]
    fn one_endpoint_of_several_is_no_quorum() {
        let mut several = EndpointNonces::new(nonces(9, 9), Some(nonces(3, 5)), Agreement::Quorum);
        let honest = |reported: AccountNonces| reported.latest < Nonce(9);
        let left = several.retain(honest).expect("one is left");
        assert_eq!((left.first, left.second), (nonces(3, 5), None));
        assert!(!left.is_complete());
        several.third = Some(nonces(3, 3));
        let left = several.retain(honest).expect("two are left");
        assert!(left.is_complete());
        assert_eq!(several.retain(|_| false), None);
    }
}
