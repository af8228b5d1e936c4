//! What the open txs of a lane can cost at most: a running sum, kept in the lane row, because txs that wait in the store
//! are not in memory.
//!
//! Invariant: the cost of a tx follows from its row and its attempts alone, so that what was added when the tx came is
//! what is subtracted when it ends, by whichever keeper.

use alloy_primitives::U256;

use super::reservations::RESERVATION_PREFIX;
use super::unrecorded::UNRECORDED_PREFIX;
use crate::{Attempt, AttemptKind, FeeQuote, FeeRules, Payload, Tx};

/// More than any account has. One tx counts for no more, so that a sum of them cannot overflow.
const TX_COST_MAX: U256 = U256::from_limbs([0, 0, 0, 1]);

/// The most that open txs can cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCost {
    /// In wei: values, and gas at the price that was signed or that the request names.
    pub wei: U256,
    /// The gas that will be signed at the price of its time.
    pub unpriced_gas: u128,
}

impl OpenCost {
    /// Of a request with this gas limit, as long as it is not signed.
    #[must_use]
    pub fn unsigned(payload: &Payload, gas: u64) -> Self {
        let limit = payload.fee_limit();
        // A tip that the request names alone comes on top of what the chain's price is.
        let named = limit.or(payload.max_priority_fee_per_gas).unwrap_or(0);
        Self {
            wei: total(payload.value, gas, named),
            unpriced_gas: match limit {
                Some(_) => 0,
                None => gas.into(),
            },
        }
    }

    /// Of a tx with these attempts; those at a nonce that it has no more do not count. A reservation costs nothing here:
    /// its holder pays. Nor does a transaction that is mined and was not recorded.
    #[must_use]
    pub fn of_tx(tx: &Tx, attempts: &[Attempt]) -> Self {
        let id = tx.request.request_id.as_str();
        if id.starts_with(RESERVATION_PREFIX) || id.starts_with(UNRECORDED_PREFIX) {
            return Self::default();
        }
        let current = attempts.iter().filter(|one| Some(one.nonce) == tx.nonce);
        let costs = current.map(|attempt| {
            let value = match attempt.kind {
                AttemptKind::Cancel => U256::ZERO,
                AttemptKind::Original
                | AttemptKind::Bump
                | AttemptKind::Replace
                | AttemptKind::Filler => tx.request.payload.value,
            };
            total(value, attempt.gas, attempt.fees.max_per_gas())
        });
        match costs.max() {
            Some(wei) => Self {
                wei,
                unpriced_gas: 0,
            },
            None => Self::unsigned(&tx.request.payload, tx.request.gas),
        }
    }

    /// Together with another one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            wei: self.wei.saturating_add(other.wei),
            unpriced_gas: self.unpriced_gas.saturating_add(other.unpriced_gas),
        }
    }

    /// Without a part of it.
    #[must_use]
    pub fn minus(self, part: Self) -> Self {
        Self {
            wei: self.wei.saturating_sub(part.wei),
            unpriced_gas: self.unpriced_gas.saturating_sub(part.unpriced_gas),
        }
    }

    /// In wei, where gas that is not signed yet is signed at the chain's present price.
    #[must_use]
    pub fn at(self, rules: &FeeRules, quote: FeeQuote) -> U256 {
        let price = rules.fees(&Payload::default(), quote).max_per_gas();
        let gas = U256::from(self.unpriced_gas).saturating_mul(U256::from(price));
        self.wei.saturating_add(gas)
    }
}

/// The most that a transaction can cost.
pub(crate) fn total(value: U256, gas: u64, per_gas: u128) -> U256 {
    let fee = U256::from(gas).saturating_mul(U256::from(per_gas));
    value.saturating_add(fee).min(TX_COST_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lane::tests::{START, request};
    use crate::{B256, Bytes, Fees, Nonce, Token};

    const QUOTE: FeeQuote = FeeQuote {
        base_fee: Some(10),
        tip: 3,
        block_gas_limit: None,
        no_op_gas: None,
        has_data_floor: false,
        recent_max: None,
    };

    fn attempt(tx: &Tx, nonce: u64, kind: AttemptKind, gas_price: u128) -> Attempt {
        Attempt {
            hash: B256::ZERO,
            tx_id: tx.id,
            kind,
            nonce: Nonce(nonce),
            gas: 100,
            fees: Fees::Legacy { gas_price },
            raw: Bytes::from_static(b"signed"),
            signed_at: START,
            first_sent_at: None,
        }
    }

    #[test]
    fn unsigned_cost_follows_the_limit_or_the_present_price() {
        let mut payload = Payload::transfer(crate::Address::ZERO, U256::from(7));
        let cost = |payload: &Payload| OpenCost::unsigned(payload, 100).at(&FeeRules::OPEN, QUOTE);
        assert_eq!(cost(&payload), U256::from(7 + 100 * 23));
        payload.max_priority_fee_per_gas = Some(5);
        assert_eq!(cost(&payload), U256::from(7 + 100 * 28), "at least");
        payload.max_fee_per_gas = Some(50);
        assert_eq!(cost(&payload), U256::from(7 + 100 * 50));
    }

    #[test]
    fn signed_cost_is_that_of_the_dearest_attempt_at_the_present_nonce() {
        let mut tx = Tx::created(request(1), Token(1), START);
        tx.request.payload.value = U256::from(7);
        tx.nonce = Some(Nonce(4));
        let attempts = [
            attempt(&tx, 3, AttemptKind::Original, 900),
            attempt(&tx, 4, AttemptKind::Original, 20),
            attempt(&tx, 4, AttemptKind::Cancel, 21),
        ];
        let cost = OpenCost::of_tx(&tx, &attempts);
        assert_eq!((cost.wei, cost.unpriced_gas), (U256::from(2_100), 0));
        tx.nonce = None;
        let (payload, gas) = (&tx.request.payload, tx.request.gas);
        let unsigned = OpenCost::unsigned(payload, gas);
        assert_eq!(OpenCost::of_tx(&tx, &attempts), unsigned);
    }

    proptest! {
        #[test]
        fn sum_is_exact_whatever_a_request_asks_for(
            values in proptest::collection::vec((any::<[u64; 4]>(), any::<u64>(), any::<Option<u128>>()), 1..20),
        ) {
            let costs: Vec<OpenCost> = values.into_iter().map(|(value, gas, limit)| {
                let mut payload = Payload::transfer(crate::Address::ZERO, U256::from_limbs(value));
                payload.max_fee_per_gas = limit;
                OpenCost::unsigned(&payload, gas)
            }).collect();
            let sum = costs.iter().fold(OpenCost::default(), |sum, cost| sum.plus(*cost));
            let rest = costs.iter().skip(1).fold(sum, |sum, cost| sum.minus(*cost));
            prop_assert_eq!(rest, costs[0]);
        }
    }
}
