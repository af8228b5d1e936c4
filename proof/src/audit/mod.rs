//! The exactly-once audit: promises, store and chain must agree.

mod comparison;
mod finding;

pub use finding::{AuditCounts, AuditReport, Finding, FindingKind};

use std::collections::BTreeMap;
use std::time::Duration;

use alloy_primitives::{B256, U256};
use serde_json::{Value, json};

use crate::ledger::Ledger;
use crate::{Api, Chain, Outcome, ensure, eventually};
use comparison::AuditData;

/// Blocks per call.
const BLOCKS_AT_ONCE: u64 = 100;

/// The subjects of an audit.
pub struct Audit<'a> {
    /// A node, for listing the store's txs.
    pub api: &'a Api,
    pub chain: &'a Chain,
    /// The accounts that only this store sends from, except for expected foreign transactions.
    pub lanes: &'a [String],
    pub ledger: &'a Ledger,
    pub within: Duration,
}

/// Exceptions from paid payments.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Foreign transactions of the accounts, which must be mined.
    pub foreign: Vec<B256>,
    /// Tx ids that every node rejects: they end rejected and are not paid.
    pub rejected: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mined {
    pub hash: B256,
    pub nonce: u64,
    /// In lower case.
    pub to: String,
}

impl Audit<'_> {
    /// Waits until nothing is open, then compares everything. Only the store may have used the accounts, and only
    /// for requested payments.
    pub async fn run(&self) -> Outcome<AuditCounts> {
        let counted = self.run_with(&Expected::default()).await?;
        let no_ops = counted.no_ops;
        ensure(no_ops == 0, format!("{no_ops} nonces were used by fillers"))?;
        Ok(counted)
    }

    /// With foreign transactions, rejected payments or filled gaps.
    pub async fn run_with(&self, expected: &Expected) -> Outcome<AuditCounts> {
        self.wait_until_idle().await?;
        self.wait_until_all_ended().await?;
        self.compare_now(expected).await?.require_no_findings()
    }

    /// Compares the current state.
    pub async fn compare_now(&self, expected: &Expected) -> Outcome<AuditReport> {
        let txs = self.api.all_txs().await?;
        let payments = self.ledger.payments();
        let recipients: Vec<String> = payments.values().map(|p| p.to.clone()).collect();
        let balances = self.chain.balances(&recipients).await?;
        let comparison = AuditData {
            lanes: self.lanes,
            balances: payments.keys().cloned().zip(balances).collect(),
            payments: &payments,
            txs: &txs,
            mined: self.mined().await?,
            expected,
        };
        Ok(comparison.compare())
    }

    pub async fn wait_until_idle(&self) -> Outcome<()> {
        let idle = eventually("no lane has open work", self.within, || async {
            Ok(self.busy_lanes().await?.is_empty().then_some(()))
        });
        let Err(error) = idle.await else {
            return Ok(());
        };
        let busy = self.busy_lanes().await?;
        Err(format!("{error}: {}", json!(busy)).into())
    }

    async fn busy_lanes(&self) -> Outcome<Vec<Value>> {
        let (status, page) = self.api.get("/api/v1/lanes?limit=1000").await?;
        ensure(status.is_success(), format!("lanes: {status} {page}"))?;
        let lanes = page["lanes"].as_array().into_iter().flatten();
        let is_busy = |lane: &&Value| lane["inFlight"] != 0 || lane["queued"] != 0;
        Ok(lanes.filter(is_busy).cloned().collect())
    }

    /// A failed tx may still wait for the end of its nonce.
    async fn wait_until_all_ended(&self) -> Outcome<()> {
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

    /// Every mined transaction by lower-case sender, in chain order.
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
