//! The encoding of accounts and undo records. Fixed layouts, big endian, in address order.

use alloy_primitives::{Address, B256, KECCAK256_EMPTY, U256};

use crate::error::StoreError;
use crate::state::{Account, StateDiff};

const ACCOUNT_PLAIN: usize = 8 + 32;
const ACCOUNT_WITH_CODE: usize = ACCOUNT_PLAIN + 32;

/// nonce, balance and, for a contract, the hash of its code.
pub(super) fn put_account(account: &Account, out: &mut Vec<u8>) {
    out.extend_from_slice(&account.nonce.to_be_bytes());
    out.extend_from_slice(&account.balance.to_be_bytes::<32>());
    if account.has_code() {
        out.extend_from_slice(account.code_hash.as_slice());
    }
}

pub(super) fn get_account(bytes: &[u8]) -> Result<Account, StoreError> {
    let mut input = Input(bytes);
    let nonce = u64::from_be_bytes(input.read_array()?);
    let balance = U256::from_be_bytes(input.read_array::<32>()?);
    let code_hash = if input.0.is_empty() {
        KECCAK256_EMPTY
    } else {
        B256::from(input.read_array()?)
    };
    if !input.0.is_empty() {
        return Err(StoreError::damaged("account record"));
    }
    Ok(Account {
        nonce,
        balance,
        code_hash,
    })
}

/// The number of accounts, then for each its address, the length of its record (0 when it did not
/// exist) and the record; the rest is slots: address, key, value.
pub(super) fn put_undo(undo: &StateDiff) -> Vec<u8> {
    let accounts = undo.accounts.len() * (20 + 1 + ACCOUNT_PLAIN);
    let mut out = Vec::with_capacity(8 + accounts + undo.slots.len() * (20 + 32 + 32));
    out.extend_from_slice(&(undo.accounts.len() as u64).to_be_bytes());
    for (address, account) in &undo.accounts {
        out.extend_from_slice(address.as_slice());
        let length_at = out.len();
        out.push(0);
        if let Some(account) = account {
            put_account(account, &mut out);
            let length = out.len() - length_at - 1;
            out[length_at] = u8::try_from(length).expect("an account record has at most 72 bytes");
        }
    }
    for ((address, key), value) in &undo.slots {
        out.extend_from_slice(address.as_slice());
        out.extend_from_slice(&key.to_be_bytes::<32>());
        out.extend_from_slice(&value.to_be_bytes::<32>());
    }
    out
}

pub(super) fn get_undo(bytes: &[u8]) -> Result<StateDiff, StoreError> {
    let mut input = Input(bytes);
    let mut undo = StateDiff::default();
    for _ in 0..u64::from_be_bytes(input.read_array()?) {
        let address = Address::from(input.read_array()?);
        let [length] = input.read_array()?;
        let account = match length {
            0 => None,
            length => Some(get_account(input.read_slice(length.into())?)?),
        };
        undo.accounts.insert(address, account);
    }
    while !input.0.is_empty() {
        let address = Address::from(input.read_array()?);
        let key = U256::from_be_bytes(input.read_array::<32>()?);
        let value = U256::from_be_bytes(input.read_array::<32>()?);
        undo.slots.insert((address, key), value);
    }
    Ok(undo)
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(too_short)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn read_slice(&mut self, length: usize) -> Result<&'a [u8], StoreError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(too_short)?;
        self.0 = rest;
        Ok(bytes)
    }
}

fn too_short() -> StoreError {
    StoreError::damaged("record too short")
}

const _: () = assert!(
    ACCOUNT_WITH_CODE <= u8::MAX as usize,
    "a record's length is one byte"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undo_record_survives_the_round_trip() {
        let contract = Account {
            nonce: 1,
            balance: U256::MAX,
            code_hash: B256::repeat_byte(7),
        };
        let plain = Account {
            nonce: u64::MAX,
            ..Account::default()
        };
        let mut undo = StateDiff::default();
        undo.accounts
            .insert(Address::repeat_byte(1), Some(contract));
        undo.accounts.insert(Address::repeat_byte(2), None);
        undo.accounts.insert(Address::repeat_byte(3), Some(plain));
        undo.slots
            .insert((Address::repeat_byte(1), U256::from(5)), U256::from(6));
        let bytes = put_undo(&undo);
        assert_eq!(get_undo(&bytes).expect("own bytes"), undo);
        assert!(get_undo(&bytes[..bytes.len() - 1]).is_err());
    }
}
