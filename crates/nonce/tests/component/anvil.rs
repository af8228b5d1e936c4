//! The component on a real node: receipts, a reorg, a foreign transaction.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::admission::HeadLimits;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{
    AccountBalance, AccountNonces, Agreement, ChainQuery, ConsumedNonce, EndpointNonces, Finality,
    NonceConsumer,
};
use domain::{
    Address, B256, ChainId, EffectDigest, FeeQuote, Header, Inclusion, LaneKey, Nonce, Reservation,
    ReservationState, SendOutcome,
};
use engine::ports::{
    BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum, ReservationError,
    SendTrust,
};
use nonce::sweep::Sweep;
use nonce::{Mode, NonceComponent, ReservationChain, ReservationKey, Scheme, Settings};
use rig::evm::{CHAIN_ID, EvmNode, Kind, account};
use serde_json::{Value, json};

use super::contract::ServerBackend;
use super::kit::{
    FINAL_DEPTH, FOREIGN_DEPTH, TestClock, WATCH_DEPTH, immediate_settings, wait_for,
};
use super::suite::Backend;

/// The chain port on a node, with the plainest calls: the real adapter has its own tests.
struct Node(EvmNode);

fn unusable() -> ChainError {
    ChainError::Unusable("not used in this test".into())
}

fn read(receipt: &Value, hash: B256) -> Inclusion {
    let text = |name: &str| receipt[name].as_str().expect("a field of a receipt");
    let number = text("blockNumber").trim_start_matches("0x");
    Inclusion {
        tx_hash: hash,
        block_number: u64::from_str_radix(number, 16).expect("a quantity"),
        block_hash: text("blockHash").parse().expect("a hash"),
        succeeded: text("status") == "0x1",
        gas_used: 21_000,
        effective_gas_price: 1,
        contract_address: None,
        revert_reason: None,
    }
}

#[async_trait]
impl Chain for Node {
    fn id(&self) -> ChainId {
        ChainId(CHAIN_ID)
    }

    fn endpoints(&self) -> Vec<(String, bool)> {
        vec![(self.0.url().to_owned(), true)]
    }

    async fn header(&self, block: BlockTag) -> Result<Option<Header>, ChainError> {
        let number = match block {
            BlockTag::Latest => self.0.height(),
            BlockTag::Number(number) => number,
            BlockTag::Safe | BlockTag::Finalized | BlockTag::Hash(_) => return Err(unusable()),
        };
        Ok(self.0.block(number).map(|block| Header {
            number: block.number,
            hash: block.hash,
            parent_hash: block.parent_hash,
            timestamp: 0,
        }))
    }

    async fn headers(&self, _from: u64, _count: u64) -> Result<Vec<Header>, ChainError> {
        Err(unusable())
    }

    async fn block_receipts(
        &self,
        _block: B256,
        _is_ours: HashFilter<'_>,
    ) -> Result<Option<Vec<Inclusion>>, ChainError> {
        Err(unusable())
    }

    async fn receipts(
        &self,
        hashes: &[B256],
        _quorum: Quorum,
    ) -> Result<Vec<Inclusion>, ChainError> {
        let found = hashes
            .iter()
            .filter_map(|hash| Some((self.0.receipt(*hash)?, *hash)));
        Ok(found.map(|(receipt, hash)| read(&receipt, hash)).collect())
    }

    async fn revert_reason(&self, _inclusion: &Inclusion) -> Result<Option<String>, ChainError> {
        Err(unusable())
    }

    async fn account_nonces(
        &self,
        account: Address,
        _query: ChainQuery,
        _quorum: Quorum,
    ) -> Result<EndpointNonces, ChainError> {
        let first = AccountNonces {
            latest: Nonce(self.0.nonce_of(account)),
            pending: Nonce(self.0.pending_nonce_of(account)),
        };
        Ok(EndpointNonces::new(first, None, Agreement::Quorum))
    }

    async fn account_balance(
        &self,
        _account: Address,
        _not_below: u64,
        _quorum: Quorum,
    ) -> Result<AccountBalance, ChainError> {
        Err(unusable())
    }

    async fn knows_transaction(&self, hash: B256, _quorum: Quorum) -> Result<bool, ChainError> {
        let found = self.0.rpc().call("eth_getTransactionByHash", json!([hash]));
        Ok(!found.is_null())
    }

    async fn find_consumer(
        &self,
        account: Address,
        nonce: Nonce,
        up_to: Header,
    ) -> Result<NonceConsumer, ChainError> {
        let blocks = (0..=up_to.number).filter_map(|number| self.0.block(number));
        let mut all = blocks.flat_map(|block| block.transactions);
        let found = all.find(|tx| (tx.from, tx.nonce) == (account, nonce.0));
        Ok(found.map_or(NonceConsumer::NotConsumed, |tx| {
            NonceConsumer::Transaction {
                hash: tx.hash,
                effect_digest: EffectDigest::of(tx.to, tx.value, &tx.input),
            }
        }))
    }

    async fn find_consumers(
        &self,
        _account: Address,
        _nonces: Range<u64>,
        _up_to: Header,
    ) -> Result<Vec<ConsumedNonce>, ChainError> {
        let why = "reservations attribute no nonces".to_owned();
        Err(ChainError::Unusable(why))
    }

    async fn fee_quote(&self, _followed: &Header) -> Result<FeeQuote, ChainError> {
        Err(unusable())
    }

    async fn head_limits(&self) -> Result<HeadLimits, ChainError> {
        Err(unusable())
    }

    async fn estimate_gas(&self, _call: &CallRequest) -> Result<u64, CallError> {
        Err(CallError::Chain(unusable()))
    }

