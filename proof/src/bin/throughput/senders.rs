//! The two senders: Lanekeeper, and a bare one that signs ahead and remembers nothing.

use std::time::{Duration, Instant};

use alloy_primitives::Address;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use proof::config::Config;
use proof::network::{Make, Network, Terms, signer};
use proof::payers::Payers;
use proof::solo::{self, Solo};
use proof::stats::ms;
use proof::transfer::{Signed, transfers};
use proof::{Chain, Outcome, demand};
use rig::postgres::{Database, Postgres};
use serde_json::{Value, json};

use crate::watch::{Seen, wait_for_block_share, watch};

/// The name of this proof.
pub(crate) const PROOF: &str = "04-1-throughput";
const BLOCK_TIME: Duration = Duration::from_secs(1);
/// Far more than all transfers together need, on every node that can be told.
const BLOCK_GAS_LIMIT: u64 = 1_000_000_000;
/// Clients of Lanekeeper, one POST per tx.
pub(crate) const CLIENTS: usize = 64;
/// Calls of the bare sender under way at once.
const BARE_CALLS: usize = 32;
const CONFIRMATIONS: u64 = 2;
/// Even one that has only sixteen out at a time is done by then.
const MINED_WITHIN: Duration = Duration::from_secs(240);

/// One measurement on a chain of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) make: Make,
    pub(crate) number: usize,
    pub(crate) count: usize,
    /// Where between two blocks it begins.
    pub(crate) share: f64,
}

/// What Lanekeeper did.
pub(crate) struct Ours {
    pub(crate) seen: Seen,
    pub(crate) accepted: Duration,
    pub(crate) confirmed: Duration,
    pub(crate) with_hash: usize,
}

impl Ours {
    /// How long after the last accept, and after a bare sender was through, the node held everything.
    pub(crate) fn lag(&self, bare: &Seen) -> Option<Duration> {
        let could = self.accepted.max(bare.at_node?);
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

/// A new chain, the same for every sender.
pub(crate) async fn network(make: Make) -> Outcome<Network> {
    let terms = Terms {
        block_time: BLOCK_TIME,
        block_gas_limit: BLOCK_GAS_LIMIT,
        ..Terms::default()
    };
    Network::start(make, terms).await
}

/// A new node of Lanekeeper with one lane.
pub(crate) async fn start(network: &Network, database: &Database, name: String) -> Outcome<Solo> {
    Solo::start(&solo::Terms {
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

/// Posts everything to a new node of Lanekeeper on a new chain and a new database.
pub(crate) async fn ours(round: Round, postgres: &Postgres) -> Outcome<Ours> {
    let network = network(round.make).await?;
    let name = format!("{}-{}", round.make.name(), round.number);
    let database = postgres.database("throughput");
    let solo = start(&network, &database, name).await?;
    let payers = Payers {
        api: &solo.node.api,
        ledger: &solo.ledger,
        lanes: &solo.lanes,
        clients: CLIENTS,
    };
    let end = round.make.first_nonce() + round.count as u64;
    wait_for_block_share(&network.chain, BLOCK_TIME, round.share).await?;
    let (posted, seen) = tokio::try_join!(
        payers.post(round.count),
        watch(&network.chain, &solo.lanes[0], end, MINED_WITHIN)
    )?;
    let audit = solo.audit(&network.chain, MINED_WITHIN);
    audit.quiet().await?;
    let confirmed = posted.began.elapsed();
    let counted = audit.run().await?;
    demand(counted.promised == round.count, "a promise is missing")?;
    Ok(Ours {
        seen,
        accepted: posted.ended.duration_since(posted.began),
        confirmed,
        with_hash: posted.with_hash,
    })
}

/// Fires as many signed transfers at a node that was started in the same way.
pub(crate) async fn bare(round: Round) -> Outcome<Seen> {
    let network = network(round.make).await?;
    let first = round.make.first_nonce();
    let recipients: Vec<Address> = (0..round.count)
        .map(|_| Address::from(rand::random::<[u8; 20]>()))
        .collect();
    let signed = transfers(0, first, &recipients)?;
    let end = first + round.count as u64;
    wait_for_block_share(&network.chain, BLOCK_TIME, round.share).await?;
    let account = signer(0);
    let (_, seen) = tokio::try_join!(
        fire(&network.chain, &signed),
        watch(&network.chain, &account, end, MINED_WITHIN)
    )?;
    Ok(seen)
}

async fn fire(chain: &Chain, signed: &[Signed]) -> Outcome<Duration> {
    let began = Instant::now();
    stream::iter(signed)
        .map(|tx| chain.call("eth_sendRawTransaction", json!([tx.raw])))
        .buffer_unordered(BARE_CALLS)
        .try_for_each(|_hash| std::future::ready(Ok(())))
        .await?;
    Ok(began.elapsed())
}
