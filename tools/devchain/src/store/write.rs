//! Writing blocks. Every function works inside the transaction that its caller has opened, so
//! that a block, its txs, its state and its undo record appear together or not at all.

use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::B256;
use rusqlite::{Connection, params};

use super::{codec, read::View, to_sql};
use crate::block::SealedBlock;
use crate::error::StoreError;
use crate::limits::{TX_INDEX_BITS, UNDO_BLOCKS};
use crate::state::StateDiff;

/// A block on top of the canonical chain, with its txs, the state after it and the way back.
pub(crate) fn insert_block(connection: &Connection, block: &SealedBlock) -> Result<(), StoreError> {
    insert_header(connection, block)?;
    insert_txs(connection, block)?;
    write_state(connection, &block.changes)?;
    connection
        .prepare_cached("INSERT INTO undo (number, data) VALUES (?1, ?2)")?
        .execute(params![
            to_sql(block.header.number),
            codec::put_undo(&block.undo)
        ])?;
    Ok(())
}

/// The first block: nothing lies before it, so it has no undo record.
pub(crate) fn insert_genesis(
    connection: &Connection,
    block: &SealedBlock,
) -> Result<(), StoreError> {
    insert_header(connection, block)?;
    write_state(connection, &block.changes)
}

fn insert_header(connection: &Connection, block: &SealedBlock) -> Result<(), StoreError> {
    let log_count: usize = block
        .txs
        .iter()
        .map(|mined| mined.receipt.logs().len())
        .sum();
    connection
        .prepare_cached(
            "INSERT INTO block (id, number, hash, canonical, header, size, log_count)
             VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6)",
        )?
        .execute(params![
            to_sql(block.id),
            to_sql(block.header.number),
            block.hash.as_slice(),
            alloy_rlp::encode(&block.header),
            to_sql(block.size),
            to_sql(log_count as u64),
        ])?;
    Ok(())
}

fn insert_txs(connection: &Connection, block: &SealedBlock) -> Result<(), StoreError> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO tx (id, hash, sender, raw, success, gas_used, cumulative_gas, first_log, logs)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    let mut raw = Vec::new();
    let mut first_log: u64 = 0;
    for (index, mined) in (0u64..).zip(&block.txs) {
        raw.clear();
        mined.tx.envelope.encode_2718(&mut raw);
        let logs = mined.receipt.logs();
        statement.execute(params![
            to_sql((block.id << TX_INDEX_BITS) | index),
            mined.tx.hash.as_slice(),
            mined.tx.sender.as_slice(),
            raw,
            mined.receipt.status(),
            to_sql(mined.gas_used),
            to_sql(mined.receipt.cumulative_gas_used()),
            to_sql(first_log),
            (!logs.is_empty()).then(|| encode_logs(logs)),
        ])?;
        first_log += logs.len() as u64;
    }
    Ok(())
}

fn encode_logs(logs: &[alloy_primitives::Log]) -> Vec<u8> {
    let mut out = Vec::new();
    alloy_rlp::encode_list(logs, &mut out);
    out
}

/// Puts new values into the state tables.
pub(crate) fn write_state(connection: &Connection, diff: &StateDiff) -> Result<(), StoreError> {
    let mut put =
        connection.prepare_cached("REPLACE INTO account (address, data) VALUES (?1, ?2)")?;
    let mut delete = connection.prepare_cached("DELETE FROM account WHERE address = ?1")?;
    let mut data = Vec::new();
    for (address, account) in &diff.accounts {
        match account {
            Some(account) => {
                data.clear();
                codec::put_account(account, &mut data);
                put.execute(params![address.as_slice(), data])?;
            }
            None => {
                delete.execute([address.as_slice()])?;
            }
        }
    }
    let mut put =
        connection.prepare_cached("REPLACE INTO slot (address, key, value) VALUES (?1, ?2, ?3)")?;
    let mut delete =
        connection.prepare_cached("DELETE FROM slot WHERE address = ?1 AND key = ?2")?;
    for ((address, key), value) in &diff.slots {
        let key = key.to_be_bytes::<32>();
        if value.is_zero() {
            delete.execute(params![address.as_slice(), key])?;
        } else {
            put.execute(params![address.as_slice(), key, value.to_be_bytes::<32>()])?;
        }
    }
    let mut put = connection.prepare_cached("INSERT OR IGNORE INTO code VALUES (?1, ?2)")?;
    for (hash, code) in &diff.code {
        put.execute(params![hash.as_slice(), code.as_ref()])?;
    }
    Ok(())
}

/// Removes a block from the canonical chain. Its rows stay; its undo record is used up.
pub(crate) fn orphan_block(
    connection: &Connection,
    number: u64,
    hash: B256,
) -> Result<(), StoreError> {
    let mut orphan = connection.prepare_cached("UPDATE block SET canonical = 0 WHERE hash = ?1")?;
    let changed = orphan.execute([hash.as_slice()])?;
    assert_eq!(changed, 1, "block {hash} was read in this transaction");
    connection
        .prepare_cached("DELETE FROM undo WHERE number = ?1")?
        .execute([to_sql(number)])?;
    Ok(())
}

/// Deletes the undo records of blocks that are too deep for a reorg.
pub(crate) fn prune_undo(connection: &Connection, head: u64) -> Result<(), StoreError> {
    if let Some(too_deep) = head.checked_sub(UNDO_BLOCKS) {
        connection
            .prepare_cached("DELETE FROM undo WHERE number <= ?1")?
            .execute([to_sql(too_deep)])?;
    }
    Ok(())
}

/// Records the values that a control call is about to overwrite as if the head block overwrote them: a reorg of that
/// block then reverts the call as well. Values that the block itself overwrote are older and stay.
pub(crate) fn amend_head_undo(
    connection: &Connection,
    head: u64,
    old: &StateDiff,
) -> Result<(), StoreError> {
    let Some(mut undo) = View::new(connection).undo(head)? else {
        return Ok(()); // the genesis block, or one too deep: it cannot be removed
    };
    for (address, account) in &old.accounts {
        undo.accounts.entry(*address).or_insert(*account);
    }
    connection
        .prepare_cached("UPDATE undo SET data = ?2 WHERE number = ?1")?
        .execute(params![to_sql(head), codec::put_undo(&undo)])?;
    Ok(())
}
