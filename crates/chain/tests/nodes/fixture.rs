//! A node, a chain adapter to it, and accounts that sign.

use std::time::Duration;

use alloy_consensus::TxEnvelope;
use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_eips::eip2718::Decodable2718 as _;
use alloy_primitives::U256;
use alloy_signer::SignerSync;
use alloy_signer_local::Secp256k1Signer;
use chain::envelope::Envelope;
use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use devchain::{DevChain, DevChainConfig, DevChainServer, Mining};
use domain::attempt::OutgoingEnvelope;
use domain::lane::{AccountNonces, ChainQuery};
use domain::{
    Address, AttemptKind, B256, Bytes, ChainId, Fees, Inclusion, Nonce, SendOutcome, TxId,
    UnsignedEnvelope,
};
use engine::ports::{Chain, Quorum};
use rig::evm::{CHAIN_ID, EvmNode, Kind, Options, Rpc, account};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) const GWEI: u128 = 1_000_000_000;
pub(crate) const BOB: Address = Address::repeat_byte(0xb0);
/// Every test that may leave a tx in the pool uses an account of its own.
const ACCOUNTS: u32 = 20;

/// The software of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeSoftware {
    Anvil,
    Hardhat,
    Ganache,
    DevChain,
}

pub(crate) struct NodeFixture {
    pub(crate) software: NodeSoftware,
    pub(crate) chain: RpcChain,
    pub(crate) rpc: Rpc,
    _node: Running,
}

/// Runs until it is dropped.
enum Running {
    Process { _node: Box<EvmNode> },
    InProcess { _server: DevChainServer },
}

impl NodeFixture {
    /// A node that mines on command only.
    pub(crate) async fn manual(software: NodeSoftware) -> Self {
        Self::start(software, rig::evm::Mining::Manual).await
    }

    /// A node that mines every tx at once.
    pub(crate) async fn instant(software: NodeSoftware) -> Self {
        Self::start(software, rig::evm::Mining::Instant).await
    }

    async fn start(software: NodeSoftware, mining: rig::evm::Mining) -> Self {
        let kind = match software {
            NodeSoftware::Anvil => Kind::Anvil,
            NodeSoftware::Hardhat => Kind::Hardhat,
            NodeSoftware::Ganache => Kind::Ganache,
            NodeSoftware::DevChain => return Self::start_devchain(mining).await,
        };
        let options = Options {
            mining,
            accounts: ACCOUNTS,
            ..Options::default()
        };
        let node = EvmNode::start(kind, options);
        let url = node.url().to_owned();
        let node = Box::new(node);
        Self::connect(software, &url, Running::Process { _node: node })
    }