    async fn send(
        &self,
        _account: Address,
        outgoing: &[OutgoingEnvelope],
        _trust: SendTrust<'_>,
    ) -> Vec<SendOutcome> {
        let refused = |_| SendOutcome::Rejected("the component sends nothing".into());
        outgoing.iter().map(refused).collect()
    }
}

struct Fixture {
    node: Arc<Node>,
    scheme: Arc<dyn Scheme>,
    component: NonceComponent,
    sweep: Sweep,
    lane: LaneKey,
}

impl Fixture {
    /// A component whose reservations expire at once, on a real ledger and a real node.
    async fn new(server: &ServerBackend) -> Self {
        let node = Arc::new(Node(EvmNode::manual(Kind::Anvil)));
        let scheme = server.open_process(&[]).await;
        let reserved = ReservationChain {
            chain: Arc::clone(&node) as Arc<_>,
            finality: Finality::Depth(FINAL_DEPTH),
            watch_depth: WATCH_DEPTH,
        };
        let settings = Settings {
            reservation_timeout: Duration::from_millis(1),
            ..immediate_settings(Mode::Basic)
        };
        let clock = Arc::new(TestClock::new());
        let component = NonceComponent::start(settings, Arc::clone(&scheme), vec![reserved], clock);
        let component = component.expect("valid settings");
        let lane = LaneKey {
            chain_id: ChainId(CHAIN_ID),
            signer: account(0).0,
        };
        Self {
            sweep: component.sweep(),
            node,
            scheme,
            component,
            lane,
        }
    }

    /// A transfer of this account, signed by the node.
    fn send(&self, nonce: Nonce, wei: u64) -> B256 {
        let (from, to) = (self.lane.signer, account(1).0);
        let (nonce, value) = (format!("{:#x}", nonce.0), format!("{wei:#x}"));
        let transfer = json!({ "from": from, "to": to, "value": value, "nonce": nonce });
        self.node.0.send(transfer).expect("the node accepts it")
    }

    async fn row(&self, reserved: &Reservation) -> Reservation {
        let row = self
            .scheme
            .find_reservation(ReservationKey::from(reserved))
            .await;
        row.expect("the ledger is readable")
            .expect("the nonce is reserved")
    }

    async fn sweep_until(
        &mut self,
        reserved: &Reservation,
        state: ReservationState,
    ) -> Reservation {
        let (scheme, sweep) = (&self.scheme, &mut self.sweep);
        wait_for(&format!("the reservation is {state:?}"), async || {
            sweep.run_pass().await.expect("ledger and node answer");
            let row = scheme
                .find_reservation(ReservationKey::from(reserved))
                .await;
            row.expect("the ledger is readable")
                .filter(|row| row.state == state)
        })
        .await
    }

    async fn sweep_all(&mut self) {
        for _ in 0..5 {
            self.sweep.run_pass().await.expect("ledger and node answer");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_node_closes_reopens_and_frees_reservations() {
    let server = ServerBackend::new(ServerBackend::row_lock).await;
    let mut fixture = Fixture::new(&server).await;
    let (lane, component) = (fixture.lane, fixture.component.clone());
    let (used, open, free) = (
        ReservationState::Used,
        ReservationState::Reserved,
        ReservationState::Recyclable,
    );

    // A final receipt closes the reservation.
    let first = component.allocate(lane).await.unwrap();
    let tx_hash = fixture.send(first.nonce, 1);
    component
        .mark_submitted(lane, first.nonce, first.holder, tx_hash)
        .await
        .unwrap();
    fixture.node.0.mine(FINAL_DEPTH);
    fixture.sweep_all().await;
    assert_eq!(fixture.row(&first).await.state, open);
    fixture.node.0.mine(1);
    assert_eq!(
        fixture.sweep_until(&first, used).await.tx_hash,
        Some(tx_hash)
    );

    // The block is reorged out; the node no longer knows the transaction.
    fixture.node.0.reorg(1 + FINAL_DEPTH);
    assert_eq!(
        fixture.sweep_until(&first, open).await.tx_hash,
        Some(tx_hash)
    );
    fixture.sweep_all().await;
    assert_eq!(
        fixture.row(&first).await.state,
        open,
        "the holder may send again"
    );
    let again = fixture.send(first.nonce, 2);
    component
        .mark_submitted(lane, first.nonce, first.holder, again)
        .await
        .unwrap();
    let recycled = component
        .mark_recyclable(lane, first.nonce, first.holder, "regret")
        .await;
    let refused = domain::MarkRefusal::TwoNamed(first.nonce);
    assert_eq!(
        recycled,
        Err(ReservationError::Refused(refused)),
        "it was replaced"
    );
    fixture.node.0.mine(1 + FINAL_DEPTH);
    assert_eq!(fixture.sweep_until(&first, used).await.tx_hash, Some(again));

    // A foreign transaction uses the nonce, and the holder does not mark it.
    let second = component.allocate(lane).await.unwrap();
    let foreign = fixture.send(second.nonce, 3);
    fixture.sweep_all().await;
    assert_eq!(
        fixture.row(&second).await.state,
        open,
        "the transaction is pending"
    );
    fixture.node.0.mine(1 + FOREIGN_DEPTH);
    assert_eq!(
        fixture.sweep_until(&second, used).await.tx_hash,
        Some(foreign)
    );

    // An unused nonce is reserved again.
    let third = component.allocate(lane).await.unwrap();
    fixture.sweep_until(&third, free).await;
    assert_eq!(component.allocate(lane).await.unwrap().nonce, third.nonce);
}
