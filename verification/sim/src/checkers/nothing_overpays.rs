//! Nothing overpays: no attempt is ever signed that offers more than its request allows, and nothing without a limit of its
//! own, such as a no-op, offers more than the cap of fees or, as a bump, than the limit of replacements.

use std::collections::BTreeMap;

use domain::lane::ResubmitPolicy;
use domain::{Attempt, AttemptKind, LaneRules, TxId};

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

pub struct NothingOverpays {
    rules: LaneRules,
    /// The most that is offered without a limit of the request.
    price_max: u128,
    /// The limits that requests named.
    limits: StoreModel<BTreeMap<TxId, u128>>,
}

impl NothingOverpays {
    pub(super) const PROMISE: &'static str = "nothing overpays";

    /// In a world with these rules, where nothing is worth more than `price_max` wei per gas.
    #[must_use]
    pub fn new(rules: LaneRules, price_max: u128) -> Self {
        Self {
            rules,
            price_max,
            limits: StoreModel::default(),
        }
    }

    fn check(&self, attempt: &Attempt) -> Result<(), String> {
        let own = self.limits.get(&attempt.tx_id).copied();
        let limit = match attempt.kind {
            AttemptKind::Original | AttemptKind::Replace => own.unwrap_or(self.price_max),
            AttemptKind::Bump => own.unwrap_or(self.price_max).min(self.bump_max()),
            // The limit was meant for the payload, not for a no-op.
            AttemptKind::Cancel | AttemptKind::Filler => self.price_max,
        };
        let offered = attempt.fees.max_per_gas();
        if offered <= limit {
            return Ok(());
        }
        let (tx, kind) = (attempt.tx_id, attempt.kind);
        Err(format!(
            "{kind:?} of {tx} offers {offered} wei per gas, and {limit} is the most that it may"
        ))
    }

    fn bump_max(&self) -> u128 {
        match self.rules.resubmit.policy {
            ResubmitPolicy::Bump { max_fee, .. } => max_fee,
            ResubmitPolicy::Rebroadcast => 0,
        }
    }
}

impl Checker for NothingOverpays {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.limits.follow(event);
        let Some((_, batch)) = applied(event) else {
            return Ok(());
        };
        let rows = batch.writes.inserts.iter().chain(&batch.writes.updates);
        let named = rows.filter_map(|tx| Some((tx.id, tx.request.payload.fee_limit()?)));
        self.limits.extend(named);
        let mut attempts = batch.writes.attempts.iter();
        attempts.try_for_each(|attempt| self.check(attempt))
    }
}

#[cfg(test)]
mod tests {
    use domain::Fees;

    use super::super::test_events::{applied, attempt, lane, tx};
    use super::*;

    /// A tx with this limit signs an attempt; bumps may offer 50, and nothing more than 100.
    fn sign(limit: Option<u128>, kind: AttemptKind, offered: u128) -> Result<(), String> {
        let mut rules = LaneRules::default();
        rules.resubmit.policy = ResubmitPolicy::Bump {
            percent: 10,
            max_fee: 50,
        };
        let mut checker = NothingOverpays::new(rules, 100);
        let mut row = tx(1, Some(0));
        row.request.payload.max_fee_per_gas = limit;
        let attempt = Attempt {
            kind,
            fees: Fees::Legacy { gas_price: offered },
            ..attempt(1, 0)
        };
        checker.after(&applied(lane(1), |w| {
            w.inserts = vec![row];
            w.attempts = vec![attempt];
        }))
    }

    #[test]
    fn payload_is_limited_by_its_request_and_others_by_the_caps() {
        assert_eq!(sign(Some(7), AttemptKind::Original, 7), Ok(()));
        assert!(sign(Some(7), AttemptKind::Original, 8).is_err());
        assert_eq!(sign(Some(300), AttemptKind::Original, 300), Ok(()));
        assert_eq!(sign(None, AttemptKind::Original, 100), Ok(()));
        assert!(sign(None, AttemptKind::Original, 101).is_err());
        assert_eq!(sign(None, AttemptKind::Bump, 50), Ok(()));
        assert!(sign(None, AttemptKind::Bump, 51).is_err());
        assert!(sign(Some(7), AttemptKind::Bump, 8).is_err());
        assert_eq!(sign(Some(7), AttemptKind::Cancel, 100), Ok(()));
        assert!(sign(Some(300), AttemptKind::Cancel, 101).is_err());
    }
}
