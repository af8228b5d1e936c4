//! Columns that every backend reads alike.

use domain::{Address, B256};

use super::{Malformed, widen};

/// The columns of a tx, in the order in which the backends read them, of a table that is called `tx`.
macro_rules! tx_columns {
    () => {
        "tx.lane_id, tx.state, tx.tx_id, tx.nonce, tx.sub_state, tx.token, tx.created_at, \
         tx.updated_at, tx.confirmed_at, tx.request_id, tx.fingerprint, tx.tx_hash, tx.counted, \
         tx.event_seqs, tx.reason, tx.inclusion, tx.gas, tx.to_address, tx.value, tx.requested_gas, \
         tx.max_fee, tx.max_priority_fee, tx.gas_price, tx.tx_type, tx.data, tx.resubmits"
    };
}
pub(crate) use tx_columns;

pub(crate) fn hash(bytes: &[u8]) -> Result<B256, Malformed> {
    B256::try_from(bytes).map_err(|_wrong_length| Malformed("hash"))
}

pub(crate) fn address(bytes: &[u8]) -> Result<Address, Malformed> {
    Address::try_from(bytes).map_err(|_wrong_length| Malformed("address"))
}

pub(crate) fn wei(bytes: &[u8]) -> Result<u128, Malformed> {
    Ok(u128::from_be_bytes(widen(bytes, "amount")?))
}

pub(crate) fn gas(bytes: &[u8]) -> Result<u64, Malformed> {
    Ok(u64::from_be_bytes(widen(bytes, "gas")?))
}
