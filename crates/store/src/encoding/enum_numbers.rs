//! The stored numbers of enums.

use domain::{AttemptKind, SubState, TxState, TxType};

use super::Malformed;

/// Both directions of one table.
macro_rules! stored_numbers {
    ($enum:ident, $to_number:ident, $from_number:ident, $what:literal {
        $($variant:ident = $number:literal,)*
    }) => {
        pub(crate) fn $to_number(value: $enum) -> u8 {
            match value {
                $($enum::$variant => $number,)*
            }
        }

        pub(crate) fn $from_number<N: Into<i64>>(number: N) -> Result<$enum, Malformed> {
            match number.into() {
                $($number => Ok($enum::$variant),)*
                _ => Err(Malformed($what)),
            }
        }
    };
}

stored_numbers! {
    TxState, state_number, state, "state" {
        Created = 0,
        Allocated = 1,
        Tracking = 2,
        Confirmed = 3,
        FailedFinal = 4,
        Stuck = 5,
    }
}

stored_numbers! {
    SubState, sub_state_number, sub_state, "sub-state" {
        Queued = 0,
        Waiting = 1,
        Signed = 2,
        Submitted = 3,
        Mined = 4,
        Reorged = 5,
        Rejected = 6,
        Reverted = 7,
        Underfunded = 8,
        Underpriced = 9,
        ForeignNonce = 10,
        Cancelled = 11,
        SigningFailed = 12,
        FeeCap = 13,
        DeepFork = 14,
        ForeignPending = 15,
        Refused = 16,
    }
}

stored_numbers! {
    AttemptKind, attempt_kind_number, attempt_kind, "kind of attempt" {
        Original = 0,
        Bump = 1,
        Cancel = 2,
        Replace = 3,
        Filler = 4,
    }
}

// As EIP-2718 numbers the envelopes.
stored_numbers! {
    TxType, tx_type_number, tx_type, "envelope type" {
        Legacy = 0,
        Eip1559 = 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_meaning() {
        for one in TxState::ALL {
            assert_eq!(state(state_number(one)), Ok(one));
        }
        for one in SubState::ALL {
            assert_eq!(sub_state(sub_state_number(one)), Ok(one));
        }
        for one in AttemptKind::ALL {
            assert_eq!(attempt_kind(attempt_kind_number(one)), Ok(one));
        }
        for one in [TxType::Legacy, TxType::Eip1559] {
            assert_eq!(tx_type(tx_type_number(one)), Ok(one));
        }
        assert_eq!(state(6), Err(Malformed("state")));
        assert_eq!(sub_state(17), Err(Malformed("sub-state")));
        assert_eq!(sub_state(-1), Err(Malformed("sub-state")));
    }
}
