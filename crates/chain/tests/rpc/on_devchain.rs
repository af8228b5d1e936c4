//! The complete chain port against a real node: the dev chain, over HTTP, with signing keys.

use std::time::Duration;

use chain::keys::{self, KeySource, LocalSigner};
use chain::rpc::{EndpointUrl, RpcChain};
use devchain::{DevChain, DevChainConfig, DevChainServer, Mining, dev_accounts};
use domain::attempt::OutgoingEnvelope;
use domain::lane::{AccountNonces, ChainQuery, NonceConsumer};
use domain::{
    Address, Attempt, AttemptKind, B256, Bytes, ChainId, Fees, Inclusion, Nonce, SendOutcome,
    Timestamp, TxId, U256, UnsignedEnvelope,
};
use engine::ports::{BlockTag, CallError, CallRequest, Chain, Quorum, Signer};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::fake_node::{CHAIN, chain_of};

const GWEI: u128 = 1_000_000_000;
/// Init code that reverts with the custom error 0xdeadbeef.
const REVERTING: [u8; 16] = [
    0x63, 0xde, 0xad, 0xbe, 0xef, 0x60, 0xe0, 0x1b, 0x60, 0x00, 0x52, 0x60, 0x04, 0x60, 0x00, 0xfd,
];

/// A dev chain, an adapter to it, and one funded account.
struct DevChainFixture {
    chain: RpcChain,
    signer: LocalSigner,
    account: Address,
    url: String,
    _server: DevChainServer,
}