    async fn start_devchain(mining: rig::evm::Mining) -> Self {
        let mining = match mining {
            rig::evm::Mining::Manual => Mining::Manual,
            rig::evm::Mining::Instant => Mining::Instant,
            rig::evm::Mining::Every(time) => Mining::Interval(time),
        };
        let config = DevChainConfig {
            mining,
            heartbeat: None,
            ..DevChainConfig::new(None)
        };
        let devchain = DevChain::open(config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = devchain.serve(listener).unwrap();
        let url = format!("http://{}", server.local_addr());
        Self::connect(
            NodeSoftware::DevChain,
            &url,
            Running::InProcess { _server: server },
        )
    }

    fn connect(software: NodeSoftware, url: &str, node: Running) -> Self {
        let endpoints = vec![EndpointUrl::parse(url).unwrap()];
        let mut config = RpcChainConfig::new(ChainId(CHAIN_ID), endpoints);
        // The dev chain has no subscriptions.
        if software != NodeSoftware::DevChain {
            let ws = url.replacen("http://", "ws://", 1);
            config.ws = Some(EndpointUrl::parse_ws(&ws).unwrap());
        }
        Self {
            software,
            chain: RpcChain::new(config).unwrap(),
            rpc: Rpc::at(url),
            _node: node,
        }
    }

    pub(crate) fn mine(&self) {
        self.rpc.call("evm_mine", json!([]));
    }

    /// A control call, by its name in this software.
    pub(crate) fn set(&self, what: &str, account: Address, value: Value) {
        let method = match self.software {
            NodeSoftware::Anvil | NodeSoftware::DevChain => format!("anvil_set{what}"),
            NodeSoftware::Hardhat => format!("hardhat_set{what}"),
            NodeSoftware::Ganache => format!("evm_setAccount{what}"),
        };
        self.rpc.call(&method, json!([account, value]));
    }

    pub(crate) async fn account_nonces(&self, account: Address) -> AccountNonces {
        let query = self
            .chain
            .account_nonces(account, ChainQuery::Pending, Quorum::Two);
        let nonces = query.await.unwrap();
        assert_eq!((nonces.second, nonces.is_complete()), (None, true));
        nonces.first
    }

    /// Signed transfers of one wei at the account's next nonces.
    pub(crate) async fn transfers(&self, index: u32, count: u64) -> Vec<OutgoingEnvelope> {
        let next = self.account_nonces(account(index).0).await.latest.0;
        let nonces = next..next + count;
        nonces.map(|nonce| sign(&transfer(index, nonce))).collect()
    }

    pub(crate) async fn send(&self, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
        let first = outgoing.first().expect("something is sent");
        let envelope = TxEnvelope::decode_2718(&mut first.raw.as_ref()).ok();
        let sender = envelope.and_then(|envelope| envelope.recover_signer().ok());
        let sender = sender.unwrap_or_default(); // some tests send what is no transaction
        let trust = || Duration::from_secs(20);
        self.chain.send(sender, outgoing, &trust).await
    }

    /// Sends one at the account's next nonce.
    pub(crate) async fn deploy(&self, index: u32, data: Bytes) -> OutgoingEnvelope {
        let nonce = self.account_nonces(account(index).0).await.latest.0;
        let deployment = UnsignedEnvelope {
            to: None,
            value: U256::ZERO,
            data,
            gas: 300_000,
            ..transfer(index, nonce)
        };
        let outgoing = sign(&deployment);
        let outcomes = self.send(std::slice::from_ref(&outgoing)).await;
        assert_eq!(outcomes, [SendOutcome::Accepted]);
        outgoing
    }

    pub(crate) async fn receipts(&self, outgoing: &[OutgoingEnvelope]) -> Vec<Inclusion> {
        let hashes: Vec<B256> = outgoing.iter().map(|item| item.hash).collect();
        self.chain.receipts(&hashes, Quorum::One).await.unwrap()
    }
}

/// One wei to Bob, from an account by its index in the mnemonic.
pub(crate) fn transfer(index: u32, nonce: u64) -> UnsignedEnvelope {
    UnsignedEnvelope {
        tx_id: TxId(Default::default()),
        kind: AttemptKind::Original,
        chain_id: ChainId(CHAIN_ID),
        signer: account(index).0,
        nonce: Nonce(nonce),
        to: Some(BOB),
        value: U256::ONE,
        data: Bytes::new(),
        gas: 21_000,
        fees: fees(10 * GWEI, GWEI),
    }
}

pub(crate) fn fees(max_fee: u128, max_priority_fee: u128) -> Fees {
    Fees::Eip1559 {
        max_fee,
        max_priority_fee,
    }
}

/// Signs with the key of the envelope's signer.
pub(crate) fn sign(unsigned: &UnsignedEnvelope) -> OutgoingEnvelope {
    let key = (0..ACCOUNTS)
        .map(account)
        .find(|(address, _)| *address == unsigned.signer)
        .map_or(UNFUNDED_KEY, |(_, key)| key);
    let signer = Secp256k1Signer::from_bytes(&key).unwrap();
    let envelope = Envelope::new(unsigned).unwrap();
    let signature = signer.sign_hash_sync(&envelope.signing_hash()).unwrap();
    let signed = envelope.seal(signature);
    OutgoingEnvelope {
        nonce: unsigned.nonce,
        hash: signed.hash,
        raw: signed.raw,
        others: Vec::new(),
        to_all: false,
    }
}

/// The key of an account without a balance.
const UNFUNDED_KEY: B256 = B256::repeat_byte(0x77);

pub(crate) fn unfunded_account() -> Address {
    Secp256k1Signer::from_bytes(&UNFUNDED_KEY)
        .unwrap()
        .address()
}
