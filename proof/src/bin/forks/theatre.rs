//! A chain and a node that follows it, moved block by block: after each move everything that the feed has
//! told must be what the chain is.

use std::time::{Duration, Instant};

use alloy_primitives::{B256, Bytes};
use proof::audit::Expected;
use proof::cluster::Signal;
use proof::solo::{Solo, Terms};
use proof::stage::{Stage, hash_of};
use proof::{Outcome, demand, eventually};
use serde_json::Value;

use crate::fold::{Fold, Told};

/// A block is seen, and what it means is told, well before this.
const TOLD_WITHIN: Duration = Duration::from_secs(20);

/// Also what must be proven by twelve blocks, sent again and confirmed is done before this.
const FINISHED_WITHIN: Duration = Duration::from_secs(60);

/// How fast blocks come while something is awaited that the feed does not tell.
const BLOCK_TIME: Duration = Duration::from_millis(200);

pub(crate) struct Theatre {
    pub(crate) stage: Stage,
    pub(crate) solo: Solo,
    pub(crate) fold: Fold,
    /// What others sent from our accounts.
    pub(crate) foreign: Vec<B256>,
    /// The txs whose story is compared with the chain.
    pub(crate) cast: Vec<String>,
    required: u64,
    /// How often all of them were compared.
    pub(crate) compared: u64,
}

impl Theatre {
    pub(crate) async fn open(stage: Stage, terms: &Terms) -> Outcome<Self> {
        let solo = Solo::start(terms).await?;
        Ok(Self {
            stage,
            solo,
            fold: Fold::default(),
            foreign: Vec::new(),
            cast: Vec::new(),
            required: terms.config.confirmations,
            compared: 0,
        })
    }

    /// Asks for a payment, and waits until the node holds it.
    pub(crate) async fn pay(&mut self, lane: usize, id: &str) -> Outcome<String> {
        let tx_id = self.solo.pay(lane, id, &[]).await?;
        self.held(&tx_id).await?;
        self.cast.push(tx_id.clone());
        Ok(tx_id)
    }

    /// Until the node holds the newest attempt of a tx, in its pool or in a block.
    pub(crate) async fn held(&self, tx_id: &str) -> Outcome<B256> {
        eventually("the node holds the tx", TOLD_WITHIN, || async {
            let tx = self.solo.tx(tx_id).await?;
            if tx["txHash"].is_null() {
                return Ok(None);
            }
            let hash = hash_of(&tx["txHash"])?;
            Ok(self.stage.transaction(hash)?.map(|_| hash))
        })
        .await
    }

    /// Makes one block, and waits until all that it means is told.
    pub(crate) async fn block(&mut self) -> Outcome<()> {
        self.stage.mine(1)?;
        self.compare().await
    }

    /// A fork, and blocks on top of it, that are seen as one: most makes build a fork block by block, so the
    /// node is frozen meanwhile.
    pub(crate) async fn fork_at_once(
        &self,
        depth: u64,
        lowest: &[Bytes],
        more: u64,
    ) -> Outcome<()> {
        self.solo.node.signal(Signal::Stop).await?;
        // What it had asked before is answered before this, and not in the middle of the fork.
        self.stage.height()?;
        self.stage.height()?;
        self.stage.fork(depth, lowest)?;
        self.stage.mine(more)?;
        self.solo.node.signal(Signal::Continue).await
    }

    /// Waits until the feed has told what the chain is, for every tx; every event on the way is checked.
    pub(crate) async fn compare(&mut self) -> Outcome<()> {
        let since = Instant::now();
        loop {
            self.fold.read(&self.solo.node.api).await?;
            let Some(difference) = self.difference().await? else {
                self.compared += 1;
                return Ok(());
            };
            demand(
                since.elapsed() < TOLD_WITHIN,
                format!(
                    "after {TOLD_WITHIN:?} the feed still differs from the chain: {difference}"
                ),
            )?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The first tx of which something else is told than the chain shows.
    async fn difference(&self) -> Outcome<Option<String>> {
        let tip = self.stage.height()?;
        for tx_id in &self.cast {
            let told = self.fold.of(tx_id);
            let mined = self.mined(tx_id).await?;
            if !self.is_right(&told, mined, tip)? {
                let block = mined.map(|(number, hash)| format!("{number} {hash}"));
                return Ok(Some(format!(
                    "tx {tx_id} is in block {block:?} at height {tip}, told is {told:?}"
                )));
            }
        }
        Ok(None)
    }

    fn is_right(&self, told: &Told, mined: Option<(u64, B256)>, tip: u64) -> Outcome<bool> {
        if told.block != mined {
            return Ok(false);
        }
        let Some((number, _)) = mined else {
            return Ok(told.list.is_empty());
        };
        if told.is_final {
            // Nothing but the loss of its block changes a final; what stands on it may differ since.
            return Ok(true);
        }
        let is_due = tip >= number + self.required;
        let expected = if tip == number {
            Vec::new()
        } else {
            self.stage.heads(number..=tip)?
        };
        Ok(!is_due && told.list == expected)
    }

    /// Where the chain has one of a tx's attempts.
    async fn mined(&self, tx_id: &str) -> Outcome<Option<(u64, B256)>> {
        let tx = self.solo.tx(tx_id).await?;
        for attempt in tx["attempts"].as_array().into_iter().flatten() {
            if let Some(block) = self.stage.mined_in(hash_of(&attempt["txHash"])?)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Block by block until every tx is confirmed: by the feed, by the API, and with equal lists. Blocks
    /// keep a pace, because some of what must happen is not to be seen in the feed.
    pub(crate) async fn finish(&mut self) -> Outcome<()> {
        let since = Instant::now();
        while since.elapsed() < FINISHED_WITHIN {
            self.block().await?;
            let is_final = |id: &String| self.fold.of(id).is_final;
            if self.cast.iter().all(is_final) {
                return self.confirmed().await;
            }
            tokio::time::sleep(BLOCK_TIME).await;
        }
        let open = self.cast.iter().find(|id| !self.fold.of(id).is_final);
        let open = self.solo.story(open.map_or("", String::as_str)).await?;
        Err(format!("not final after {FINISHED_WITHIN:?}: {open}").into())
    }

    /// Compares store and chain when nothing is open; gives the number of payments, each exactly once.
    pub(crate) async fn audit(&self) -> Outcome<usize> {
        let expected = Expected {
            foreign: self.foreign.clone(),
            ..Expected::default()
        };
        let chain = self.stage.chain()?;
        let audit = self.solo.audit(&chain, FINISHED_WITHIN);
        let counted = audit.run_with(&expected).await?;
        demand(counted.no_ops == 0, "a nonce was filled for nothing")?;
        Ok(counted.paid)
    }

    async fn confirmed(&self) -> Outcome<()> {
        for tx_id in &self.cast {
            let tx = self.solo.tx(tx_id).await?;
            let told = self.fold.of(tx_id);
            let list = heads_of(&tx["confirmations"])?;
            demand(
                tx["state"] == "CONFIRMED" && list == told.list,
                format!("told is {told:?}, but the API says {tx}"),
            )?;
        }
        Ok(())
    }
}

fn heads_of(list: &Value) -> Outcome<Vec<proof::stage::Head>> {
    let headers = list.as_array().ok_or("no list")?;
    headers.iter().map(proof::stage::Head::read).collect()
}
