//! The stored numbers of enums.

use domain::{AttemptKind, SubState, TxState, TxType};

use super::Malformed;

pub(crate) fn state_number(state: TxState) -> i64 {
    match state {
        TxState::Created => 0,
        TxState::Allocated => 1,
        TxState::Tracking => 2,
        TxState::Confirmed => 3,
        TxState::FailedFinal => 4,
        TxState::Stuck => 5,
    }
}

pub(crate) fn state(number: i64) -> Result<TxState, Malformed> {
    let found = TxState::ALL
        .into_iter()
        .find(|state| state_number(*state) == number);
    found.ok_or(Malformed("state"))
}

pub(crate) fn sub_state_number(sub_state: SubState) -> i64 {
    match sub_state {
        SubState::Queued => 0,
        SubState::Waiting => 1,
        SubState::Signed => 2,
        SubState::Submitted => 3,
        SubState::Mined => 4,
        SubState::Reorged => 5,
        SubState::Rejected => 6,
        SubState::Reverted => 7,
        SubState::Underfunded => 8,
        SubState::Underpriced => 9,
        SubState::ForeignNonce => 10,
        SubState::Cancelled => 11,
        SubState::SigningFailed => 12,
        SubState::FeeCap => 13,
        SubState::DeepFork => 14,
        SubState::ForeignPending => 15,
        SubState::Refused => 16,
    }
}

pub(crate) fn sub_state(number: i64) -> Result<SubState, Malformed> {
    let found = SubState::ALL
        .into_iter()
        .find(|sub| sub_state_number(*sub) == number);
    found.ok_or(Malformed("sub-state"))
}

pub(crate) fn attempt_kind_number(kind: AttemptKind) -> i64 {
    match kind {
        AttemptKind::Original => 0,
        AttemptKind::Bump => 1,
        AttemptKind::Cancel => 2,
        AttemptKind::Replace => 3,
        AttemptKind::Filler => 4,
    }
}

pub(crate) fn attempt_kind(number: i64) -> Result<AttemptKind, Malformed> {
    let found = AttemptKind::ALL
        .into_iter()
        .find(|kind| attempt_kind_number(*kind) == number);
    found.ok_or(Malformed("kind of attempt"))
}

/// The envelope's type as EIP-2718 numbers it.
pub(crate) fn tx_type_number(tx_type: TxType) -> i64 {
    match tx_type {
        TxType::Legacy => 0,
        TxType::Eip1559 => 2,
    }
}

pub(crate) fn tx_type(number: i64) -> Result<TxType, Malformed> {
    match number {
        0 => Ok(TxType::Legacy),
        2 => Ok(TxType::Eip1559),
        _ => Err(Malformed("envelope type")),
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
