//! The key, and plain JSON-RPC to a node.

use std::fmt;
use std::time::{Duration, Instant};

use alloy_consensus::{SignableTransaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use alloy_signer::SignerSync as _;
use alloy_signer_local::PrivateKeySigner;
use reqwest::Client;
use serde_json::{Value, json};

use crate::Failure;

const TRANSFER_GAS: u64 = 21_000;
const TIP_WEI: u128 = 1_000_000_000;
/// How often the same bytes are sent when no answer comes.
const SENDS_MAX: usize = 20;
/// Deadline for the payments to be mined, and how often that is polled.
const MINED_WITHIN: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(200);

pub(crate) struct Wallet {
    key: PrivateKeySigner,
    http: Client,
    rpc: String,
    chain_id: u64,
    fee_wei: u128,
}

pub(crate) struct Signed {
    pub(crate) hash: B256,
    raw: Bytes,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The node answered with an error.
    Refused(String),
    /// No valid answer came: the call may have been executed.
    Lost(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Lost(why) => write!(f, "no answer: {why}"),
        }
    }
}

impl std::error::Error for CallError {}

impl Wallet {
    pub(crate) async fn open(rpc: &str, key: B256) -> Result<Self, Failure> {
        let mut wallet = Self {
            key: PrivateKeySigner::from_bytes(&key)?,
            http: Client::new(),
            rpc: rpc.to_owned(),
            chain_id: 0,
            fee_wei: 0,
        };
        wallet.chain_id = u64::try_from(wallet.query_number("eth_chainId").await?)?;
        let gas_price = u128::try_from(wallet.query_number("eth_gasPrice").await?)?;
        wallet.fee_wei = gas_price.saturating_mul(2).saturating_add(TIP_WEI);
        Ok(wallet)
    }

    pub(crate) fn address(&self) -> Address {
        self.key.address()
    }

    pub(crate) fn chain_id(&self) -> u64 {
        self.chain_id
    }

    /// One wei.
    pub(crate) fn sign(&self, nonce: u64, to: Address) -> Result<Signed, Failure> {
        let tx = TxEip1559 {
            chain_id: self.chain_id,
            nonce,
            gas_limit: TRANSFER_GAS,
            max_fee_per_gas: self.fee_wei,
            max_priority_fee_per_gas: TIP_WEI,
            to: TxKind::Call(to),
            value: U256::ONE,
            ..TxEip1559::default()
        };
        let signature = self.key.sign_hash_sync(&tx.signature_hash())?;
        let envelope: TxEnvelope = tx.into_signed(signature).into();
        Ok(Signed {
            hash: *envelope.tx_hash(),
            raw: envelope.encoded_2718().into(),
        })
    }

    /// Sends the bytes, and the same ones again while answers are lost: they may have arrived, and then the nonce is
    /// used in any case.
    pub(crate) async fn send(&self, signed: &Signed) -> Result<(), CallError> {
        let mut lost = None;
        for _ in 0..SENDS_MAX {
            let sent = self.call("eth_sendRawTransaction", json!([signed.raw]));
            match sent.await {
                Ok(_) => return Ok(()),
                Err(CallError::Lost(why)) => lost = Some(why),
                // A node refuses a transaction that it already has.
                Err(CallError::Refused(why)) => {
                    let has_it = lost.is_some() && self.knows_transaction(signed.hash).await?;
                    return if has_it {
                        Ok(())
                    } else {
                        Err(CallError::Refused(why))
                    };
                }
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        Err(CallError::Lost(lost.unwrap_or_default()))
    }

    async fn knows_transaction(&self, hash: B256) -> Result<bool, CallError> {
        let found = self.call("eth_getTransactionByHash", json!([hash])).await?;
        Ok(!found.is_null())
    }

    /// Waits until all are mined.
    pub(crate) async fn wait_until_mined(&self, hashes: &[B256]) -> Result<(), Failure> {
        let began = Instant::now();
        for hash in hashes {
            while self
                .call("eth_getTransactionReceipt", json!([hash]))
                .await?
                .is_null()
            {
                if began.elapsed() > MINED_WITHIN {
                    return Err(format!("{hash} is not mined after {MINED_WITHIN:?}").into());
                }
                tokio::time::sleep(POLL_EVERY).await;
            }
        }
        Ok(())
    }

    async fn query_number(&self, method: &str) -> Result<U256, Failure> {
        let answer = self.call(method, json!([])).await?;
        Ok(answer.as_str().ok_or("a number was expected")?.parse()?)
    }

    async fn call(&self, method: &str, params: Value) -> Result<Value, CallError> {
        let lost = |error: reqwest::Error| CallError::Lost(format!("{method}: {error}"));
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let sent = self.http.post(&self.rpc).json(&body).send().await;
        let answer: Value = sent.map_err(lost)?.json().await.map_err(lost)?;
        let error = answer.get("error").filter(|error| !error.is_null());
        match (error, answer.get("result")) {
            (Some(error), _) => Err(CallError::Refused(format!(
                "{method}: {}",
                error["message"]
            ))),
            (None, Some(result)) => Ok(result.clone()),
            (None, None) => Err(CallError::Lost(format!("{method}: {answer}"))),
        }
    }
}
