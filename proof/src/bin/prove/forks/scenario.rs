//! A chain and a node that follows it, advanced block by block: after each step everything in the feed must match
//! the chain.

use std::time::{Duration, Instant};

use alloy_primitives::{B256, Bytes};
use proof::audit::Expected;
use proof::cluster::Signal;
use proof::manual_chain::{ManualChain, hash_of};
use proof::single_node::{SingleNode, Terms};
use proof::{Outcome, ensure, eventually};
use serde_json::Value;

use crate::forks::fold::{Fold, ReportedState};

/// A block is observed and reported well before this.
const REPORTED_WITHIN: Duration = Duration::from_secs(20);

/// Enough for twelve blocks, a resubmission and the confirmation.
const FINISHED_WITHIN: Duration = Duration::from_secs(60);

/// The block time while awaiting something that the feed does not show.
const BLOCK_TIME: Duration = Duration::from_millis(200);

pub(crate) struct ForkScenario {
    pub(crate) manual_chain: ManualChain,
    pub(crate) single_node: SingleNode,
    pub(crate) fold: Fold,
    /// Foreign transactions from the accounts.
    pub(crate) foreign: Vec<B256>,
    /// The txs that are compared with the chain.
    pub(crate) tx_ids: Vec<String>,
    required: u64,
    /// The number of comparisons.
    pub(crate) compared: u64,
}

impl ForkScenario {
    pub(crate) async fn open(manual_chain: ManualChain, terms: &Terms) -> Outcome<Self> {
        let single_node = SingleNode::start(terms).await?;
        Ok(Self {
            manual_chain,
            single_node,
            fold: Fold::default(),
            foreign: Vec::new(),
            tx_ids: Vec::new(),
            required: terms.config.confirmations,
            compared: 0,
        })
    }

    /// Requests a payment, and waits until the node holds it.
    pub(crate) async fn pay(&mut self, lane: usize, id: &str) -> Outcome<String> {
        let tx_id = self.single_node.pay(lane, id, &[]).await?;
        self.held(&tx_id).await?;
        self.tx_ids.push(tx_id.clone());
        Ok(tx_id)
    }

    /// Waits until the newest attempt of a tx is in the pool or in a block.
    pub(crate) async fn held(&self, tx_id: &str) -> Outcome<B256> {
        eventually("the node holds the tx", REPORTED_WITHIN, || async {
            let tx = self.single_node.tx(tx_id).await?;
            if tx["txHash"].is_null() {
                return Ok(None);
            }
            let hash = hash_of(&tx["txHash"])?;
            Ok(self.manual_chain.transaction(hash)?.map(|_| hash))
        })
        .await
    }

    /// Mines one block, and waits until it is fully reported.
    pub(crate) async fn block(&mut self) -> Outcome<()> {
        self.manual_chain.mine(1)?;
        self.compare().await
    }

    /// A fork and further blocks that are observed at once: most kinds build a fork block by block, so the
    /// Lanekeeper node is frozen meanwhile.
    pub(crate) async fn fork_at_once(
        &self,
        depth: u64,
        lowest: &[Bytes],
        more: u64,
    ) -> Outcome<()> {
        self.single_node.node.signal(Signal::Stop).await?;
        // Earlier calls are answered before this, and not in the middle of the fork.
        self.manual_chain.height()?;
        self.manual_chain.height()?;
        self.manual_chain.fork(depth, lowest)?;
        self.manual_chain.mine(more)?;
        self.single_node.node.signal(Signal::Continue).await
    }

