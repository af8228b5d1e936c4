//! From stored rows to the JSON that wallets and libraries expect.

use alloy_consensus::transaction::Recovered;
use alloy_consensus::{
    Eip658Value, Header, Receipt, ReceiptEnvelope, Transaction as _, TxEnvelope,
};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{B256, U256};
use alloy_rpc_types_eth::{
    Block, BlockTransactions, Header as RpcHeader, Log, Transaction, TransactionReceipt,
};

use crate::error::StoreError;
use crate::store::{BlockRow, TxRow, View};
use crate::transaction::SignedTx;

pub(super) fn block(view: View<'_>, row: &BlockRow, full: bool) -> Result<Block, StoreError> {
    let transactions = if full {
        let txs = view.txs(row)?;
        let txs: Result<Vec<_>, _> = txs.iter().map(|tx| transaction(row, tx)).collect();
        BlockTransactions::Full(txs?)
    } else {
        BlockTransactions::Hashes(view.tx_hashes(row)?)
    };
    Ok(with_header(
        row.header.clone(),
        row.hash,
        row.size,
        transactions,
    ))
}

pub(super) fn with_header(
    header: Header,
    hash: B256,
    size: u64,
    transactions: BlockTransactions<Transaction>,
) -> Block {
    let header = RpcHeader {
        hash,
        inner: header,
        total_difficulty: Some(U256::ZERO),
        size: Some(U256::from(size)),
    };
    Block {
        header,
        uncles: Vec::new(),
        transactions,
        withdrawals: Some(Default::default()),
    }
}

/// A mined tx.
pub(super) fn transaction(block: &BlockRow, tx: &TxRow) -> Result<Transaction, StoreError> {
    let envelope = envelope(tx)?;
    Ok(Transaction {
        effective_gas_price: Some(envelope.effective_gas_price(block.header.base_fee_per_gas)),
        inner: Recovered::new_unchecked(envelope, tx.sender),
        block_hash: Some(block.hash),
        block_number: Some(block.header.number),
        transaction_index: Some(tx.index),
        block_timestamp: Some(block.header.timestamp),
    })
}

/// A tx that is in the pool.
pub(super) fn pending_transaction(tx: &SignedTx) -> Transaction {
    Transaction {
        inner: Recovered::new_unchecked(tx.envelope.clone(), tx.sender),
        block_hash: None,
        block_number: None,
        transaction_index: None,
        effective_gas_price: Some(tx.fee_cap()), // the most it may become, as geth has it
        block_timestamp: None,
    }
}

pub(super) fn receipt(block: &BlockRow, tx: &TxRow) -> Result<TransactionReceipt, StoreError> {
    let envelope = envelope(tx)?;
    let receipt = Receipt {
        status: Eip658Value::Eip658(tx.success),
        cumulative_gas_used: tx.cumulative_gas,
        logs: logs(block, tx).collect::<Vec<Log>>(),
    };
    let contract = envelope
        .is_create()
        .then(|| tx.sender.create(envelope.nonce()));
    Ok(TransactionReceipt {
        inner: ReceiptEnvelope::from_typed(envelope.tx_type(), receipt.with_bloom()),
        transaction_hash: tx.hash,
        transaction_index: Some(tx.index),
        block_hash: Some(block.hash),
        block_number: Some(block.header.number),
        gas_used: tx.gas_used,
        effective_gas_price: envelope.effective_gas_price(block.header.base_fee_per_gas),
        blob_gas_used: None,
        blob_gas_price: None,
        from: tx.sender,
        to: envelope.to(),
        contract_address: contract,
    })
}

/// The logs of one tx with their place in the chain.
pub(super) fn logs<'a>(block: &'a BlockRow, tx: &'a TxRow) -> impl Iterator<Item = Log> + 'a {
    (tx.first_log..).zip(&tx.logs).map(|(index, log)| Log {
        inner: log.clone(),
        block_hash: Some(block.hash),
        block_number: Some(block.header.number),
        block_timestamp: Some(block.header.timestamp),
        transaction_hash: Some(tx.hash),
        transaction_index: Some(tx.index),
        log_index: Some(index),
        removed: !block.canonical,
    })
}

pub(super) fn envelope(tx: &TxRow) -> Result<TxEnvelope, StoreError> {
    TxEnvelope::decode_2718_exact(&tx.raw)
        .ok()
        .ok_or(StoreError::damaged("a stored tx"))
}
