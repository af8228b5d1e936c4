//! Exactly once: what was promised, what the store holds, what the chain has, and nothing else.

mod books;
mod finding;

pub use finding::{Audited, Counted, Finding, Wrong};

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::{B256, U256};
use serde_json::{Value, json};

use crate::ledger::Ledger;
use crate::{Api, Chain, Outcome, demand, eventually};
use books::Books;

/// How many blocks are read in one call.
const BLOCKS_AT_ONCE: u64 = 100;

/// What is looked at.
pub struct Audit<'a> {
    /// A node, to list what the store holds.
    pub api: &'a Api,
    /// The chain.
    pub chain: &'a Chain,
    /// The accounts that only this store sends from, but for what is expected of others.
    pub lanes: &'a [String],
    /// What was asked for and promised.
    pub ledger: &'a Ledger,
    /// How long the open work may take.
    pub within: Duration,
}

/// What is not a paid payment.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Transactions of the accounts that somebody else sent, and that must be mined.
    pub foreign: Vec<B256>,
    /// Tx ids that no node takes: they end rejected, and nothing is paid.
    pub rejected: Vec<String>,
}

/// A mined transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mined {
    /// Its hash.
    pub hash: B256,
    /// Its nonce.
    pub nonce: u64,
    /// Its recipient, in lower case.
    pub to: String,
}

impl Audit<'_> {
    /// Waits until nothing is open, then compares everything with everything. Nobody but the store may
    /// have used the accounts, and it only for what was asked.
    pub async fn run(&self) -> Outcome<Counted> {
        let counted = self.run_with(&Expected::default()).await?;
        let no_ops = counted.no_ops;
        demand(no_ops == 0, format!("{no_ops} nonces went to no-ops"))?;
        Ok(counted)
    }

    /// The same where others use the accounts, some payments are refused, or gaps were filled.
    pub async fn run_with(&self, expected: &Expected) -> Outcome<Counted> {
        self.quiet().await?;
        self.settled().await?;
        self.look(expected).await?.sound()
    }

    /// Compares everything with everything, as it is now.
    pub async fn look(&self, expected: &Expected) -> Outcome<Audited> {
        let txs = self.api.all_txs().await?;
        let payments = self.ledger.payments();
        let recipients: Vec<String> = payments.values().map(|p| p.to.clone()).collect();
        let balances = self.chain.balances(&recipients).await?;
        let books = Books {
            lanes: self.lanes,
            balances: payments.keys().cloned().zip(balances).collect(),
            payments: &payments,
            txs: &txs,
            mined: self.mined().await?,
            expected,
        };
        Ok(books.compare())
    }

    /// Until no lane has open work.
    pub async fn quiet(&self) -> Outcome<()> {
        eventually("no lane has open work", self.within, || async {
            let (status, page) = self.api.get("/api/v1/lanes?limit=1000").await?;
            let lanes = page["lanes"].as_array();
            let is_quiet = |lane: &Value| lane["inFlight"] == 0 && lane["queued"] == 0;
            let are_quiet = lanes.is_some_and(|lanes| lanes.iter().all(is_quiet));
            Ok((status.is_success() && are_quiet).then_some(()))
        })
        .await
    }

    /// Until every tx has ended: one that failed may still wait for the end of its nonce.
    async fn settled(&self) -> Outcome<()> {
        let settled = eventually("every tx has ended", self.within, || async {
            let txs = self.api.all_txs().await?;
            Ok((!txs.iter().any(is_open)).then_some(()))
        });
        let Err(error) = settled.await else {
            return Ok(());
        };
        let txs = self.api.all_txs().await?;
        let open: Vec<&Value> = txs.iter().filter(|tx| is_open(tx)).collect();
        let lowest = open.iter().min_by_key(|tx| tx["nonce"].as_u64());
        let (count, all) = (open.len(), txs.len());
        Err(format!("{error}: {count} of {all} are open, the lowest: {lowest:?}").into())
    }

    /// Every mined transaction by sender in lower case, in the chain's order.
    pub async fn mined(&self) -> Outcome<BTreeMap<String, Vec<Mined>>> {
        let height = self.chain.height().await?;
        let mut mined: BTreeMap<String, Vec<Mined>> = BTreeMap::new();
        let mut next = 0;
        while next <= height {
            let last = height.min(next + BLOCKS_AT_ONCE - 1);
            let asked: Vec<Value> = (next..=last)
                .map(|number| json!([format!("{number:#x}"), true]))
                .collect();
            for block in self.chain.call_many("eth_getBlockByNumber", &asked).await? {
                for tx in block["transactions"].as_array().into_iter().flatten() {
                    let nonce: U256 = text(tx, "nonce").parse()?;
                    let sent = Mined {
                        hash: text(tx, "hash").parse()?,
                        nonce: u64::try_from(nonce)?,
                        to: text(tx, "to").to_lowercase(),
                    };
                    let from = text(tx, "from").to_lowercase();
                    mined.entry(from).or_default().push(sent);
                }
            }
            next = last + 1;
        }
        Ok(mined)
    }
}

fn is_open(tx: &Value) -> bool {
    tx["state"] != "CONFIRMED" && tx["state"] != "FAILED_FINAL"
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object[name].as_str().unwrap_or_default()
}
