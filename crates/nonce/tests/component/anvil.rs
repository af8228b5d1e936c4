//! The component on a real node: receipts, a fork, somebody else's transaction.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::attempt::OutgoingEnvelope;
use domain::lane::{AccountNonces, ChainQuery, EndpointNonces, Finality, NonceConsumer};
use domain::{
    Address, B256, ChainId, EffectDigest, FeeQuote, Header, Inclusion, LaneKey, Nonce, Reservation,
    ReservationState, SendOutcome,
};
use engine::ports::{
    BlockTag, CallError, CallRequest, Chain, ChainError, HashFilter, Quorum, ReservationError,
};
use nonce::sweep::Sweep;
use nonce::{LentChain, Mode, NonceComponent, Scheme, Settings};
use rig::evm::{CHAIN_ID, EvmNode, Kind, account};
use serde_json::{Value, json};

use super::contract::Server;
use super::kit::{FINAL_DEPTH, FOREIGN_DEPTH, TestClock, WATCH_DEPTH, eager, until};
use super::suite::Books;

/// What the component asks, put to a node without any care: the careful form is another room's.
struct Node(EvmNode);

fn unusable() -> ChainError {
    ChainError::Unusable("nobody asks for it".into())
}

fn read(receipt: &Value, hash: B256) -> Inclusion {
    let text = |name: &str| receipt[name].as_str().expect("a receipt has it");
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
        _witnesses: Quorum,
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
        _witnesses: Quorum,
    ) -> Result<EndpointNonces, ChainError> {
        let first = AccountNonces {
            latest: Nonce(self.0.nonce_of(account)),
            pending: Nonce(self.0.pending_nonce_of(account)),
        };
        Ok(EndpointNonces {
            first,
            second: None,
            is_complete: true,
        })
    }

    async fn knows_transaction(&self, hash: B256, _witnesses: Quorum) -> Result<bool, ChainError> {
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
        Ok(found.map_or(NonceConsumer::Nobody, |tx| NonceConsumer::By {
            hash: tx.hash,
            effect_digest: EffectDigest::of(tx.to, tx.value, &tx.input),
        }))
    }

    async fn fee_quote(&self) -> Result<FeeQuote, ChainError> {
        Err(unusable())
    }

    async fn estimate_gas(&self, _call: &CallRequest) -> Result<u64, CallError> {
        Err(CallError::Chain(unusable()))
    }

    async fn send(&self, outgoing: &[OutgoingEnvelope]) -> Vec<SendOutcome> {
        let refused = |_| SendOutcome::Rejected("who lends sends nothing".into());
        outgoing.iter().map(refused).collect()
    }
}

struct Stage {
    node: Arc<Node>,
    scheme: Arc<dyn Scheme>,
    component: NonceComponent,
    sweep: Sweep,
    lane: LaneKey,
}

impl Stage {
    /// A component whose loans are overdue at once, over real books and a real node.
    async fn new(server: &Server) -> Self {
        let node = Arc::new(Node(EvmNode::manual(Kind::Anvil)));
        let scheme = server.open(&[]).await;
        let lent = LentChain {
            chain: Arc::clone(&node) as Arc<_>,
            finality: Finality::Depth(FINAL_DEPTH),
            watch_depth: WATCH_DEPTH,
        };
        let settings = Settings {
            reservation_timeout: Duration::from_millis(1),
            ..eager(Mode::Basic)
        };
        let clock = Arc::new(TestClock::new());
        let component = NonceComponent::start(settings, Arc::clone(&scheme), vec![lent], clock);
        let component = component.expect("the settings work");
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
        self.node.0.send(transfer).expect("the node takes it")
    }

    async fn row(&self, lent: &Reservation) -> Reservation {
        let row = self
            .scheme
            .reservation(self.lane, lent.nonce, lent.holder)
            .await;
        row.expect("the books are there").expect("it was lent")
    }

    async fn sweep_until(&mut self, lent: &Reservation, state: ReservationState) -> Reservation {
        let (scheme, lane, sweep) = (&self.scheme, self.lane, &mut self.sweep);
        until(&format!("it is {state:?}"), async || {
            sweep.pass().await.expect("books and node are there");
            let row = scheme.reservation(lane, lent.nonce, lent.holder).await;
            row.expect("the books are there")
                .filter(|row| row.state == state)
        })
        .await
    }

    async fn sweep_all(&mut self) {
        for _ in 0..5 {
            self.sweep.pass().await.expect("books and node are there");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_node_closes_reopens_and_frees_what_was_lent() {
    let server = Server::fresh(Server::row_lock).await;
    let mut stage = Stage::new(&server).await;
    let (lane, component) = (stage.lane, stage.component.clone());
    let (used, open, free) = (
        ReservationState::Used,
        ReservationState::Reserved,
        ReservationState::Recyclable,
    );

    // A receipt closes it, when it is final.
    let first = component.allocate(lane).await.unwrap();
    let tx_hash = stage.send(first.nonce, 1);
    component
        .mark_submitted(lane, first.nonce, first.holder, tx_hash)
        .await
        .unwrap();
    stage.node.0.mine(FINAL_DEPTH);
    stage.sweep_all().await;
    assert_eq!(stage.row(&first).await.state, open);
    stage.node.0.mine(1);
    assert_eq!(stage.sweep_until(&first, used).await.tx_hash, Some(tx_hash));

    // A fork takes the block back; the transaction is gone from the node.
    stage.node.0.reorg(1 + FINAL_DEPTH);
    assert_eq!(stage.sweep_until(&first, open).await.tx_hash, Some(tx_hash));
    stage.sweep_all().await;
    assert_eq!(
        stage.row(&first).await.state,
        open,
        "its holder may send it again"
    );
    let again = stage.send(first.nonce, 2);
    component
        .mark_submitted(lane, first.nonce, first.holder, again)
        .await
        .unwrap();
    let given = component
        .mark_recyclable(lane, first.nonce, first.holder, "regret")
        .await;
    let refused = domain::MarkRefusal::TwoNamed(first.nonce);
    assert_eq!(
        given,
        Err(ReservationError::Refused(refused)),
        "it was replaced"
    );
    stage.node.0.mine(1 + FINAL_DEPTH);
    assert_eq!(stage.sweep_until(&first, used).await.tx_hash, Some(again));

    // Somebody else uses the account while nobody says a word.
    let second = component.allocate(lane).await.unwrap();
    let foreign = stage.send(second.nonce, 3);
    stage.sweep_all().await;
    assert_eq!(stage.row(&second).await.state, open, "it waits in the pool");
    stage.node.0.mine(1 + FOREIGN_DEPTH);
    assert_eq!(
        stage.sweep_until(&second, used).await.tx_hash,
        Some(foreign)
    );

    // One that nobody used is lent again.
    let third = component.allocate(lane).await.unwrap();
    stage.sweep_until(&third, free).await;
    assert_eq!(component.allocate(lane).await.unwrap().nonce, third.nonce);
}
