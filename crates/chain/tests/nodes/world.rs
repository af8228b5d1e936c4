//! A node that mines on command, a port to it, and accounts that sign.

use alloy_primitives::U256;
use alloy_signer::SignerSync;
use alloy_signer_local::Secp256k1Signer;
use chain::devchain::{DevChain, DevChainConfig, Mining, Served};
use chain::envelope::Envelope;
use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
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
/// Every test that may leave something in the pool uses an account of its own.
const ACCOUNTS: u32 = 20;

/// Whose node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Anvil,
    Hardhat,
    Ganache,
    DevChain,
}

pub(crate) struct World {
    pub(crate) make: Make,
    pub(crate) chain: RpcChain,
    pub(crate) rpc: Rpc,
    _node: Running,
}

/// Runs until it is dropped.
enum Running {
    Process { _node: Box<EvmNode> },
    Here { _served: Served },
}

impl World {
    /// A node that makes a block only when it is told to.
    pub(crate) async fn manual(make: Make) -> Self {
        Self::start(make, rig::evm::Mining::Manual).await
    }

    /// A node that makes a block for every transaction.
    pub(crate) async fn instant(make: Make) -> Self {
        Self::start(make, rig::evm::Mining::Instant).await
    }

    async fn start(make: Make, mining: rig::evm::Mining) -> Self {
        let kind = match make {
            Make::Anvil => Kind::Anvil,
            Make::Hardhat => Kind::Hardhat,
            Make::Ganache => Kind::Ganache,
            Make::DevChain => return Self::here(mining).await,
        };
        let options = Options {
            mining,
            accounts: ACCOUNTS,
            ..Options::default()
        };
        let node = EvmNode::start(kind, options);
        let url = node.url().to_owned();
        let node = Box::new(node);
        Self::at(make, &url, Running::Process { _node: node })
    }

    async fn here(mining: rig::evm::Mining) -> Self {
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
        let served = devchain.serve(listener).unwrap();
        let url = format!("http://{}", served.local_addr());
        Self::at(Make::DevChain, &url, Running::Here { _served: served })
    }

    fn at(make: Make, url: &str, node: Running) -> Self {
        let endpoints = vec![EndpointUrl::parse(url).unwrap()];
        let mut config = RpcChainConfig::new(ChainId(CHAIN_ID), endpoints);
        // The dev chain is asked only.
        if make != Make::DevChain {
            let ws = url.replacen("http://", "ws://", 1);
            config.ws = Some(EndpointUrl::parse_ws(&ws).unwrap());
        }
        Self {
            make,
            chain: RpcChain::new(config).unwrap(),
            rpc: Rpc::at(url),
            _node: node,
        }
    }

    pub(crate) fn mine(&self) {
        self.rpc.call("evm_mine", json!([]));
    }

    /// A control call under the name that this make has for it.
    pub(crate) fn set(&self, what: &str, account: Address, value: Value) {
        let method = match self.make {
            Make::Anvil | Make::DevChain => format!("anvil_set{what}"),
            Make::Hardhat => format!("hardhat_set{what}"),
            Make::Ganache => format!("evm_setAccount{what}"),
        };
        self.rpc.call(&method, json!([account, value]));
    }

    pub(crate) async fn account_nonces(&self, account: Address) -> AccountNonces {
        let asked = self
            .chain
            .account_nonces(account, ChainQuery::Pending, Quorum::Two);
        let nonces = asked.await.unwrap();
        assert_eq!((nonces.second, nonces.is_complete), (None, true));
        nonces.first
    }

    /// Signed transfers of one wei at the account's next nonces.
    pub(crate) async fn transfers(&self, index: u32, count: u64) -> Vec<OutgoingEnvelope> {
        let next = self.account_nonces(account(index).0).await.latest.0;
        let nonces = next..next + count;
        nonces.map(|nonce| sign(&transfer(index, nonce))).collect()
    }

    pub(crate) async fn send(&self, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
        self.chain.send(outgoing).await
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

/// One wei to Bob, from an account by its place in the mnemonic's.
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

/// Signed by the account that it names.
pub(crate) fn sign(unsigned: &UnsignedEnvelope) -> OutgoingEnvelope {
    let key = (0..ACCOUNTS)
        .map(account)
        .find(|(address, _)| *address == unsigned.signer)
        .map_or(POOR_KEY, |(_, key)| key);
    let signer = Secp256k1Signer::from_bytes(&key).unwrap();
    let envelope = Envelope::new(unsigned).unwrap();
    let signature = signer.sign_hash_sync(&envelope.signing_hash()).unwrap();
    let signed = envelope.seal(signature);
    OutgoingEnvelope {
        nonce: unsigned.nonce,
        hash: signed.hash,
        raw: signed.raw,
        others: Vec::new(),
    }
}

/// The key of an account that nobody gave anything.
const POOR_KEY: B256 = B256::repeat_byte(0x77);

pub(crate) fn poor() -> Address {
    Secp256k1Signer::from_bytes(&POOR_KEY).unwrap().address()
}
