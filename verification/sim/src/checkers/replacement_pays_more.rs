//! A replacement pays more: a bump offers at least 10 % more than every earlier attempt at its nonce, in
//! both fee fields, or endpoints refuse it. One with more gas may offer the same: endpoints refused what had less.

use std::collections::BTreeMap;

use domain::fee::REPLACEMENT_PERCENT_MIN;
use domain::{Attempt, AttemptKind, Fees, Nonce, TxId};

use super::store_model::StoreModel;
use super::{Checker, applied};
use crate::event::WorldEvent;

#[derive(Default)]
pub struct ReplacementPaysMore {
    offered: StoreModel<BTreeMap<(TxId, Nonce), Offer>>,
}

/// The most of each that attempts at one nonce have so far.
#[derive(Clone, Copy, Default)]
struct Offer {
    fees: (u128, u128),
    gas: u64,
}

impl ReplacementPaysMore {
    fn signed(&mut self, attempt: &Attempt) -> Result<(), String> {
        let offer = offer(attempt.fees);
        let place = (attempt.tx_id, attempt.nonce);
        let best = self.offered.entry(place).or_default();
        let Offer { fees: before, gas } = *best;
        best.fees = (before.0.max(offer.0), before.1.max(offer.1));
        best.gas = gas.max(attempt.gas);
        let has_more_gas = attempt.gas > gas && offer == before;
        let rises = |new: u128, old: u128| {
            let least = old.saturating_mul(100 + REPLACEMENT_PERCENT_MIN);
            new > old && new.saturating_mul(100) >= least
        };
        if attempt.kind != AttemptKind::Bump
            || has_more_gas
            || (rises(offer.0, before.0) && rises(offer.1, before.1))
        {
            return Ok(());
        }
        let (tx, nonce) = place;
        Err(format!(
            "a bump of {tx} at nonce {nonce} offers {offer:?} after {before:?}"
        ))
    }
}

impl Checker for ReplacementPaysMore {
    fn name(&self) -> &'static str {
        "a replacement pays more"
    }

    fn after(&mut self, event: &WorldEvent) -> Result<(), String> {
        self.offered.follow(event);
        let Some((_, batch)) = applied(event) else {
            return Ok(());
        };
        let attempts = batch.writes.attempts.iter();
        let signed: Vec<_> = attempts.map(|attempt| self.signed(attempt)).collect();
        signed.into_iter().collect()
    }
}

/// The maximum price of one unit of gas, and the tip in it.
fn offer(fees: Fees) -> (u128, u128) {
    match fees {
        Fees::Legacy { gas_price } => (gas_price, gas_price),
        Fees::Eip1559 {
            max_fee,
            max_priority_fee,
        } => (max_fee, max_priority_fee),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_events::{applied, attempt, lane};
    use super::*;

    #[test]
    fn both_fee_fields_must_rise_by_ten_percent() {
        let made = |kind, gas, (max_fee, max_priority_fee)| {
            let attempt = Attempt {
                kind,
                gas,
                fees: Fees::Eip1559 {
                    max_fee,
                    max_priority_fee,
                },
                ..attempt(1, 0)
            };
            applied(lane(1), |w| w.attempts = vec![attempt])
        };
        let run = |gas, fees| {
            let mut checker = ReplacementPaysMore::default();
            let original = made(AttemptKind::Original, 21_000, (100, 10));
            assert_eq!(checker.after(&original), Ok(()));
            checker.after(&made(AttemptKind::Bump, gas, fees))
        };
        assert_eq!(run(21_000, (110, 11)), Ok(()));
        assert!(run(21_000, (109, 11)).is_err());
        assert!(run(21_000, (200, 10)).is_err());
        assert_eq!(run(42_000, (100, 10)), Ok(()));
        assert!(run(42_000, (101, 10)).is_err());
    }
}
