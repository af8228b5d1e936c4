//! Builds a block: executes the txs, then seals the result with a real header.

use std::sync::Arc;

use alloy_consensus::constants::{EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH};
use alloy_consensus::proofs::{calculate_receipt_root, ordered_trie_root_with_encoder};
use alloy_consensus::{Eip658Value, Header, Receipt, ReceiptEnvelope};
use alloy_eips::eip1559::BaseFeeParams;
use alloy_eips::eip2718::Encodable2718;
use alloy_eips::eip7685::EMPTY_REQUESTS_HASH;
use alloy_primitives::{B256, Bloom, Bytes, map::AddressSet};
use alloy_rlp::Encodable;
use revm::context::result::EVMError;

use crate::error::StoreError;
use crate::evm::{self, BlockContext, BlockExecutor, COINBASE};
use crate::limits;
use crate::state::{Overlay, StateDiff, StateSource};
use crate::transaction::SignedTx;

/// A block before it is written.
pub(crate) struct SealedBlock {
    /// Counts all blocks ever made in this folder, replaced ones included.
    pub(crate) id: u64,
    pub(crate) hash: B256,
    pub(crate) header: Header,
    pub(crate) size: u64,
    pub(crate) txs: Vec<MinedTx>,
    pub(crate) changes: StateDiff,
    pub(crate) undo: StateDiff,
}

pub(crate) struct MinedTx {
    pub(crate) tx: Arc<SignedTx>,
    pub(crate) gas_used: u64,
    pub(crate) receipt: ReceiptEnvelope,
}

/// The parameters that are fixed before execution.
pub(crate) struct BlockPlan<'a> {
    pub(crate) id: u64,
    pub(crate) chain_id: u64,
    pub(crate) parent: &'a Header,
    pub(crate) parent_hash: B256,
    pub(crate) context: BlockContext,
}

/// A tx that cannot be in the block, and why.
pub(crate) struct ExcludedTx {
    pub(crate) tx: Arc<SignedTx>,
    pub(crate) reason: String,
}

/// The base fee of the block after `parent`, unless a control call overrides it.
pub(crate) fn next_base_fee(parent: &Header) -> u64 {
    let next = parent.next_block_base_fee(BaseFeeParams::ethereum());
    next.unwrap_or_default().min(limits::BASE_FEE_MAX)
}

/// Executes `txs` in the given order. Invalid ones are excluded and returned.
pub(crate) fn make_block(
    plan: &BlockPlan<'_>,
    txs: &[Arc<SignedTx>],
    state: impl StateSource,
) -> Result<(SealedBlock, Vec<ExcludedTx>), StoreError> {
    let mut overlay = Overlay::new(state);
    let mut executor = BlockExecutor::new(plan.chain_id, &plan.context, &mut overlay);
    let mut mined: Vec<MinedTx> = Vec::with_capacity(txs.len());
    let mut excluded = Vec::new();
    let mut stopped_senders = AddressSet::default();
    let mut gas_used: u64 = 0;
    for tx in txs {
        if stopped_senders.contains(&tx.sender) {
            continue; // its earlier nonce was excluded; the tx itself may be valid
        }
        if tx.gas_limit() > plan.context.gas_limit - gas_used {
            stopped_senders.insert(tx.sender);
            excluded.push(ExcludedTx {
                tx: tx.clone(),
                reason: "gas limit reached".to_owned(),
            });
            continue;
        }
        match executor.execute(tx) {
            Ok(result) => {
                gas_used += result.tx_gas_used();
                let gas = result.tx_gas_used();
                let receipt = Receipt {
                    status: Eip658Value::Eip658(result.is_success()),
                    cumulative_gas_used: gas_used,
                    // A failed execution discards its logs.
                    logs: if result.is_success() {
                        result.into_logs()
                    } else {
                        Vec::new()
                    },
                };
                let kind = tx.envelope.tx_type();
                let receipt = ReceiptEnvelope::from_typed(kind, receipt.with_bloom());
                mined.push(MinedTx {
                    tx: tx.clone(),
                    gas_used: gas,
                    receipt,
                });
            }
            Err(EVMError::Database(error)) => return Err(error),
            Err(
                error @ (EVMError::Transaction(_)
                | EVMError::Header(_)
                | EVMError::Custom(_)
                | EVMError::CustomAny(_)),
            ) => {
                stopped_senders.insert(tx.sender);
                excluded.push(ExcludedTx {
                    tx: tx.clone(),
                    reason: error.to_string(),
                });
            }
        }
    }
    let (changes, undo) = overlay.into_diffs();
    Ok((seal(plan, mined, gas_used, changes, undo), excluded))
}

fn seal(
    plan: &BlockPlan<'_>,
    txs: Vec<MinedTx>,
    gas_used: u64,
    changes: StateDiff,
    undo: StateDiff,
) -> SealedBlock {
    let encode = |mined: &MinedTx, out: &mut Vec<u8>| mined.tx.envelope.encode_2718(out);
    let receipts: Vec<&ReceiptEnvelope> = txs.iter().map(|mined| &mined.receipt).collect();
    let header = Header {
        state_root: changes.root_after(plan.parent.state_root),
        transactions_root: ordered_trie_root_with_encoder(&txs, encode),
        receipts_root: calculate_receipt_root(&receipts),
        logs_bloom: receipts
            .iter()
            .fold(Bloom::ZERO, |all, receipt| all | *receipt.logs_bloom()),
        gas_used,
        ..empty_header(plan.id, plan.parent_hash, &plan.context)
    };
    let body: usize = txs
        .iter()
        .map(|mined| mined.tx.envelope.network_len())
        .sum();
    SealedBlock {
        id: plan.id,
        hash: header.hash_slow(),
        size: (header.length() + body) as u64,
        header,
        txs,
        changes,
        undo,
    }
}

/// The first block of a new folder.
pub(crate) fn genesis(context: &BlockContext, changes: StateDiff) -> SealedBlock {
    let header = Header {
        state_root: changes.root_after(B256::ZERO),
        ..empty_header(0, B256::ZERO, context)
    };
    SealedBlock {
        id: 0,
        hash: header.hash_slow(),
        size: header.length() as u64,
        header,
        txs: Vec::new(),
        changes,
        undo: StateDiff::default(),
    }
}

fn empty_header(id: u64, parent_hash: B256, context: &BlockContext) -> Header {
    Header {
        parent_hash,
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: COINBASE,
        transactions_root: EMPTY_ROOT_HASH,
        receipts_root: EMPTY_ROOT_HASH,
        number: context.number,
        gas_limit: context.gas_limit,
        timestamp: context.timestamp,
        extra_data: extra_data(id),
        mix_hash: context.randao,
        base_fee_per_gas: Some(context.base_fee),
        withdrawals_root: Some(EMPTY_ROOT_HASH),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(B256::ZERO),
        requests_hash: Some(EMPTY_REQUESTS_HASH),
        ..Header::default()
    }
}

/// Makes every block's hash unique: a block that replaces another one at the same height, with the same txs in the
/// same second, has another hash.
fn extra_data(id: u64) -> Bytes {
    Bytes::from(format!("lanekeeper/{id}").into_bytes())
}

/// The context of the block after `parent`.
pub(crate) fn next_context(
    parent: &Header,
    parent_hash: B256,
    gas_limit: u64,
    base_fee: u64,
    now: u64,
) -> BlockContext {
    BlockContext {
        number: parent.number + 1,
        // Strictly increasing, also with several blocks per second.
        timestamp: now.max(parent.timestamp + 1),
        gas_limit,
        base_fee,
        randao: evm::randao_after(parent_hash),
    }
}
