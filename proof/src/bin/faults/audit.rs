//! Exactly once where an account is not only ours: every promised payment is in the store, has arrived
//! at its own recipient once, and each mined nonce of the account is explained by exactly one tx of the
//! store or by a transaction that the scenario sent itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use alloy_primitives::{B256, U256};
use proof::{Outcome, demand, eventually};
use serde_json::{Value, json};

use crate::world::World;

/// How long open work may take when everything is well again.
const QUIET_WITHIN: Duration = Duration::from_secs(90);

/// How many blocks are read in one call.
const BLOCKS_AT_ONCE: u64 = 50;

/// What begins the request id of a no-op of Lanekeeper's own.
const FILLER: &str = "lanekeeper-filler-";

/// What is not a paid payment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// Transactions of the accounts that the scenario sent itself, and that must be mined.
    pub(crate) foreign: Vec<B256>,
    /// Tx ids that no node takes: they end rejected, and nothing is paid.
    pub(crate) rejected: Vec<String>,
}

/// What an audit counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// Payments that arrived, each once.
    pub(crate) paid: usize,
    /// Rejected for good, with nothing paid.
    pub(crate) rejected: usize,
    /// Nonces that a no-op of ours took.
    pub(crate) no_ops: usize,
    /// Nonces that somebody else took.
    pub(crate) foreign: usize,
}

impl Counted {
    /// Of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            paid: self.paid + other.paid,
            rejected: self.rejected + other.rejected,
            no_ops: self.no_ops + other.no_ops,
            foreign: self.foreign + other.foreign,
        }
    }
}

/// A mined transaction.
struct Mined {
    hash: B256,
    nonce: u64,
}

impl World {
    /// Waits until nothing is open, then compares everything with everything.
    pub(crate) async fn audit(&self, expected: &Expected) -> Outcome<Counted> {
        self.nothing_open().await?;
        let txs = self.api().all_txs().await?;
        let mut counted = self.compare_promises(&txs, expected)?;
        self.compare_balances(&txs).await?;
        self.compare_nonces(&txs, expected).await?;
        counted.foreign = expected.foreign.len();
        Ok(counted)
    }

    async fn nothing_open(&self) -> Outcome<()> {
        let open = |tx: &&Value| tx["state"] != "CONFIRMED" && tx["state"] != "FAILED_FINAL";
        let quiet = eventually("nothing is open", QUIET_WITHIN, || async {
            let txs = self.api().all_txs().await?;
            Ok((!txs.iter().any(|tx| open(&tx))).then_some(()))
        });
        let Err(error) = quiet.await else {
            return Ok(());
        };
        let txs = self.api().all_txs().await?;
        let open: Vec<&Value> = txs.iter().filter(open).collect();
        let lowest = open.iter().min_by_key(|tx| tx["nonce"].as_u64());
        let told = lowest.map(|tx| {
            [
                "nonce",
                "state",
                "subState",
                "reason",
                "waitingFor",
                "txHash",
            ]
            .map(|name| format!("{name} {}", tx[name]))
            .join(", ")
        });
        let (count, lane) = (open.len(), self.lane(0).await?);
        Err(format!(
            "{error}: {count} of {} are open, the lowest: {told:?}; {lane}",
            txs.len()
        )
        .into())
    }

    /// Every promise is kept, and the store has nothing that was not asked for.
    fn compare_promises(&self, txs: &[Value], expected: &Expected) -> Outcome<Counted> {
        let mut stored: BTreeMap<&str, &Value> = BTreeMap::new();
        for tx in txs {
            let id = tx["requestId"].as_str().unwrap_or_default();
            let before = stored.insert(id, tx);
            demand(before.is_none(), format!("{id} has two txs"))?;
        }
        let mut counted = Counted::default();
        for (id, payment) in &self.ledger.payments() {
            let found = stored.remove(id.as_str());
            let Some(promise) = &payment.promise else {
                continue; // its answer was lost, or it was refused; its balance tells which
            };
            let tx = found.ok_or_else(|| format!("{id} was accepted and is lost"))?;
            demand(
                tx["txId"] == promise.tx_id.as_str(),
                format!("{id}: promised {promise:?}, stored {tx}"),
            )?;
            if expected.rejected.contains(&promise.tx_id) {
                let is_rejected = tx["state"] == "FAILED_FINAL" && tx["subState"] == "rejected";
                demand(is_rejected, format!("{id} should be rejected: {tx}"))?;
                counted.rejected += 1;
            } else {
                demand(
                    tx["state"] == "CONFIRMED",
                    format!("{id} is not paid: {tx}"),
                )?;
                counted.paid += 1;
            }
        }
        let stray = stored.keys().find(|id| !id.starts_with(FILLER));
        demand(stray.is_none(), format!("{stray:?} was never asked for"))?;
        counted.no_ops = stored.len() + counted.rejected;
        Ok(counted)
    }

