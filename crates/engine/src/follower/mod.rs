//! One follower per chain: turns heads into a parent-linked view, and blocks into receipts.
//!
//! Cost is per block, not per tx: one call for all receipts of a block that may hold something of
//! ours. It writes nothing: lanes get what it observes as inputs. Which head it follows is decided by
//! `domain::fork_choice`.

mod unread_blocks;

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::fork_choice::{self, BranchStep, ForkChoice, HeadChoice};
use domain::headers::{HeaderChain, LinkError};
use domain::lane::{Finality, FinalityTag, Receipt};
use domain::{B256, ChainId, ChainView, FeeQuote, Header, Input, LaneKey};

use crate::core::{ChainState, Core};
use crate::poll_schedule::PollSchedule;
use crate::ports::{BlockTag, ChainError};
use crate::revert_reasons::send_with_revert_reasons;
use crate::shard::Message;
use unread_blocks::UnreadBlocks;

/// The most headers of one catch-up step.
const CATCH_UP_MAX: u64 = 100;

pub(crate) struct Follower {
    core: Arc<Core>,
    chain_id: ChainId,
    headers: HeaderChain,
    /// How many headers the view keeps.
    keep: u64,
    fork_choice: ForkChoice,
    poll_schedule: PollSchedule,
    fee: Option<FeeQuote>,
    /// The height up to which the chain itself calls its blocks final.
    final_up_to: Option<u64>,
    deep_forks: u64,
    /// The tip of the view that lanes have.
    published_tip: Option<B256>,
    unread: UnreadBlocks,
}

impl Follower {
    pub(crate) fn new(core: Arc<Core>, chain_id: ChainId) -> Self {
        let rules = &core.chain(chain_id).rules;
        let keep = fork_choice::kept_headers(
            rules.lane.confirmations.finality,
            rules.lane.confirmations.watch_depth,
        );
        let poll_schedule = PollSchedule::new(rules.poll_interval);
        Self {
            core,
            chain_id,
            headers: empty_view(keep),
            keep,
            fork_choice: ForkChoice::default(),
            poll_schedule,
            fee: None,
            final_up_to: None,
            deep_forks: 0,
            published_tip: None,
            unread: UnreadBlocks::default(),
        }
    }

    pub(crate) async fn run(mut self) {
        let mut tries = 0;
        loop {
            match self.poll_chain().await {
                Ok(()) => {
                    tries = 0;
                    self.chain_state().mark_reachable();
                    self.wait_for_next_poll().await;
                }
                Err(error) => {
                    let now = self.core.ports.clock.monotonic();
                    self.chain_state().mark_unreachable(now);
                    tracing::warn!(chain = %self.chain_id, %error, "the chain could not be polled; retrying");
                    self.core.back_off(&mut tries).await;
                }
            }
        }
    }

    /// Waits until the next poll is due: by the chain's block interval, by an announced head, or soon after a send
    /// on a chain that makes blocks of what it gets.
    async fn wait_for_next_poll(&mut self) {
        let core = Arc::clone(&self.core);
        let chain_state = core.chain(self.chain_id);
        let clock = &core.ports.clock;
        let delay = clock.sleep(self.poll_schedule.next_poll_delay(clock.monotonic()));
        tokio::select! {
            biased;
            () = chain_state.chain.wait_for_head() => self.poll_schedule.set_announced(true),
            () = chain_state.sent_wakeup.notified(), if self.poll_schedule.is_triggered_by_sends() => {
                clock.sleep(chain_state.rules.poll_interval / 8).await;
            }
            // Announcements come sooner than this, if they come.
            () = delay => self.poll_schedule.set_announced(false),
        }
    }

