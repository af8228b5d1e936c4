//! The only user of revm's executor: the hard fork, the block environment, and the execution of signed txs and calls.

use alloy_consensus::{Header, Transaction, TxEnvelope, Typed2718};
use alloy_primitives::{Address, B256, U256, address, keccak256};
use revm::context::result::{EVMError, ExecutionResult, InvalidTransaction};
use revm::context::{BlockEnv, CfgEnv, Context, TxEnv};
use revm::context_interface::block::BlobExcessGasAndPrice;
use revm::database_interface::DatabaseCommit;
use revm::primitives::hardfork::SpecId;
use revm::{Database, ExecuteCommitEvm, ExecuteEvm, MainBuilder, MainContext, MainnetEvm};

use crate::error::StoreError;
use crate::transaction::SignedTx;

/// The newest rules in force on mainnet. System contracts (EIP-2935, EIP-4788) are not deployed
/// here, and there are no blobs, withdrawals or validators.
pub(crate) const SPEC: SpecId = SpecId::OSAKA;

/// Receives the tips.
pub(crate) const COINBASE: Address = address!("00000000000000000000000000000000000C0FFE");

pub(crate) type Failure = EVMError<StoreError, InvalidTransaction>;
type Evm<DB> = MainnetEvm<Context<BlockEnv, TxEnv, CfgEnv, DB>>;

/// The properties of a block that contract code can read.
#[derive(Clone, Debug)]
pub(crate) struct BlockContext {
    pub(crate) number: u64,
    pub(crate) timestamp: u64,
    pub(crate) gas_limit: u64,
    pub(crate) base_fee: u64,
    pub(crate) randao: B256,
}

impl BlockContext {
    /// The context of an existing block.
    pub(crate) fn from_header(header: &Header) -> Self {
        Self {
            number: header.number,
            timestamp: header.timestamp,
            gas_limit: header.gas_limit,
            base_fee: header.base_fee_per_gas.unwrap_or_default(),
            randao: header.mix_hash,
        }
    }

    fn env(&self) -> BlockEnv {
        BlockEnv {
            number: U256::from(self.number),
            beneficiary: COINBASE,
            timestamp: U256::from(self.timestamp),
            gas_limit: self.gas_limit,
            basefee: self.base_fee,
            prevrandao: Some(self.randao),
            blob_excess_gas_and_price: Some(BlobExcessGasAndPrice {
                excess_blob_gas: 0,
                blob_gasprice: 1,
            }),
            ..BlockEnv::default()
        }
    }
}

/// Deterministic, so that a block depends only on its parent and its txs.
pub(crate) fn randao_after(parent_hash: B256) -> B256 {
    keccak256(parent_hash)
}

/// Executes the txs of one block in order, each on the state after the previous one.
pub(crate) struct BlockExecutor<DB: Database> {
    evm: Evm<DB>,
}

impl<DB: Database<Error = StoreError> + DatabaseCommit> BlockExecutor<DB> {
    pub(crate) fn new(chain_id: u64, block: &BlockContext, database: DB) -> Self {
        let cfg = CfgEnv::new_with_spec(SPEC).with_chain_id(chain_id);
        let context = Context::mainnet()
            .with_db(database)
            .with_cfg(cfg)
            .with_block(block.env());
        Self {
            evm: context.build_mainnet(),
        }
    }

    /// An error leaves the state unchanged: the tx cannot be in this block.
    pub(crate) fn execute(&mut self, tx: &SignedTx) -> Result<ExecutionResult, Failure> {
        self.evm.transact_commit(tx_env(tx))
    }
}

/// Executes a message without signature, nonce or lasting effect.
pub(crate) fn call<DB: Database<Error = StoreError>>(
    chain_id: u64,
    block: &BlockContext,
    database: DB,
    message: TxEnv,
) -> Result<ExecutionResult, Failure> {
    let mut cfg = CfgEnv::new_with_spec(SPEC).with_chain_id(chain_id);
    cfg.disable_nonce_check = true;
    cfg.disable_eip3607 = true; // "from" may be a contract
    cfg.tx_gas_limit_cap = Some(u64::MAX); // a call is not a tx
    let mut env = block.env();
    if message.gas_price == 0 {
        env.basefee = 0; // a call without a price pays none, as in geth
    }
    let context = Context::mainnet()
        .with_db(database)
        .with_cfg(cfg)
        .with_block(env);
    Ok(context.build_mainnet().transact(message)?.result)
}

fn tx_env(tx: &SignedTx) -> TxEnv {
    let envelope: &TxEnvelope = &tx.envelope;
    TxEnv {
        tx_type: envelope.ty(),
        caller: tx.sender,
        gas_limit: envelope.gas_limit(),
        gas_price: envelope.max_fee_per_gas(),
        kind: envelope.kind(),
        value: envelope.value(),
        data: envelope.input().clone(),
        nonce: envelope.nonce(),
        chain_id: envelope.chain_id(),
        access_list: envelope.access_list().cloned().unwrap_or_default(),
        gas_priority_fee: envelope.max_priority_fee_per_gas(),
        blob_hashes: Vec::new(),
        max_fee_per_blob_gas: 0,
        authorization_list: Vec::new(),
    }
}
