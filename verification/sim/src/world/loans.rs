//! An account whose key is elsewhere: its nonces are lent.

use std::time::Duration;

use alloy_primitives::Address;
use domain::LaneKey;
use domain::lane::reserve::ReservationRules;
use engine::node::ReservedAccounts;

use super::plan::CHAIN;
use crate::rng::Rng;

/// The account.
const ACCOUNT: Address = Address::repeat_byte(0x77);

/// How long what was sent at the last moment may need to be seen.
const GRACE: Duration = Duration::from_millis(1_500);

/// What a seed decides about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loans {
    /// For how long a nonce is lent to somebody who says nothing.
    pub timeout: Duration,
}

impl Loans {
    pub(super) fn new(rng: &Rng) -> Self {
        Self {
            timeout: rng.millis(5_000, 40_000),
        }
    }

    /// Its lane.
    #[must_use]
    pub fn lane(self) -> LaneKey {
        LaneKey {
            chain_id: CHAIN,
            signer: ACCOUNT,
        }
    }

    /// What a node is told of it.
    pub(super) fn lent(self) -> ReservedAccounts {
        ReservedAccounts {
            accounts: vec![(ACCOUNT, Vec::new())],
            reservations: ReservationRules {
                timeout: self.timeout,
                grace: GRACE,
            },
        }
    }
}