    /// Polls once: moves the view to the endpoint's head, publishes it, and reads the receipts of new blocks.
    async fn poll_chain(&mut self) -> Result<(), ChainError> {
        let chain = Arc::clone(&self.chain_state().chain);
        let Some(head) = chain.header(BlockTag::Latest).await? else {
            return Err(ChainError::Unusable("the node has no latest block".into()));
        };
        match self.fork_choice.choose(&self.headers, &head) {
            HeadChoice::InView | HeadChoice::Wait => {}
            HeadChoice::Follow => {
                self.move_view_to(head).await?;
                let now = self.core.ports.clock.monotonic();
                self.poll_schedule.observe_head(head, now);
            }
        }
        // Also when an earlier poll moved the view and then failed: lanes drop receipts of blocks
        // that their view does not have.
        let tip = self.headers.tip().copied();
        if let Some(tip) = tip.filter(|tip| self.published_tip != Some(tip.hash)) {
            self.fee = Some(chain.fee_quote(&tip).await?);
            self.update_final_height().await?;
            self.publish_view().await;
            self.published_tip = Some(tip.hash);
        }
        self.read_new_blocks().await
    }

    /// Reads which blocks the chain itself calls final. Not needed while nothing is watched.
    async fn update_final_height(&mut self) -> Result<(), ChainError> {
        let chain_state = self.chain_state();
        let tag = match chain_state.rules.lane.confirmations.finality {
            Finality::Depth(_) => return Ok(()),
            Finality::Tag(FinalityTag::Safe) => BlockTag::Safe,
            Finality::Tag(FinalityTag::Finalized) => BlockTag::Finalized,
        };
        if chain_state.watched.is_empty() && self.final_up_to.is_some() {
            return Ok(());
        }
        // A young chain has no such block yet.
        if let Some(named) = chain_state.chain.header(tag).await? {
            self.final_up_to =
                fork_choice::raise_final_height(self.final_up_to, &self.headers, &named);
        }
        Ok(())
    }

    /// Extends the view to this head, in bounded steps; walks a fork back to the common ancestor.
    async fn move_view_to(&mut self, head: Header) -> Result<(), ChainError> {
        let chain = Arc::clone(&self.chain_state().chain);
        if fork_choice::is_out_of_reach(&self.headers, &head, self.keep) {
            self.rebuild_view(head).await?;
        }
        if self.headers.contains(head.hash) {
            return Ok(()); // a chain of one block: there is no parent to walk to
        }
        while let Some(tip) = self.headers.tip().map(|tip| tip.number)
            && head.number > tip.saturating_add(1)
        {
            let count = (head.number - tip - 1).min(CATCH_UP_MAX);
            let between = chain.headers(tip + 1, count).await?;
            if between.is_empty() || self.adopt_branch(&between).is_err() {
                break; // a fork below: walk back from the head instead
            }
        }
        let mut branch = vec![head];
        loop {
            let parent = match self.adopt_branch(&branch) {
                Ok(()) => return Ok(()),
                Err(LinkError::Broken) => {
                    return Err(ChainError::Unusable("a branch does not link".into()));
                }
                Err(LinkError::MissingParent(parent)) => parent,
            };
            match fork_choice::extend_branch(&branch, parent, self.keep) {
                BranchStep::DeepFork => return self.follow_deep_fork(head).await,
                BranchStep::FetchParent(parent) => {
                    let Some(header) = chain.header(BlockTag::Hash(parent)).await? else {
                        let why = format!("parent {parent} is not known");
                        return Err(ChainError::Unusable(why));
                    };
                    branch.insert(0, header);
                }
            }
        }
    }

    /// Builds the view anew on a branch that has nothing in common with it, up to its head: otherwise the blocks of
    /// the fork would never be read.
    async fn follow_deep_fork(&mut self, head: Header) -> Result<(), ChainError> {
        tracing::error!(chain = %self.chain_id, "incident: a fork is deeper than the view; the view is rebuilt");
        metrics::counter!("lanekeeper_incidents_total", "kind" => "deep_fork").increment(1);
        self.deep_forks += 1;
        self.final_up_to = None;
        self.rebuild_view(head).await?;
        if self.headers.contains(head.hash) {
            return Ok(());
        }
        self.adopt_branch(&[head]).map_err(chain_moved)
    }

