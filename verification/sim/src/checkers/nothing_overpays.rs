//! Nothing overpays: no attempt is ever signed that offers more than its request allows, and nothing without a limit of its
//! own, such as a no-op, offers more than the cap of fees or, as a bump, than the limit of replacements. Where the policy is
//! to send the same bytes, the fees of a payload are not raised once an endpoint has it.

use std::collections::{BTreeMap, BTreeSet};

use domain::lane::ResubmitPolicy;
use domain::{Attempt, AttemptKind, B256, LaneRules, Nonce, TxId};

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

pub struct NothingOverpays {
    rules: LaneRules,
    /// The most that is offered without a limit of the request.
    price_max: u128,
    /// The limits that requests named.
    limits: StoreModel<BTreeMap<TxId, u128>>,
    sent: StoreModel<SentAttempts>,
}

/// The attempts so far, and where an endpoint has one.
#[derive(Clone, Default)]
struct SentAttempts {
    /// Each attempt's place and gas.
    places: BTreeMap<B256, (Place, u64)>,
    accepted: BTreeSet<Place>,
    fillers: BTreeSet<TxId>,
}

type Place = (TxId, Nonce);

impl SentAttempts {
    fn add(&mut self, attempt: &Attempt) {
        let place = (attempt.tx_id, attempt.nonce);
        self.places.insert(attempt.hash, (place, attempt.gas));
        if attempt.kind == AttemptKind::Filler {
            self.fillers.insert(attempt.tx_id);
        }
    }

    /// Whether an endpoint has the payload with as much gas as this attempt has.
    fn is_held(&self, attempt: &Attempt) -> bool {
        let place = (attempt.tx_id, attempt.nonce);
        let mut before = self.places.values().filter(|(at, _)| *at == place);
        let has_more_gas = before.all(|(_, gas)| *gas < attempt.gas);
        let is_filler = self.fillers.contains(&attempt.tx_id);
        self.accepted.contains(&place) && !has_more_gas && !is_filler
    }
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
            sent: StoreModel::default(),
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
        let (tx, kind) = (attempt.tx_id, attempt.kind);
        let keeps_bytes = self.rules.resubmit.policy == ResubmitPolicy::Rebroadcast;
        if keeps_bytes && kind == AttemptKind::Bump && self.sent.is_held(attempt) {
            return Err(format!(
                "an endpoint has {tx}, and its fees are raised although the same bytes are to be sent"
            ));
        }
        let offered = attempt.fees.max_per_gas();
        if offered <= limit {
            return Ok(());
        }
        Err(format!(
            "{kind:?} of {tx} offers {offered} wei per gas, and {limit} is the most that it may"
        ))
    }

    fn bump_max(&self) -> u128 {
        match self.rules.resubmit.policy {
            ResubmitPolicy::Bump { max_fee, .. } => max_fee,
            ResubmitPolicy::Rebroadcast => u128::MAX,
        }
    }
}

impl Checker for NothingOverpays {
    fn name(&self) -> &'static str {
        Self::PROMISE
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.limits.follow(event);
        self.sent.follow(event);
        let Some((_, batch)) = applied(event) else {
            return Ok(());
        };
        let rows = batch.writes.inserts.iter().chain(&batch.writes.updates);
        let named = rows.filter_map(|tx| Some((tx.id, tx.request.payload.fee_limit()?)));
        self.limits.extend(named);
        for attempt in &batch.writes.attempts {
            self.check(attempt)?;
            self.sent.add(attempt);
        }
        for (hash, _) in &batch.writes.first_sent {
            let place = self.sent.places.get(hash).map(|(place, _)| *place);
            self.sent.accepted.extend(place);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use domain::{Fees, Timestamp};

    use super::super::test_events::{applied, attempt, lane, tx};
    use super::*;

    /// A tx with this limit signs an attempt; bumps may offer 50, and nothing more than 100.
    fn sign(limit: Option<u128>, kind: AttemptKind, offered: u128) -> Result<(), String> {
        let bump = ResubmitPolicy::Bump {
            percent: 10,
            max_fee: 50,
        };
        sign_under(bump, limit, kind, offered)
    }

    fn sign_under(
        policy: ResubmitPolicy,
        limit: Option<u128>,
        kind: AttemptKind,
        offered: u128,
    ) -> Result<(), String> {
        let mut rules = LaneRules::default();
        rules.resubmit.policy = policy;
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

    #[test]
    fn same_bytes_are_replaced_only_within_the_limits_and_while_no_endpoint_has_them() {
        let same = ResubmitPolicy::Rebroadcast;
        assert_eq!(sign_under(same, None, AttemptKind::Bump, 100), Ok(()));
        assert!(sign_under(same, None, AttemptKind::Bump, 101).is_err());
        assert!(sign_under(same, Some(7), AttemptKind::Bump, 8).is_err());

        let bump = |first: AttemptKind, is_accepted: bool, more_gas: u64| {
            let mut rules = LaneRules::default();
            rules.resubmit.policy = same;
            let mut checker = NothingOverpays::new(rules, 100);
            let first = Attempt {
                kind: first,
                ..attempt(1, 0)
            };
            let second = Attempt {
                kind: AttemptKind::Bump,
                hash: B256::repeat_byte(2),
                gas: first.gas + more_gas,
                ..first.clone()
            };
            let signed = checker.after(&applied(lane(1), |w| {
                w.first_sent
                    .extend(is_accepted.then_some((first.hash, Timestamp(1))));
                w.attempts = vec![first];
            }));
            assert_eq!(signed, Ok(()));
            checker.after(&applied(lane(1), |w| w.attempts = vec![second]))
        };
        assert!(bump(AttemptKind::Original, true, 0).is_err());
        assert_eq!(bump(AttemptKind::Original, false, 0), Ok(()));
        assert_eq!(bump(AttemptKind::Original, true, 1), Ok(()));
        assert_eq!(bump(AttemptKind::Filler, true, 0), Ok(()));
    }
}
