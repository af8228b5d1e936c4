//! Exactly once: what was promised, what the store holds, what the chain has, and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::U256;
use serde_json::{Value, json};

use crate::ledger::{Ledger, Payment};
use crate::{Api, Chain, Outcome, demand, eventually};

/// How many blocks are read in one call.
const BLOCKS_AT_ONCE: u64 = 100;

/// What is looked at.
pub struct Audit<'a> {
    /// A node, to list what the store holds.
    pub api: &'a Api,
    /// The chain.
    pub chain: &'a Chain,
    /// The accounts that only this cluster sends from.
    pub lanes: &'a [String],
    /// What was asked for and promised.
    pub ledger: &'a Ledger,
    /// How long the open work may take.
    pub within: Duration,
}

/// What an audit counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Promised to the business; each is on chain exactly once.
    pub promised: usize,
    /// In the store; those that were not promised had their answer lost on the way.
    pub stored: usize,
}

impl Audit<'_> {
    /// Waits until nothing is open, then compares everything with everything.
    pub async fn run(&self) -> Outcome<Counted> {
        self.quiet().await?;
        let txs = self.api.all_txs().await?;
        let open: Vec<&Value> = txs.iter().filter(|tx| tx["state"] != "CONFIRMED").collect();
        demand(
            open.is_empty(),
            format!("{} txs are not confirmed: {:?}", open.len(), open.first()),
        )?;
        let stored = by_request(&txs)?;
        let payments = self.ledger.payments();
        self.compare_promises(&payments, &stored)?;
        self.compare_balances(&payments, &stored).await?;
        self.compare_nonces(&txs).await?;
        Ok(Counted {
            promised: self.ledger.promised_count(),
            stored: stored.len(),
        })
    }

    /// Until no lane has open work.
    pub async fn quiet(&self) -> Outcome<()> {
        eventually("no lane has open work", self.within, || async {
            let (status, page) = self.api.get("/api/v1/lanes?limit=1000").await?;
            let lanes = page["lanes"].as_array();
            let is_quiet = lanes.is_some_and(|lanes| {
                lanes
                    .iter()
                    .all(|lane| lane["inFlight"] == 0 && lane["queued"] == 0)
            });
            Ok((status.is_success() && is_quiet).then_some(()))
        })
        .await
    }

    fn compare_promises(
        &self,
        payments: &BTreeMap<String, Payment>,
        stored: &BTreeMap<String, &Value>,
    ) -> Outcome<()> {
        for (id, payment) in payments {
            let Some(promise) = &payment.promise else {
                continue;
            };
            let Some(tx) = stored.get(id) else {
                return Err(format!("{id} was accepted and is lost").into());
            };
            demand(
                tx["txId"] == promise.tx_id.as_str(),
                format!("{id}: promised {promise:?}, stored {tx}"),
            )?;
            demand(
                promise.nonce.is_none() || tx["nonce"].as_u64() == promise.nonce,
                format!(
                    "{id}: promised {promise:?}, stored with nonce {}",
                    tx["nonce"]
                ),
            )?;
        }
        let stray = stored.keys().find(|id| !payments.contains_key(*id));
        demand(stray.is_none(), format!("{stray:?} was never asked for"))
    }

    /// 1 wei for each that is stored, none for the others.
    async fn compare_balances(
        &self,
        payments: &BTreeMap<String, Payment>,
        stored: &BTreeMap<String, &Value>,
    ) -> Outcome<()> {
        let recipients: Vec<String> = payments.values().map(|p| p.to.clone()).collect();
        let balances = self.chain.balances(&recipients).await?;
        for (id, balance) in payments.keys().zip(&balances) {
            let expected = U256::from(u8::from(stored.contains_key(id)));
            demand(
                *balance == expected,
                format!("{id}: {balance} wei arrived instead of {expected}"),
            )?;
        }
        Ok(())
    }

    /// The nonces of each lane follow each other in the store, and the chain has the same payment at each
    /// and no other. (Where they begin is the chain's affair: ganache's are made to begin at 1.)
    async fn compare_nonces(&self, txs: &[Value]) -> Outcome<()> {
        let mined = self.mined().await?;
        for lane in self.lanes {
            let mut in_store: Vec<(u64, String)> = Vec::new();
            for tx in txs.iter().filter(|tx| tx["signer"] == lane.as_str()) {
                let nonce = tx["nonce"].as_u64().ok_or("a tx without nonce")?;
                in_store.push((nonce, lower(&tx["payload"]["to"])));
            }
            in_store.sort_unstable();
            let nonces = in_store.iter().map(|(nonce, _)| *nonce);
            let first = in_store.first().map_or(0, |(nonce, _)| *nonce);
            demand(
                nonces.eq(first..first + in_store.len() as u64),
                format!("the nonces of {lane} have a gap or a repeat in the store"),
            )?;
            let empty = Vec::new();
            let on_chain = mined.get(&lane.to_lowercase()).unwrap_or(&empty);
            let differs = in_store.iter().zip(on_chain).find(|(a, b)| a != b);
            demand(
                differs.is_none() && on_chain.len() == in_store.len(),
                format!(
                    "{lane}: {} in the store, {} on chain, the first difference is {differs:?}",
                    in_store.len(),
                    on_chain.len()
                ),
            )?;
        }
        Ok(())
    }

    /// Nonce and recipient of every mined transaction, by sender, in the chain's order.
    pub async fn mined(&self) -> Outcome<BTreeMap<String, Vec<(u64, String)>>> {
        let height = self.chain.height().await?;
        let mut mined: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
        let mut next = 0;
        while next <= height {
            let last = height.min(next + BLOCKS_AT_ONCE - 1);
            let asked: Vec<Value> = (next..=last)
                .map(|number| json!([format!("{number:#x}"), true]))
                .collect();
            for block in self.chain.call_many("eth_getBlockByNumber", &asked).await? {
                for tx in block["transactions"].as_array().into_iter().flatten() {
                    let nonce: U256 = tx["nonce"].as_str().unwrap_or_default().parse()?;
                    let sent = (u64::try_from(nonce)?, lower(&tx["to"]));
                    mined.entry(lower(&tx["from"])).or_default().push(sent);
                }
            }
            next = last + 1;
        }
        Ok(mined)
    }
}

fn by_request(txs: &[Value]) -> Outcome<BTreeMap<String, &Value>> {
    let stored: BTreeMap<String, &Value> = txs
        .iter()
        .map(|tx| (tx["requestId"].as_str().unwrap_or_default().to_owned(), tx))
        .collect();
    demand(stored.len() == txs.len(), "a request id has two txs")?;
    Ok(stored)
}

fn lower(address: &Value) -> String {
    address.as_str().unwrap_or_default().to_lowercase()
}