    fn adopt_branch(&mut self, branch: &[Header]) -> Result<(), LinkError> {
        let change = self.headers.adopt(branch)?;
        if !change.dropped.is_empty() {
            self.final_up_to = fork_choice::lower_final_height(self.final_up_to, &change.dropped);
            let depth = change.dropped.len();
            tracing::info!(chain = %self.chain_id, depth, "fork");
            metrics::counter!("lanekeeper_forks_total").increment(1);
        }
        self.unread.apply_change(&change);
        Ok(())
    }

    /// Builds the view anew below this head: at start, and after long downtime.
    async fn rebuild_view(&mut self, head: Header) -> Result<(), ChainError> {
        self.headers = empty_view(self.keep);
        self.unread.clear();
        let chain = Arc::clone(&self.chain_state().chain);
        let mut from = head.number.saturating_sub(self.keep);
        while from < head.number {
            let count = (head.number - from).min(CATCH_UP_MAX);
            let headers = chain.headers(from, count).await?;
            if headers.is_empty() {
                break;
            }
            from += headers.len() as u64;
            self.adopt_branch(&headers).map_err(chain_moved)?;
        }
        // A lane finds what is in these blocks already by itself when it is opened.
        self.unread.clear();
        if self.headers.tip().is_none() {
            self.adopt_branch(&[head])
                .map_err(|error| ChainError::Unusable(format!("{error:?}")))?;
        }
        Ok(())
    }

    /// Publishes the view to all shards: first forks and confirmations, then receipts.
    async fn publish_view(&self) {
        let Some(fee) = self.fee else { return };
        let view = ChainView {
            headers: self.headers.clone(),
            fee,
            final_up_to: self.final_up_to,
            deep_forks: self.deep_forks,
        };
        self.chain_state().view.set(Arc::new(view));
        for shard in &self.core.lanes.shards {
            let chain = self.chain_id;
            shard.send(Message::Head { chain }).await.ok(); // the shard ends only with the node
        }
    }

    /// Reads the receipts of new blocks, while anything of ours may be in them.
    async fn read_new_blocks(&mut self) -> Result<(), ChainError> {
        while let Some(block) = self.unread.oldest() {
            if !self.chain_state().watched.is_empty()
                && let Err(error) = self.read_block_receipts(block.hash).await
            {
                if self.unread.should_retry() {
                    return Err(error);
                }
                // Lanes fetch receipts that they miss by themselves; later blocks must not wait.
                let number = block.number;
                tracing::error!(chain = %self.chain_id, number, %error, "a block's receipts cannot be read; skipping it");
            }
            self.unread.remove_oldest();
        }
        Ok(())
    }

    async fn read_block_receipts(&self, block: B256) -> Result<(), ChainError> {
        let chain_state = self.chain_state();
        let is_ours = |hash: B256| chain_state.watched.lane_of(hash).is_some();
        let inclusions = chain_state.chain.block_receipts(block, &is_ours).await?;
        let Some(inclusions) = inclusions else {
            let why = format!("block {block} has no receipts yet");
            return Err(ChainError::Unusable(why));
        };
        let mut by_lane: BTreeMap<LaneKey, Vec<Receipt>> = BTreeMap::new();
        for inclusion in inclusions {
            if let Some(lane) = chain_state.watched.lane_of(inclusion.tx_hash) {
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
            let inputs = vec![Input::Receipts(receipts)];
            send_with_revert_reasons(&self.core, lane, None, inputs).await;
        }
        Ok(())
    }

    fn chain_state(&self) -> &ChainState {
        self.core.chain(self.chain_id)
    }
}

fn empty_view(keep: u64) -> HeaderChain {
    HeaderChain::new(usize::try_from(keep).unwrap_or(usize::MAX))
}

fn chain_moved(error: LinkError) -> ChainError {
    ChainError::Unusable(format!("the chain moved while it was read: {error:?}"))
}
