//! The two senders: Lanekeeper, and a bare one that signs ahead and remembers nothing.

use std::time::{Duration, Instant};

use alloy_primitives::Address;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use proof::audit::Audit;
use proof::cluster::{Lone, LonePlan};
use proof::ledger::Ledger;
use proof::network::{Make, Network, Terms, signer};
use proof::payers::Payers;
use proof::stats::ms;
use proof::transfer::transfers;
use proof::{Chain, Outcome, demand, eventually};
use rig::postgres::Postgres;
use serde_json::{Value, json};

use crate::watch::{Seen, moment, watch};

/// The name of this proof.
pub(crate) const PROOF: &str = "04-1-throughput";
const BLOCK_TIME: Duration = Duration::from_secs(1);
/// Far more than all transfers together need, on every node that can be told.
const BLOCK_GAS_LIMIT: u64 = 1_000_000_000;
/// Clients of Lanekeeper, one POST per tx.
pub(crate) const CLIENTS: usize = 64;
/// Calls of the bare sender under way at once.
const BARE_CALLS: usize = 32;
pub(crate) const CONFIRMATIONS: u64 = 2;
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
        accounts: 10,
    };
    Network::start(make, terms).await
}

/// Posts everything to a new node of Lanekeeper on a new chain and a new database.
pub(crate) async fn ours(round: Round, postgres: &Postgres) -> Outcome<Ours> {
    let network = network(round.make).await?;
    let name = format!("{}-{}", round.make.name(), round.number);
    let database = postgres.database("throughput");
    let lone = Lone::start(&LonePlan {
        proof: PROOF,
        name,
        store: database.url().to_owned(),
        rpc: vec![network.chain.url().to_owned()],
        lanes: 1,
        confirmations: CONFIRMATIONS,
        more: String::new(),
    })
    .await?;
    let ledger = Ledger::default();
    let payers = Payers {
        api: &lone.node.api,
        ledger: &ledger,
        lanes: &lone.lanes,
        clients: CLIENTS,
    };
    let end = round.make.first_nonce() + round.count as u64;
    moment(&network.chain, BLOCK_TIME, round.share).await?;
    let (posted, seen) = tokio::try_join!(
        payers.post(round.count),
        watch(&network.chain, &lone.lanes[0], end, MINED_WITHIN)
    )?;
    eventually("all are confirmed", MINED_WITHIN, || async {
        Ok(lone.is_quiet().await?.then_some(()))
    })
    .await?;
    let confirmed = posted.began.elapsed();
    let audit = Audit {
        api: &lone.node.api,
        chain: &network.chain,
        lanes: &lone.lanes,
        ledger: &ledger,
        within: MINED_WITHIN,
    };
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
    moment(&network.chain, BLOCK_TIME, round.share).await?;
    let account = signer(0);
    let (_, seen) = tokio::try_join!(
        fire(&network.chain, &signed),
        watch(&network.chain, &account, end, MINED_WITHIN)
    )?;
    Ok(seen)
}

async fn fire(chain: &Chain, signed: &[String]) -> Outcome<Duration> {
    let began = Instant::now();
    stream::iter(signed)
        .map(|raw| chain.call("eth_sendRawTransaction", json!([raw])))
        .buffer_unordered(BARE_CALLS)
        .try_for_each(|_hash| std::future::ready(Ok(())))
        .await?;
    Ok(began.elapsed())
}
