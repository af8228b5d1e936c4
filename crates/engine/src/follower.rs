//! One follower per chain: turns heads into a parent-linked view, and blocks into receipts.
//!
//! Cost is per block, not per tx: one call for all receipts of a block that may hold something of
//! ours. It writes nothing: lanes get what it saw as inputs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use domain::headers::{HeaderChain, LinkError};
use domain::lane::{Finality, FinalityTag, Receipt};
use domain::mutation::{self, Mutation};
use domain::{B256, ChainId, ChainView, FeeQuote, Header, Input, LaneKey};

use crate::core::{ChainPart, Core};
use crate::pace::Pace;
use crate::ports::{BlockTag, ChainError};
use crate::shard::{Message, explain_revert};

/// The most headers of one catch-up step.
const CATCH_UP_MAX: u64 = 100;
/// How far the chain's own final block may be behind its head; Ethereum's is 64 to 96 blocks.
const TAGGED_MAX: u64 = 192;
/// After how many looks a branch is followed that is shorter than the one we follow.
const SHORTER_LOOKS: u32 = 3;
/// How often a block's receipts are tried before it is left to the lanes' own checks.
const UNREAD_TRIES_MAX: u32 = 5;
/// The most blocks whose receipts are still to be read; older ones are left to the lanes' own checks.
const UNREAD_MAX: usize = 1_024;

pub(crate) struct Follower {
    core: Arc<Core>,
    chain_id: ChainId,
    headers: HeaderChain,
    keep: u64,
    fee: Option<FeeQuote>,
    pace: Pace,
    /// Up to which height the chain itself calls its blocks final.
    final_up_to: Option<u64>,
    /// How often a fork went deeper than the view.
    deep_forks: u64,
    /// How many looks in a row showed a branch that is shorter than the view.
    shorter_seen: u32,
    /// The tip that lanes know.
    told_tip: Option<B256>,
    /// Blocks of the view whose receipts have not been read yet, oldest first.
    unread: VecDeque<Header>,
    /// How often the oldest of them could not be read.
    unread_tries: u32,
}

impl Follower {
    pub(crate) fn new(core: Arc<Core>, chain_id: ChainId) -> Self {
        let part = core.chain(chain_id);
        let rules = part.rules.lane;
        let unfinal = match rules.finality {
            Finality::Depth(depth) => depth,
            Finality::Tag(_) => TAGGED_MAX,
        };
        let keep = unfinal.saturating_add(rules.watch_depth).saturating_add(16);
        let pace = Pace::new(part.rules.poll_interval);
        let headers = HeaderChain::new(usize::try_from(keep).unwrap_or(usize::MAX));
        Self {
            core,
            chain_id,
            headers,
            keep,
            fee: None,
            pace,
            final_up_to: None,
            deep_forks: 0,
            shorter_seen: 0,
            told_tip: None,
            unread: VecDeque::new(),
            unread_tries: 0,
        }
    }

    pub(crate) async fn run(mut self) {
        let mut tries = 0;
        loop {
            match self.look().await {
                Ok(()) => {
                    tries = 0;
                    self.part().was_heard();
                    self.rest().await;
                }
                Err(error) => {
                    self.part().was_not_heard(self.core.ports.clock.monotonic());
                    tracing::warn!(chain = %self.chain_id, %error, "the chain cannot be followed at present");
                    self.core.back_off(&mut tries).await;
                }
            }
        }
    }

    /// Waits for the next look: for the chain's rhythm, for a node that announces a head, or less when
    /// something was just sent to a chain that makes blocks of what it gets.
    async fn rest(&mut self) {
        let core = Arc::clone(&self.core);
        let part = core.chain(self.chain_id);
        let clock = &core.ports.clock;
        let rest = clock.sleep(self.pace.rest(clock.monotonic()));
        tokio::select! {
            biased;
            () = part.chain.wait_for_head() => self.pace.announced(true),
            () = part.sent_bell.notified(), if self.pace.is_moved_by_sends() => {
                clock.sleep(part.rules.poll_interval / 8).await;
            }
            // Announcements come sooner than this, if they come.
            () = rest => self.pace.announced(false),
        }
    }

