//! An account whose key is held by clients: the cluster reserves nonces for them.

use std::time::Duration;

use alloy_primitives::Address;
use domain::LaneKey;
use domain::lane::reservations::ReservationRules;
use engine::node::ReservedAccounts;

use super::plan::CHAIN;
use crate::rng::Rng;

/// The account.
const ACCOUNT: Address = Address::repeat_byte(0x77);

/// How long an attempt that was sent at the last moment may take to be visible.
const GRACE: Duration = Duration::from_millis(1_500);

/// The settings that a seed decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationPlan {
    /// How long a nonce is reserved for a holder that sends no mark.
    pub timeout: Duration,
}

impl ReservationPlan {
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

    /// The configuration of the nodes.
    pub(super) fn reserved_accounts(self) -> ReservedAccounts {
        ReservedAccounts {
            accounts: vec![(ACCOUNT, Vec::new())],
            reservations: ReservationRules {
                timeout: self.timeout,
                grace: GRACE,
            },
        }
    }
}