    /// 1 wei for each that is confirmed, none for the others.
    async fn compare_balances(&self, txs: &[Value]) -> Outcome<()> {
        let paid: BTreeSet<&str> = txs
            .iter()
            .filter(|tx| tx["state"] == "CONFIRMED")
            .filter_map(|tx| tx["requestId"].as_str())
            .collect();
        let payments = self.ledger.payments();
        let recipients: Vec<String> = payments.values().map(|p| p.to.clone()).collect();
        let balances = self.net.chain.balances(&recipients).await?;
        for (id, balance) in payments.keys().zip(&balances) {
            let expected = U256::from(u8::from(paid.contains(id.as_str())));
            demand(
                *balance == expected,
                format!("{id}: {balance} wei arrived instead of {expected}"),
            )?;
        }
        Ok(())
    }

    /// Each mined nonce belongs to one tx of the store or to an expected stranger, and the other way
    /// round.
    async fn compare_nonces(&self, txs: &[Value], expected: &Expected) -> Outcome<()> {
        let mut mined = self.mined().await?;
        let mut foreign: BTreeSet<B256> = expected.foreign.iter().copied().collect();
        for (lane, first) in self.lanes.iter().zip(&self.first_nonces) {
            let mut of_store: BTreeMap<B256, &Value> = BTreeMap::new();
            for tx in txs.iter().filter(|tx| tx["signer"] == lane.as_str()) {
                let hash = tx["receipt"]["txHash"].as_str();
                let hash = hash.ok_or_else(|| format!("final without a receipt: {tx}"))?;
                of_store.insert(hash.parse()?, tx);
            }
            let on_chain = mined.remove(&lane.to_lowercase()).unwrap_or_default();
            for (at, Mined { hash, nonce }) in (*first..).zip(on_chain) {
                demand(
                    nonce == at,
                    format!("{lane}: nonce {nonce} in the place of {at}"),
                )?;
                if foreign.remove(&hash) {
                    continue;
                }
                let tx = of_store.remove(&hash).ok_or_else(|| {
                    format!("{lane}: {hash} at nonce {nonce} is in no tx of the store")
                })?;
                demand(
                    tx["nonce"].as_u64() == Some(nonce),
                    format!("{hash} has nonce {nonce} on chain: {tx}"),
                )?;
            }
            let stray = of_store.values().next();
            demand(stray.is_none(), format!("not on chain: {stray:?}"))?;
        }
        demand(
            foreign.is_empty(),
            format!("foreign transactions that are not on chain: {foreign:?}"),
        )
    }

    /// Every mined transaction by sender, in the chain's order.
    async fn mined(&self) -> Outcome<BTreeMap<String, Vec<Mined>>> {
        let height = self.net.chain.height().await?;
        let mut mined: BTreeMap<String, Vec<Mined>> = BTreeMap::new();
        let mut next = 0;
        while next <= height {
            let last = height.min(next + BLOCKS_AT_ONCE - 1);
            let asked: Vec<Value> = (next..=last)
                .map(|number| json!([format!("{number:#x}"), true]))
                .collect();
            let blocks = self.net.chain.call_many("eth_getBlockByNumber", &asked);
            for block in blocks.await? {
                for tx in block["transactions"].as_array().into_iter().flatten() {
                    let text = |name: &str| tx[name].as_str().unwrap_or_default();
                    let nonce: U256 = text("nonce").parse()?;
                    mined
                        .entry(text("from").to_lowercase())
                        .or_default()
                        .push(Mined {
                            hash: text("hash").parse()?,
                            nonce: u64::try_from(nonce)?,
                        });
                }
            }
            next = last + 1;
        }
        Ok(mined)
    }
}