    /// Looks once: moves the view to the node's head, tells it, and reads the receipts of new blocks.
    async fn look(&mut self) -> Result<(), ChainError> {
        let chain = Arc::clone(&self.part().chain);
        let Some(head) = chain.header(BlockTag::Latest).await? else {
            return Err(ChainError::Unusable("the node has no latest block".into()));
        };
        let tip = self.headers.tip();
        if mutation::is_on(Mutation::TakeLagForFork) && tip.is_some_and(|t| t.number > head.number)
        {
            self.rebuild(head).await?;
        }
        if self.headers.contains(head.hash) {
            self.shorter_seen = 0;
        } else if self.is_to_be_followed(&head) {
            self.move_to(head).await?;
            self.pace.saw(head, self.core.ports.clock.monotonic());
        }
        // Also when an earlier look moved the view and then failed: lanes drop receipts of blocks
        // that their view does not have.
        let tip = self.headers.tip().map(|tip| tip.hash);
        if self.told_tip != tip {
            self.fee = Some(chain.fee_quote().await?);
            self.ask_what_is_final().await?;
            self.tell().await;
            self.told_tip = tip;
        }
        self.read_blocks().await
    }

    /// Whether a head that is not on the view is where to go. A branch that is shorter than ours is what a
    /// node shows that is behind on a branch of its own: it must stay for some looks.
    fn is_to_be_followed(&mut self, head: &Header) -> bool {
        let is_shorter = self
            .headers
            .tip()
            .is_some_and(|tip| head.number < tip.number);
        self.shorter_seen = if is_shorter { self.shorter_seen + 1 } else { 0 };
        !is_shorter || self.shorter_seen >= SHORTER_LOOKS
    }

    /// Where the chain itself says what is final. Nobody needs to know while nothing is open.
    async fn ask_what_is_final(&mut self) -> Result<(), ChainError> {
        let part = self.part();
        let tag = match part.rules.lane.finality {
            Finality::Depth(_) => return Ok(()),
            Finality::Tag(FinalityTag::Safe) => BlockTag::Safe,
            Finality::Tag(FinalityTag::Finalized) => BlockTag::Finalized,
        };
        if part.watched.is_empty() && self.final_up_to.is_some() {
            return Ok(());
        }
        let Some(header) = part.chain.header(tag).await? else {
            return Ok(()); // a young chain has none yet
        };
        // Otherwise it is a node's word about another branch than the one that is followed.
        let base = self.headers.base().map_or(0, |base| base.number);
        if header.number < base || self.headers.contains(header.hash) {
            self.final_up_to = self.final_up_to.max(Some(header.number));
        }
        Ok(())
    }

    /// Extends the view to this head, in bounded steps; walks a fork back to the common ancestor.
    async fn move_to(&mut self, head: Header) -> Result<(), ChainError> {
        let chain = Arc::clone(&self.part().chain);
        let tip = self.headers.tip().map(|tip| tip.number);
        let is_far = tip.is_none_or(|tip| head.number > tip.saturating_add(self.keep));
        if is_far {
            self.rebuild(head).await?;
        }
        if self.headers.contains(head.hash) {
            return Ok(()); // a chain of one block: there is no parent to walk to
        }
        while let Some(tip) = self.headers.tip().map(|tip| tip.number)
            && head.number > tip.saturating_add(1)
        {
            let count = (head.number - tip - 1).min(CATCH_UP_MAX);
            let between = chain.headers(tip + 1, count).await?;
            if between.is_empty() || self.adopt(&between).is_err() {
                break; // a fork below: walk back from the head instead
            }
        }
        let mut branch = vec![head];
        loop {
            match self.adopt(&branch) {
                Ok(()) => return Ok(()),
                Err(LinkError::Broken) => {
                    return Err(ChainError::Unusable("a branch does not link".into()));
                }
                Err(LinkError::MissingParent(parent)) => {
                    // Also where there is nothing below: a chain that began anew.
                    let is_genesis = branch[0].number == 0;
                    if is_genesis || branch.len() as u64 > self.keep {
                        return self.deep_fork(head).await;
                    }
                    let Some(header) = chain.header(BlockTag::Hash(parent)).await? else {
                        return Err(ChainError::Unusable(format!(
                            "parent {parent} is not known"
                        )));
                    };
                    branch.insert(0, header);
                }
            }
        }
    }

    /// The view is built anew on a branch that has nothing in common with it, up to its head: without that,
    /// nobody would see what the fork put there.
    async fn deep_fork(&mut self, head: Header) -> Result<(), ChainError> {
        tracing::error!(chain = %self.chain_id, "a fork goes deeper than is watched; the view is rebuilt");
        metrics::counter!("lanekeeper_incidents_total", "kind" => "deep_fork").increment(1);
        self.deep_forks += 1;
        self.final_up_to = None;
        self.rebuild(head).await?;
        if self.headers.contains(head.hash) {
            return Ok(());
        }
        let adopted = self.adopt(&[head]);
        adopted.map_err(|error| {
            ChainError::Unusable(format!("the chain moved while it was read: {error:?}"))
        })
    }