    /// Waits until the feed matches the chain, for every tx; every event is checked.
    pub(crate) async fn compare(&mut self) -> Outcome<()> {
        let since = Instant::now();
        loop {
            self.fold.read(&self.single_node.node.api).await?;
            let Some(difference) = self.difference().await? else {
                self.compared += 1;
                return Ok(());
            };
            ensure(
                since.elapsed() < REPORTED_WITHIN,
                format!(
                    "after {REPORTED_WITHIN:?} the feed still differs from the chain: {difference}"
                ),
            )?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The first tx whose reported state differs from the chain.
    async fn difference(&self) -> Outcome<Option<String>> {
        let tip = self.manual_chain.height()?;
        for tx_id in &self.tx_ids {
            let reported = self.fold.reported_state(tx_id);
            let mined = self.mined(tx_id).await?;
            if !self.is_right(&reported, mined, tip)? {
                let block = mined.map(|(number, hash)| format!("{number} {hash}"));
                return Ok(Some(format!(
                    "tx {tx_id} is in block {block:?} at height {tip}, the feed reports {reported:?}"
                )));
            }
        }
        Ok(None)
    }

    fn is_right(
        &self,
        reported: &ReportedState,
        mined: Option<(u64, B256)>,
        tip: u64,
    ) -> Outcome<bool> {
        if reported.block != mined {
            return Ok(false);
        }
        let Some((number, _)) = mined else {
            return Ok(reported.list.is_empty());
        };
        if reported.is_final {
            // Only the loss of its block changes a final result; the blocks above may differ.
            return Ok(true);
        }
        let is_due = tip >= number + self.required;
        let expected = if tip == number {
            Vec::new()
        } else {
            self.manual_chain.heads(number..=tip)?
        };
        Ok(!is_due && reported.list == expected)
    }

    /// The block of a tx's attempts.
    async fn mined(&self, tx_id: &str) -> Outcome<Option<(u64, B256)>> {
        let tx = self.single_node.tx(tx_id).await?;
        for attempt in tx["attempts"].as_array().into_iter().flatten() {
            if let Some(block) = self.manual_chain.mined_in(hash_of(&attempt["txHash"])?)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Mines block by block until every tx is confirmed in the feed and the API, with equal lists. At a steady
    /// pace, because the feed does not show every intermediate step.
    pub(crate) async fn finish(&mut self) -> Outcome<()> {
        let since = Instant::now();
        while since.elapsed() < FINISHED_WITHIN {
            self.block().await?;
            let is_final = |id: &String| self.fold.reported_state(id).is_final;
            if self.tx_ids.iter().all(is_final) {
                return self.confirmed().await;
            }
            tokio::time::sleep(BLOCK_TIME).await;
        }
        let open = self
            .tx_ids
            .iter()
            .find(|id| !self.fold.reported_state(id).is_final);
        let open = self
            .single_node
            .describe_tx(open.map_or("", String::as_str))
            .await?;
        Err(format!("not final after {FINISHED_WITHIN:?}: {open}").into())
    }

    /// Runs the audit when nothing is open; returns the number of payments.
    pub(crate) async fn audit(&self) -> Outcome<usize> {
        let expected = Expected {
            foreign: self.foreign.clone(),
            ..Expected::default()
        };
        let chain = self.manual_chain.chain()?;
        let audit = self.single_node.audit(&chain, FINISHED_WITHIN);
        let counted = audit.run_with(&expected).await?;
        ensure(counted.no_ops == 0, "a nonce was filled for nothing")?;
        Ok(counted.paid)
    }

    async fn confirmed(&self) -> Outcome<()> {
        for tx_id in &self.tx_ids {
            let tx = self.single_node.tx(tx_id).await?;
            let reported = self.fold.reported_state(tx_id);
            let list = heads_of(&tx["confirmations"])?;
            ensure(
                tx["state"] == "CONFIRMED" && list == reported.list,
                format!("the feed reports {reported:?}, but the API shows {tx}"),
            )?;
        }
        Ok(())
    }
}

fn heads_of(list: &Value) -> Outcome<Vec<proof::manual_chain::Head>> {
    let headers = list.as_array().ok_or("no list")?;
    headers
        .iter()
        .map(proof::manual_chain::Head::read)
        .collect()
}
