//! A served chain, a JSON-RPC client and a wallet.

use std::sync::Once;
use std::time::{Duration, Instant};

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex};
use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use devchain::{DEV_CHAIN_ID, DevChain, DevChainConfig, DevChainServer, Mining, dev_accounts};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) const GWEI: u128 = 1_000_000_000;
pub(crate) const BOB: Address = Address::repeat_byte(0xb0);
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A JSON-RPC error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RpcRefusal {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) data: Option<String>,
}

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) url: String,
    http: reqwest::Client,
}

impl Client {
    pub(crate) fn new(url: String) -> Self {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // Another test binary's provider would do as well.
            rustls::crypto::ring::default_provider()
                .install_default()
                .ok();
        });
        Self {
            url,
            http: reqwest::Client::new(),
        }
    }

    pub(crate) async fn post(&self, content_type: &str, body: String) -> (u16, String) {
        let request = self
            .http
            .post(&self.url)
            .header("content-type", content_type)
            .body(body);
        let response = request.send().await.expect("the chain answers");
        (
            response.status().as_u16(),
            response.text().await.expect("a body"),
        )
    }

    pub(crate) async fn post_json(&self, body: &Value) -> Value {
        let (status, text) = self.post("application/json", body.to_string()).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    pub(crate) async fn try_call(&self, method: &str, params: Value) -> Result<Value, RpcRefusal> {
        let request = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let answer = self.post_json(&request).await;
        assert_eq!(answer["id"], 7);
        outcome(answer)
    }

    pub(crate) async fn call(&self, method: &str, params: Value) -> Value {
        self.try_call(method, params)
            .await
            .unwrap_or_else(|error| panic!("{method}: {error:?}"))
    }

    pub(crate) async fn number(&self, method: &str, params: Value) -> u64 {
        quantity(&self.call(method, params).await).to()
    }

    pub(crate) async fn send(&self, tx: &Signed) -> Result<Value, RpcRefusal> {
        self.try_call("eth_sendRawTransaction", json!([tx.raw]))
            .await
    }

    /// Sends a tx that the pool must accept.
    pub(crate) async fn submit(&self, tx: &Signed) {
        assert_eq!(self.send(tx).await.expect("accepted"), json!(tx.hash));
    }

    pub(crate) async fn height(&self) -> u64 {
        self.number("eth_blockNumber", json!([])).await
    }

    pub(crate) async fn balance(&self, address: Address) -> U256 {
        quantity(
            &self
                .call("eth_getBalance", json!([address, "latest"]))
                .await,
        )
    }

    pub(crate) async fn nonce(&self, address: Address, tag: &str) -> u64 {
        self.number("eth_getTransactionCount", json!([address, tag]))
            .await
    }

    pub(crate) async fn block(&self, tag: impl Into<Value>) -> Value {
        self.call("eth_getBlockByNumber", json!([tag.into(), false]))
            .await
    }

    pub(crate) async fn receipt(&self, hash: B256) -> Option<Value> {
        let receipt = self.call("eth_getTransactionReceipt", json!([hash])).await;
        (!receipt.is_null()).then_some(receipt)
    }

    pub(crate) async fn wait_for_receipt(&self, tx: &Signed) -> Value {
        wait_for("the receipt", async || self.receipt(tx.hash).await).await
    }

    pub(crate) async fn mine(&self) {
        self.call("evm_mine", json!([])).await;
    }
}

pub(crate) fn outcome(answer: Value) -> Result<Value, RpcRefusal> {
    let error = &answer["error"];
    if error.is_null() {
        return Ok(answer["result"].clone());
    }
    Err(RpcRefusal {
        code: error["code"].as_i64().expect("a code"),
        message: error["message"].as_str().expect("a message").to_owned(),
        data: error["data"].as_str().map(str::to_owned),
    })
}

pub(crate) fn refused(message: &str) -> RpcRefusal {
    RpcRefusal {
        code: -32000,
        message: message.to_owned(),
        data: None,
    }
}