    fn adopt(&mut self, branch: &[Header]) -> Result<(), LinkError> {
        let adopted = self.headers.adopt(branch)?;
        if let Some(lowest) = adopted.dropped.first() {
            // The chain's word was about blocks that are not followed any more.
            let below = lowest.number.saturating_sub(1);
            self.final_up_to = self.final_up_to.map(|up_to| up_to.min(below));
            let depth = adopted.dropped.len();
            tracing::info!(chain = %self.chain_id, depth, "fork");
            metrics::counter!("lanekeeper_forks_total").increment(1);
            self.unread
                .retain(|header| !adopted.dropped.contains(header));
        }
        self.unread.extend(adopted.added);
        while self.unread.len() > UNREAD_MAX {
            self.unread.pop_front();
        }
        Ok(())
    }

    /// Starts the view anew below this head: at start, and after long downtime.
    async fn rebuild(&mut self, head: Header) -> Result<(), ChainError> {
        self.headers = HeaderChain::new(usize::try_from(self.keep).unwrap_or(usize::MAX));
        self.unread.clear();
        let chain = Arc::clone(&self.part().chain);
        let mut from = head.number.saturating_sub(self.keep);
        while from < head.number {
            let count = (head.number - from).min(CATCH_UP_MAX);
            let headers = chain.headers(from, count).await?;
            if headers.is_empty() {
                break;
            }
            from += headers.len() as u64;
            self.adopt(&headers).map_err(|error| {
                ChainError::Unusable(format!("the chain moved while it was read: {error:?}"))
            })?;
        }
        // What is in these blocks already is found by each lane itself when it is opened.
        self.unread.clear();
        if self.headers.tip().is_none() {
            self.adopt(&[head])
                .map_err(|error| ChainError::Unusable(format!("{error:?}")))?;
        }
        Ok(())
    }

    /// Shows the view to everyone: first forks and confirmations, then receipts.
    async fn tell(&self) {
        let Some(fee) = self.fee else { return };
        let view = ChainView {
            headers: self.headers.clone(),
            fee,
            final_up_to: self.final_up_to,
            deep_forks: self.deep_forks,
        };
        self.part().view.set(Arc::new(view));
        for shard in &self.core.shards {
            let chain = self.chain_id;
            shard.send(Message::Head { chain }).await.ok(); // the shard is gone only when the node is
        }
    }

    /// Reads the receipts of blocks that came in, while anything of ours may be in them.
    async fn read_blocks(&mut self) -> Result<(), ChainError> {
        while let Some(block) = self.unread.front().copied() {
            if !self.part().watched.is_empty()
                && let Err(error) = self.read_block(block.hash).await
            {
                self.unread_tries += 1;
                if self.unread_tries < UNREAD_TRIES_MAX {
                    return Err(error);
                }
                // Lanes ask for what they miss by themselves; the blocks behind it must not wait.
                let number = block.number;
                tracing::error!(chain = %self.chain_id, number, %error, "a block's receipts cannot be read; leaving it out");
            }
            self.unread_tries = 0;
            self.unread.pop_front();
        }
        Ok(())
    }

    async fn read_block(&self, block: B256) -> Result<(), ChainError> {
        let part = self.part();
        let is_ours = |hash: B256| part.watched.lane_of(hash).is_some();
        let Some(inclusions) = part.chain.block_receipts(block, &is_ours).await? else {
            return Err(ChainError::Unusable(format!(
                "block {block} has no receipts yet"
            )));
        };
        let mut by_lane: BTreeMap<LaneKey, Vec<Receipt>> = BTreeMap::new();
        for mut inclusion in inclusions {
            if let Some(lane) = part.watched.lane_of(inclusion.tx_hash) {
                explain_revert(&self.core, lane, &mut inclusion).await;
                let receipt = Receipt {
                    inclusion,
                    above: Vec::new(),
                };
                by_lane.entry(lane).or_default().push(receipt);
            }
        }
        for (lane, receipts) in by_lane {
            metrics::counter!("lanekeeper_receipt_check_total", "result" => "hit")
                .increment(receipts.len() as u64);
            let input = Input::Receipts(receipts);
            self.core
                .tell_shard(lane, Message::Observed { lane, input })
                .await;
        }
        Ok(())
    }

    fn part(&self) -> &ChainPart {
        self.core.chain(self.chain_id)
    }
}
