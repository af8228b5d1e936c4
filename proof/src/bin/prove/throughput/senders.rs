//! The two senders: Lanekeeper, and a plain one that signs in advance and keeps no state.

use std::time::{Duration, Instant};

use alloy_primitives::Address;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use proof::config::Config;
use proof::network::{Network, NodeKind, Terms, signer};
use proof::payers::Payers;
use proof::single_node::{self, SingleNode};
use proof::stats::ms;
use proof::transfer::{Signed, transfers};
use proof::{Chain, Outcome, ensure};
use rig::postgres::{Database, Postgres};
use serde_json::{Value, json};

use crate::throughput::watch::{Seen, wait_for_block_share, watch};

const PROOF: &str = "04-1-throughput";
const BLOCK_TIME: Duration = Duration::from_secs(1);
/// More than all transfers need, on every node with a configurable limit.
const BLOCK_GAS_LIMIT: u64 = 1_000_000_000;
/// Clients of Lanekeeper, one POST per tx.
pub(crate) const CLIENTS: usize = 64;
/// Concurrent calls of the plain sender.
const PLAIN_CALLS: usize = 32;
const CONFIRMATIONS: u64 = 2;
/// Enough even for a depth of sixteen.
const MINED_WITHIN: Duration = Duration::from_secs(240);

/// One measurement on its own chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) node_kind: NodeKind,
    pub(crate) number: usize,
    pub(crate) count: usize,
    /// The offset between two blocks.
    pub(crate) share: f64,
}

/// Lanekeeper's result.
pub(crate) struct LanekeeperResult {
    pub(crate) seen: Seen,
    pub(crate) accepted: Duration,
    pub(crate) confirmed: Duration,
    pub(crate) with_hash: usize,
}

impl LanekeeperResult {
    /// The delay until the node held everything, after the last accept and the plain sender's end.
    pub(crate) fn lag(&self, plain: &Seen) -> Option<Duration> {
        let could = self.accepted.max(plain.at_node?);
        Some(self.seen.at_node?.saturating_sub(could))
    }

    pub(crate) fn to_json(&self) -> Value {
        let reached = self.seen.reached.iter();
        let reached: Vec<Value> = reached.map(|(depth, at)| json!([depth, ms(*at)])).collect();
        json!({
            "acceptedMs": ms(self.accepted),
            "atNodeMs": self.seen.at_node.map(ms),
            "minedMs": ms(self.seen.mined),
            "confirmedMs": ms(self.confirmed),
            "acceptedWithHash": self.with_hash,
            "pendingMax": self.seen.pending_max,
            "pendingReachedMs": reached,
        })
    }
}

pub(crate) async fn network(node_kind: NodeKind) -> Outcome<Network> {
    let terms = Terms {
        block_time: BLOCK_TIME,
        block_gas_limit: BLOCK_GAS_LIMIT,
        ..Terms::default()
    };
    Network::start(node_kind, terms).await
}

/// A new Lanekeeper node with one lane.
pub(crate) async fn start(
    network: &Network,
    database: &Database,
    name: String,
) -> Outcome<SingleNode> {
    SingleNode::start(&single_node::Terms {
        proof: PROOF,
        name,
        store: Some(database.url().to_owned()),
        config: Config {
            rpc: vec![network.chain.url().to_owned()],
            confirmations: CONFIRMATIONS,
            ..Config::default()
        },
    })
    .await
}

/// Posts everything to a new Lanekeeper node on a new chain and database.
pub(crate) async fn run_lanekeeper(round: Round, postgres: &Postgres) -> Outcome<LanekeeperResult> {
    let network = network(round.node_kind).await?;
    let name = format!("{}-{}", round.node_kind.name(), round.number);
    let database = postgres.database("throughput");
    let single_node = start(&network, &database, name).await?;
    let payers = Payers {
        api: &single_node.node.api,
        ledger: &single_node.ledger,
        lanes: &single_node.lanes,
        clients: CLIENTS,
    };
    let end = round.node_kind.first_nonce() + round.count as u64;
    wait_for_block_share(&network.chain, BLOCK_TIME, round.share).await?;
    let (posted, seen) = tokio::try_join!(
        payers.post(round.count),
        watch(&network.chain, &single_node.lanes[0], end, MINED_WITHIN)
    )?;
    let audit = single_node.audit(&network.chain, MINED_WITHIN);
    audit.wait_until_idle().await?;
    let confirmed = posted.began.elapsed();
    let counted = audit.run().await?;
    ensure(counted.promised == round.count, "a promise is missing")?;
    Ok(LanekeeperResult {
        seen,
        accepted: posted.ended.duration_since(posted.began),
        confirmed,
        with_hash: posted.with_hash,
    })
}

/// Sends the same number of signed transfers to a node with the same settings.
pub(crate) async fn run_plain_sender(round: Round) -> Outcome<Seen> {
    let network = network(round.node_kind).await?;
    let first = round.node_kind.first_nonce();
    let recipients: Vec<Address> = (0..round.count)
        .map(|_| Address::from(rand::random::<[u8; 20]>()))
        .collect();
    let signed = transfers(0, first, &recipients)?;
    let end = first + round.count as u64;
    wait_for_block_share(&network.chain, BLOCK_TIME, round.share).await?;
    let account = signer(0);
    let (_, seen) = tokio::try_join!(
        send_all(&network.chain, &signed),
        watch(&network.chain, &account, end, MINED_WITHIN)
    )?;
    Ok(seen)
}

async fn send_all(chain: &Chain, signed: &[Signed]) -> Outcome<Duration> {
    let began = Instant::now();
    stream::iter(signed)
        .map(|tx| chain.call("eth_sendRawTransaction", json!([tx.raw])))
        .buffer_unordered(PLAIN_CALLS)
        .try_for_each(|_hash| std::future::ready(Ok(())))
        .await?;
    Ok(began.elapsed())
}