impl DevChainFixture {
    async fn start(mining: Mining) -> Self {
        let config = DevChainConfig {
            mining,
            heartbeat: None,
            ..DevChainConfig::new(None)
        };
        let devchain = DevChain::open(config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = devchain.serve(listener).unwrap();
        let url = format!("http://{}", server.local_addr());
        let (account, key) = dev_accounts(1)[0];
        Self {
            chain: chain_of(vec![EndpointUrl::parse(&url).unwrap()]),
            signer: keys::load(vec![KeySource::Inline(key.to_string()).into()]).unwrap(),
            account,
            url,
            _server: server,
        }
    }

    fn transfer(&self, nonce: u64, max_fee: u128) -> UnsignedEnvelope {
        UnsignedEnvelope {
            tx_id: TxId(Default::default()),
            kind: AttemptKind::Original,
            chain_id: CHAIN,
            signer: self.account,
            nonce: Nonce(nonce),
            to: Some(Address::repeat_byte(7)),
            value: U256::from(1),
            data: Bytes::new(),
            gas: 21_000,
            fees: Fees::Eip1559 {
                max_fee,
                max_priority_fee: GWEI,
            },
        }
    }

    async fn sign(&self, envelopes: Vec<UnsignedEnvelope>) -> Vec<Attempt> {
        let signed = self.signer.sign(envelopes, Timestamp(0)).await;
        signed.into_iter().collect::<Result<_, _>>().unwrap()
    }

    async fn send(&self, attempts: &[Attempt]) -> Vec<SendOutcome> {
        self.send_with_others(attempts, &[]).await
    }

    /// Sends attempts that have other attempts at the same nonce.
    async fn send_with_others(&self, attempts: &[Attempt], others: &[B256]) -> Vec<SendOutcome> {
        let outgoing: Vec<OutgoingEnvelope> = attempts
            .iter()
            .map(|attempt| OutgoingEnvelope {
                nonce: attempt.nonce,
                hash: attempt.hash,
                raw: attempt.raw.clone(),
                others: others.to_vec(),
                to_all: false,
            })
            .collect();
        let trust = || Duration::from_secs(20);
        self.chain.send(self.account, &outgoing, &trust).await
    }

    async fn account_nonces(&self, query: ChainQuery) -> AccountNonces {
        let nonces = self
            .chain
            .account_nonces(self.account, query, Quorum::Two)
            .await;
        let nonces = nonces.unwrap();
        assert_eq!((nonces.second, nonces.is_complete()), (None, true));
        nonces.first
    }

    /// Calls a method that the port does not have.
    async fn control(&self, method: &str) -> Value {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": [] });
        let answer = reqwest::Client::new()
            .post(&self.url)
            .json(&body)
            .send()
            .await
            .unwrap();
        answer.json().await.unwrap()
    }

    /// Polls until all of these are mined.
    async fn wait_for_receipts(&self, hashes: &[B256]) -> Vec<Inclusion> {
        let poll = async {
            loop {
                let found = self.chain.receipts(hashes, Quorum::One).await.unwrap();
                if found.len() == hashes.len() {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), poll)
            .await
            .expect("mined in time")
    }
}

#[tokio::test]
async fn fresh_chain_is_read() {
    let fixture = DevChainFixture::start(Mining::Instant).await;
    let DevChainFixture { chain, account, .. } = &fixture;
    assert!(!chain.endpoints()[0].1, "not queried yet");
    assert_eq!(
        chain
            .header(BlockTag::Latest)
            .await
            .unwrap()
            .unwrap()
            .number,
        0
    );
    assert!(chain.endpoints()[0].1);
    let nonces = fixture.account_nonces(ChainQuery::Pending).await;
    assert_eq!((nonces.latest, nonces.pending), (Nonce(0), Nonce(0)));

    let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
    let quote = chain.fee_quote(&head).await.unwrap();
    assert!(quote.base_fee.unwrap() > 0 && quote.tip > 0, "{quote:?}");
    let call = CallRequest {
        from: *account,
        to: Some(Address::repeat_byte(7)),
        value: U256::from(1),
        data: Bytes::new(),
        gas_max: None,
    };
    assert_eq!(chain.estimate_gas(&call).await, Ok(21_000));
}

#[tokio::test]
async fn balance_and_nonce_are_of_one_block() {
    let fixture = DevChainFixture::start(Mining::Instant).await;
    let DevChainFixture { chain, account, .. } = &fixture;
    let before = chain
        .account_balance(*account, 0, Quorum::One)
        .await
        .unwrap();
    assert_eq!((before.block, before.nonce), (0, Nonce(0)));
    let attempts = fixture.sign(vec![fixture.transfer(0, 10 * GWEI)]).await;
    fixture.send(&attempts).await;
    let mined = fixture.wait_for_receipts(&[attempts[0].hash]).await;
    let after = chain
        .account_balance(*account, 1, Quorum::One)
        .await
        .unwrap();
    let (gas, price) = (mined[0].gas_used, mined[0].effective_gas_price);
    let paid = U256::from(gas) * U256::from(price) + U256::from(1);
    assert_eq!(
        (after.nonce, after.balance),
        (Nonce(1), before.balance - paid)
    );
    let ahead = chain
        .account_balance(*account, after.block + 100, Quorum::One)
        .await;
    assert!(ahead.is_err(), "{ahead:?}");
}

#[tokio::test]
async fn many_transfers_are_read_from_their_blocks() {
    let fixture = DevChainFixture::start(Mining::Instant).await;
    let DevChainFixture { chain, account, .. } = &fixture;
    let count = 120;
    let attempts = fixture
        .sign((0..count).map(|n| fixture.transfer(n, 10 * GWEI)).collect())
        .await;
    assert!(
        fixture
            .send(&attempts)
            .await
            .iter()
            .all(|outcome| *outcome == SendOutcome::Accepted)
    );
    let hashes: Vec<B256> = attempts.iter().map(|attempt| attempt.hash).collect();
    let inclusions = fixture.wait_for_receipts(&hashes).await;
    assert!(
        inclusions
            .iter()
            .all(|inclusion| inclusion.succeeded && inclusion.gas_used == 21_000)
    );

    let nonces = fixture.account_nonces(ChainQuery::Latest).await;
    assert_eq!(
        (nonces.latest, nonces.pending),
        (Nonce(count), Nonce(count))
    );
    let head = chain.header(BlockTag::Latest).await.unwrap().unwrap();
    let headers = chain.headers(0, head.number + 5).await.unwrap();
    assert_eq!(headers.last(), Some(&head));
    assert!(
        headers
            .windows(2)
            .all(|pair| pair[1].parent_hash == pair[0].hash)
    );
    assert_eq!(
        chain.header(BlockTag::Number(head.number)).await.unwrap(),
        Some(head)
    );
    assert_eq!(
        chain.header(BlockTag::Hash(head.hash)).await.unwrap(),
        Some(head)
    );
    assert_eq!(
        chain
            .header(BlockTag::Hash(B256::repeat_byte(9)))
            .await
            .unwrap(),
        None
    );

    let mut from_blocks = Vec::new();
    for header in &headers {
        let receipts = chain.block_receipts(header.hash, &|_| true).await;
        from_blocks.extend(receipts.unwrap().unwrap());
    }
    assert_eq!(from_blocks, inclusions);
    let unknown = chain.block_receipts(B256::repeat_byte(9), &|_| true);
    assert_eq!(unknown.await.unwrap(), None);
    assert_eq!(
        fixture.send(&attempts[..1]).await,
        [SendOutcome::Accepted],
        "mined long ago, but it is this one"
    );
    let too_late = fixture.sign(vec![fixture.transfer(0, 11 * GWEI)]).await;
    assert_eq!(fixture.send(&too_late).await, [SendOutcome::NonceTooLow]);
    for (nonce, hash) in [(0, hashes[0]), (77, hashes[77]), (119, hashes[119])] {
        let found = chain.find_consumer(*account, Nonce(nonce), head).await;
        assert_eq!(found.map(NonceConsumer::hash), Ok(Some(hash)));
    }
    let unused = chain.find_consumer(*account, Nonce(count), head).await;
    assert_eq!(unused, Ok(NonceConsumer::NotConsumed));
}

#[tokio::test]
async fn pending_and_mined_txs_are_distinguished() {
    let fixture = DevChainFixture::start(Mining::Manual).await;
    let attempts = fixture
        .sign((0..3).map(|n| fixture.transfer(n, 10 * GWEI)).collect())
        .await;
    assert_eq!(
        fixture.send(&attempts).await,
        vec![SendOutcome::Accepted; 3]
    );
    assert_eq!(
        fixture.send(&attempts).await,
        vec![SendOutcome::Accepted; 3],
        "already known"
    );
    let nonces = fixture.account_nonces(ChainQuery::Pending).await;
    assert_eq!((nonces.latest, nonces.pending), (Nonce(0), Nonce(3)));
    let hashes: Vec<B256> = attempts.iter().map(|attempt| attempt.hash).collect();
    let receipts = fixture.chain.receipts(&hashes, Quorum::One).await;
    assert_eq!(receipts.unwrap(), []);

    let cheap = fixture.sign(vec![fixture.transfer(0, 10 * GWEI + 1)]).await;
    assert!(matches!(
        fixture.send_with_others(&cheap, &hashes[..1]).await[0],
        SendOutcome::ReplacementUnderpriced(_)
    ));
    assert!(matches!(
        fixture.send(&cheap).await[0],
        SendOutcome::ForeignPending(_)
    ));
    let rich = UnsignedEnvelope {
        value: U256::MAX >> 8,
        ..fixture.transfer(3, 10 * GWEI)
    };
    let no_gas = UnsignedEnvelope {
        gas: 20_000,
        ..fixture.transfer(3, 10 * GWEI)
    };
    let no_tip = UnsignedEnvelope {
        fees: Fees::Eip1559 {
            max_fee: 10 * GWEI,
            max_priority_fee: 0,
        },
        ..fixture.transfer(3, 10 * GWEI)
    };
    let other_chain = UnsignedEnvelope {
        chain_id: ChainId(5),
        ..fixture.transfer(3, 10 * GWEI)
    };
    let refused = fixture.sign(vec![rich, no_gas, no_tip, other_chain]).await;
    let outcomes = fixture.send(&refused).await;
    assert!(
        matches!(outcomes[0], SendOutcome::Underfunded(_)),
        "{:?}",
        outcomes[0]
    );
    assert!(
        matches!(outcomes[1], SendOutcome::GasTooLow(_)),
        "{:?}",
        outcomes[1]
    );
    assert!(
        matches!(outcomes[2], SendOutcome::Underpriced(_)),
        "{:?}",
        outcomes[2]
    );
    assert!(
        matches!(outcomes[3], SendOutcome::Refused(_)),
        "{:?}",
        outcomes[3]
    );

    assert!(fixture.control("evm_mine").await.get("error").is_none());
    assert_eq!(fixture.wait_for_receipts(&hashes).await.len(), 3);
}

#[tokio::test]
async fn revert_reason_is_read_before_and_after_mining() {
    let fixture = DevChainFixture::start(Mining::Instant).await;
    let data = Bytes::from_static(&REVERTING);
    let call = |value| CallRequest {
        from: fixture.account,
        to: None,
        value,
        data: data.clone(),
        gas_max: None,
    };
    let reason = "custom error 0xdeadbeef".to_owned();
    let estimate = fixture.chain.estimate_gas(&call(U256::ZERO)).await;
    assert_eq!(estimate, Err(CallError::Reverted(reason.clone())));
    let underfunded = fixture.chain.estimate_gas(&call(U256::MAX >> 8)).await;
    assert!(
        matches!(underfunded, Err(CallError::Underfunded(_))),
        "{underfunded:?}"
    );

    let deploy = UnsignedEnvelope {
        to: None,
        value: U256::ZERO,
        data: data.clone(),
        gas: 100_000,
        ..fixture.transfer(0, 10 * GWEI)
    };
    let attempts = fixture.sign(vec![deploy]).await;
    assert_eq!(fixture.send(&attempts).await, [SendOutcome::Accepted]);
    let mined = fixture.wait_for_receipts(&[attempts[0].hash]).await;
    assert!(!mined[0].succeeded);
    assert_eq!(
        fixture.chain.revert_reason(&mined[0]).await.unwrap(),
        Some(reason)
    );
    let unknown = Inclusion {
        tx_hash: B256::repeat_byte(3),
        ..mined[0].clone()
    };
    assert_eq!(fixture.chain.revert_reason(&unknown).await.unwrap(), None);
}
