//! A received signed tx: decoded, its sender recovered, and every check that does not depend on the state.

use alloy_consensus::transaction::SignerRecoverable;
use alloy_consensus::{Transaction, TxEnvelope};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, U256};
use revm::context_interface::cfg::GasParams;

use crate::evm;
use crate::limits;
use crate::pool::Refusal;

pub(crate) struct SignedTx {
    pub(crate) hash: B256,
    pub(crate) sender: Address,
    pub(crate) envelope: TxEnvelope,
    /// Bytes on the wire.
    pub(crate) size: usize,
}

/// Decoded, without its sender. Recovery costs more than all other steps together, so a tx that the pool already has
/// is answered before it.
pub(crate) struct UnrecoveredTx {
    envelope: TxEnvelope,
    size: usize,
}

/// The chain's requirements for every tx.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxRules {
    pub(crate) chain_id: u64,
    pub(crate) block_gas_limit: u64,
    /// The lowest tip that the pool accepts.
    pub(crate) tip_min: u128,
}

impl UnrecoveredTx {
    /// Decodes an EIP-2718 envelope of a kind that this chain executes.
    pub(crate) fn decode(raw: &[u8]) -> Result<Self, Refusal> {
        match raw.first() {
            None => return Err(Refusal::Undecodable("typed transaction too short".into())),
            // geth decodes blob (3) and set-code (4) txs, but its pools refuse types that they do not hold.
            Some(&kind @ (3 | 4)) => return Err(Refusal::TypeNotPooled(kind)),
            Some(&kind) if kind > 4 && kind < 0xc0 => return Err(Refusal::TypeUnknown),
            Some(_) => {}
        }
        let envelope = TxEnvelope::decode_2718_exact(raw)
            .map_err(|error| Refusal::Undecodable(format!("rlp: {error}")))?;
        Ok(Self {
            envelope,
            size: raw.len(),
        })
    }

    pub(crate) fn hash(&self) -> B256 {
        *self.envelope.tx_hash()
    }

    /// The checks in geth's order, so that a tx with several faults gets geth's answer.
    pub(crate) fn recover(self, rules: &TxRules) -> Result<SignedTx, Refusal> {
        let Self { envelope: tx, size } = self;
        check_shape(&tx, size, rules)?;
        let sender = recover_sender(&tx, rules.chain_id)?;
        if tx.nonce() == u64::MAX {
            return Err(Refusal::NonceMax);
        }
        check_gas(&tx)?;
        let tip = tip_cap(&tx);
        if tip < rules.tip_min {
            return Err(Refusal::Underpriced {
                tip,
                needed: rules.tip_min,
            });
        }
        Ok(SignedTx {
            hash: *tx.tx_hash(),
            sender,
            envelope: tx,
            size,
        })
    }
}

impl SignedTx {
    /// A tx from the store, which was checked before.
    pub(crate) fn from_stored(raw: &[u8], sender: Address) -> Result<Self, Refusal> {
        let UnrecoveredTx { envelope, size } = UnrecoveredTx::decode(raw)?;
        Ok(Self {
            hash: *envelope.tx_hash(),
            sender,
            envelope,
            size,
        })
    }

    pub(crate) fn nonce(&self) -> u64 {
        self.envelope.nonce()
    }

    pub(crate) fn gas_limit(&self) -> u64 {
        self.envelope.gas_limit()
    }

    pub(crate) fn fee_cap(&self) -> u128 {
        self.envelope.max_fee_per_gas()
    }

    pub(crate) fn tip_cap(&self) -> u128 {
        tip_cap(&self.envelope)
    }

    /// The most that this tx can cost its sender. Saturates above any possible balance.
    pub(crate) fn cost(&self) -> U256 {
        let gas = U256::from(self.gas_limit()) * U256::from(self.fee_cap());
        gas.saturating_add(self.envelope.value())
    }
}

/// For a tx from before EIP-1559 the whole price counts as tip, as in geth.
fn tip_cap(tx: &TxEnvelope) -> u128 {
    tx.max_priority_fee_per_gas()
        .unwrap_or_else(|| tx.max_fee_per_gas())
}

fn check_shape(tx: &TxEnvelope, size: usize, rules: &TxRules) -> Result<(), Refusal> {
    if size > limits::TX_BYTES_MAX {
        return Err(Refusal::Oversized {
            size,
            limit: limits::TX_BYTES_MAX,
        });
    }
    let initcode_max = revm::primitives::eip3860::MAX_INITCODE_SIZE;
    if tx.is_create() && tx.input().len() > initcode_max {
        return Err(Refusal::InitcodeSize {
            size: tx.input().len(),
            limit: initcode_max,
        });
    }
    if tx.gas_limit() > limits::TX_GAS_MAX {
        return Err(Refusal::TxGasLimit {
            cap: limits::TX_GAS_MAX,
            gas: tx.gas_limit(),
        });
    }
    if tx.gas_limit() > rules.block_gas_limit {
        return Err(Refusal::BlockGasLimit);
    }
    if tip_cap(tx) > tx.max_fee_per_gas() {
        return Err(Refusal::TipAboveFeeCap);
    }
    Ok(())
}

fn recover_sender(tx: &TxEnvelope, chain_id: u64) -> Result<Address, Refusal> {
    match tx.chain_id() {
        Some(have) if have != chain_id => {
            return Err(Refusal::OtherChain {
                have,
                want: chain_id,
            });
        }
        Some(_) => {}
        None => return Err(Refusal::NotReplayProtected),
    }
    tx.recover_signer().ok().ok_or(Refusal::Signature)
}

fn check_gas(tx: &TxEnvelope) -> Result<(), Refusal> {
    let (accounts, slots) = tx.access_list().map_or((0, 0), |list| {
        let slots: usize = list.iter().map(|item| item.storage_keys.len()).sum();
        (list.len() as u64, slots as u64)
    });
    let params = GasParams::new_spec(evm::SPEC);
    let needed = params.initial_tx_gas(tx.input(), tx.is_create(), accounts, slots, 0, None);
    let gas = tx.gas_limit();
    if gas < needed.initial_regular_gas {
        return Err(Refusal::IntrinsicGas {
            gas,
            needed: needed.initial_regular_gas,
        });
    }
    if gas < needed.floor_gas {
        return Err(Refusal::FloorGas {
            gas,
            needed: needed.floor_gas,
        });
    }
    Ok(())
}