pub(crate) fn quantity(value: &Value) -> U256 {
    value
        .as_str()
        .expect("a hex quantity")
        .parse()
        .expect("a hex quantity")
}

/// Repeats the query until it returns a value; panics after [`WAIT_MAX`].
pub(crate) async fn wait_for<T>(what: &str, mut query: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = query().await {
            return answer;
        }
        assert!(started.elapsed() < WAIT_MAX, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A chain in this process.
pub(crate) struct Chain {
    pub(crate) client: Client,
    devchain: DevChain,
    served: DevChainServer,
}

impl Chain {
    pub(crate) async fn start(config: DevChainConfig) -> Self {
        let devchain = DevChain::open(config).expect("opens");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let served = devchain.serve(listener).expect("serves");
        let client = Client::new(format!("http://{}", served.local_addr()));
        Self {
            client,
            devchain,
            served,
        }
    }

    pub(crate) async fn instant() -> Self {
        Self::start(config(Mining::Instant)).await
    }

    pub(crate) async fn manual() -> Self {
        Self::start(config(Mining::Manual)).await
    }

    /// Stops the server and unlocks the folder.
    pub(crate) async fn stop(self) {
        self.served.shutdown().await;
        drop(self.devchain);
    }
}

impl std::ops::Deref for Chain {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// A temporary chain without a heartbeat: only the test makes blocks happen.
pub(crate) fn config(mining: Mining) -> DevChainConfig {
    DevChainConfig {
        mining,
        heartbeat: None,
        ..DevChainConfig::new(None)
    }
}

pub(crate) struct Signed {
    pub(crate) hash: B256,
    pub(crate) raw: String,
}

impl Signed {
    fn new(envelope: &TxEnvelope) -> Self {
        Self {
            hash: *envelope.tx_hash(),
            raw: hex::encode_prefixed(envelope.encoded_2718()),
        }
    }
}

/// One of the well-known accounts.
pub(crate) struct Wallet {
    signer: PrivateKeySigner,
}

impl Wallet {
    pub(crate) fn dev(index: usize) -> Self {
        let key = dev_accounts(u32::try_from(index).expect("a small index") + 1)[index].1;
        Self::new(key)
    }

    pub(crate) fn new(key: B256) -> Self {
        Self {
            signer: PrivateKeySigner::from_bytes(&key).expect("a key"),
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.signer.address()
    }

    /// Any kind of tx.
    pub(crate) fn sign<T>(&self, tx: T) -> Signed
    where
        T: SignableTransaction<Signature>,
        TxEnvelope: From<alloy_consensus::Signed<T>>,
    {
        let signature = self
            .signer
            .sign_hash_sync(&tx.signature_hash())
            .expect("signs");
        Signed::new(&tx.into_signed(signature).into())
    }

    /// One wei to Bob.
    pub(crate) fn transfer(&self, nonce: u64) -> Signed {
        self.sign(transfer(nonce))
    }
}

/// A transfer whose fees are sufficient by default.
pub(crate) fn transfer(nonce: u64) -> TxEip1559 {
    TxEip1559 {
        chain_id: DEV_CHAIN_ID,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 10 * GWEI,
        max_priority_fee_per_gas: GWEI,
        to: TxKind::Call(BOB),
        value: U256::ONE,
        ..TxEip1559::default()
    }
}

pub(crate) fn deployment(nonce: u64, initcode: Bytes) -> TxEip1559 {
    TxEip1559 {
        gas_limit: 1_000_000,
        to: TxKind::Create,
        value: U256::ZERO,
        input: initcode,
        ..transfer(nonce)
    }
}

pub(crate) fn message(nonce: u64, to: Address, input: impl Into<Bytes>) -> TxEip1559 {
    TxEip1559 {
        gas_limit: 200_000,
        to: TxKind::Call(to),
        value: U256::ZERO,
        input: input.into(),
        ..transfer(nonce)
    }
}
