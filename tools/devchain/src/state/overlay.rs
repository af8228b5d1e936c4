//! The reads and changes of an execution, on top of a source that it never writes to.

use alloy_primitives::{Address, B256, U256, map::AddressMap, map::HashMap};
use revm::state::{AccountInfo, Bytecode};
use revm::{Database, DatabaseCommit};

use super::{Account, StateDiff, StateSource};
use crate::error::StoreError;

pub(crate) struct Overlay<S> {
    source: S,
    accounts: HashMap<Address, Tracked<Option<Account>>>,
    slots: HashMap<(Address, U256), Tracked<U256>>,
    new_code: HashMap<B256, Bytecode>,
}

/// A value and its original in the source: a changed value is written, and the original is stored in the block's undo
/// record.
#[derive(Clone, Copy)]
struct Tracked<T> {
    before: T,
    now: T,
}

impl<T: Copy> Tracked<T> {
    fn unchanged(value: T) -> Self {
        Self {
            before: value,
            now: value,
        }
    }
}

impl<S: StateSource> Overlay<S> {
    pub(crate) fn new(source: S) -> Self {
        Self {
            source,
            accounts: HashMap::default(),
            slots: HashMap::default(),
            new_code: HashMap::default(),
        }
    }

    pub(crate) fn account(&mut self, address: Address) -> Result<Option<Account>, StoreError> {
        if let Some(tracked) = self.accounts.get(&address) {
            return Ok(tracked.now);
        }
        let account = self.source.account(address)?;
        self.accounts.insert(address, Tracked::unchanged(account));
        Ok(account)
    }

    /// The change to write, and the change that reverts it.
    pub(crate) fn into_diffs(self) -> (StateDiff, StateDiff) {
        let mut after = StateDiff::default();
        let mut undo = StateDiff::default();
        let changed = self
            .accounts
            .into_iter()
            .filter(|(_, value)| value.before != value.now);
        changed.for_each(|(address, value)| {
            after.accounts.insert(address, value.now);
            undo.accounts.insert(address, value.before);
        });
        let changed = self
            .slots
            .into_iter()
            .filter(|(_, value)| value.before != value.now);
        changed.for_each(|(key, value)| {
            after.slots.insert(key, value.now);
            undo.slots.insert(key, value.before);
        });
        after.code = self
            .new_code
            .into_iter()
            .map(|(hash, code)| (hash, code.original_bytes()))
            .collect();
        (after, undo)
    }

    fn put_account(&mut self, address: Address, account: Option<Account>) {
        self.accounts
            .entry(address)
            .and_modify(|tracked| tracked.now = account)
            // revm loads every account before it changes it, so this is a new one.
            .or_insert(Tracked {
                before: None,
                now: account,
            });
    }

    fn put_slot(&mut self, address: Address, key: U256, value: U256) {
        self.slots
            .entry((address, key))
            .and_modify(|tracked| tracked.now = value)
            // Only the slots of a contract created in this tx are written without being read.
            .or_insert(Tracked {
                before: U256::ZERO,
                now: value,
            });
    }
}

impl<S: StateSource> Database for Overlay<S> {
    type Error = StoreError;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, StoreError> {
        Ok(self.account(address)?.map(|account| AccountInfo {
            balance: account.balance,
            nonce: account.nonce,
            code_hash: account.code_hash,
            account_id: None,
            // `None` makes revm load the code by hash when it needs it.
            code: (!account.has_code()).then(Bytecode::default),
        }))
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, StoreError> {
        match self.new_code.get(&hash) {
            Some(code) => Ok(code.clone()),
            None => self.source.code(hash),
        }
    }

    fn storage(&mut self, address: Address, key: U256) -> Result<U256, StoreError> {
        if let Some(tracked) = self.slots.get(&(address, key)) {
            return Ok(tracked.now);
        }
        let value = self.source.slot(address, key)?;
        self.slots.insert((address, key), Tracked::unchanged(value));
        Ok(value)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, StoreError> {
        self.source.block_hash(number)
    }
}

impl<S: StateSource> DatabaseCommit for Overlay<S> {
    fn commit(&mut self, changes: AddressMap<revm::state::Account>) {
        let touched = changes
            .into_iter()
            .filter(|(_, changed)| changed.is_touched());
        touched.for_each(|(address, changed)| self.commit_account(address, changed));
    }
}

impl<S: StateSource> Overlay<S> {
    fn commit_account(&mut self, address: Address, changed: revm::state::Account) {
        // Since Cancun only a contract created in this very tx can be destroyed, and such a one
        // has no storage in the tables: not taking over its changes is enough.
        if changed.is_selfdestructed() {
            return self.put_account(address, None);
        }
        let account = Account {
            nonce: changed.info.nonce,
            balance: changed.info.balance,
            code_hash: changed.info.code_hash,
        };
        if changed.is_created()
            && account.has_code()
            && let Some(code) = changed.info.code
        {
            self.new_code.insert(account.code_hash, code);
        }
        self.put_account(address, (!account.is_empty()).then_some(account));
        let changed_slots = changed
            .storage
            .into_iter()
            .filter(|(_, slot)| slot.is_changed());
        changed_slots.for_each(|(key, slot)| self.put_slot(address, key, slot.present_value()));
    }
}
