//! A shard: one task that owns the lanes of its part of the hash ring, and runs their turns.
//!
//! It takes whatever waits in its inbox (never waits to fill), steps all of it, commits once, answers
//! all. A lane that is not in memory is being opened (acquired and read) by another task; what comes
//! for it meanwhile waits in its cell, bounded.

mod balance;
mod chain_queries;
mod effects;
mod event_counts;
mod lane_cell;
mod release;
mod signing;
mod turn;
mod unknown_commit;

pub(crate) use balance::BALANCE_QUERIES_MAX;
pub(crate) use chain_queries::headers_below_view;
pub(crate) use event_counts::EventCounts;
pub(crate) use lane_cell::{LaneCell, lookup_refusal, refuse_creates};
pub(crate) use unknown_commit::UnknownBatch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::lane::{AccountBalance, AccountNonces, AdmittedRequest, EndpointNonces};
use domain::{
    B256, ChainId, Input, LaneImage, LaneKey, LeaseGrant, MonotonicTime, NodeName, Nonce,
    RequestId, TxId,
};
use tokio::sync::{mpsc, oneshot};

use crate::core::Core;
use crate::node::{AcceptedTx, Refusal};
use crate::ports::{RegrantOutcome, StoreError};
use crate::reservations::PendingMark;
use balance::BalanceQueries;
use release::{PendingReleases, ReleaseBackoff};

/// The most messages of one turn.
const TURN_MAX: usize = 1_024;
/// How often lanes with work are stepped with the time.
const TICK: Duration = Duration::from_millis(250);

/// The messages of a shard's inbox.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most messages under load are creates: a box would cost each an allocation"
)]
pub(crate) enum Message {
    Create {
        lane: LaneKey,
        create: PendingCreate,
    },
    Inputs {
        lane: LaneKey,
        /// Answers to effects are valid only for the opening (epoch) that dispatched them; without one these are
        /// observations of the chain, valid for every opening.
        epoch: Option<u64>,
        inputs: Vec<Input>,
    },
    /// A query for the balance of a lane's account has ended; without an answer where no endpoint gave one.
    BalanceQueried {
        lane: LaneKey,
        queried_at: MonotonicTime,
        answer: Option<AccountBalance>,
    },
    /// There is a new view of a chain.
    Head {
        chain: ChainId,
    },
    /// A lane has work and no keeper, or txs were queued for it.
    Wake {
        lane: LaneKey,
        has_queued: bool,
    },
    LaneOpened(Box<OpenedLane>),
    /// The txs of requests that wait for a lane; `None` where there is none.
    RequestsLookedUp {
        lane: LaneKey,
        found: Result<BTreeMap<RequestId, Option<TxId>>, StoreError>,
    },
    LaneNotOpened {
        lane: LaneKey,
        why: OpenError,
    },
    /// A regrant has proved what became of a batch whose outcome was unknown.
    UnknownCommitResolved {
        lane: LaneKey,
        outcome: RegrantOutcome,
    },
    LeaseLost {
        lane: LaneKey,
        lease_grant: LeaseGrant,
    },
    /// The keeper has halted its lane, durably.
    LaneHalted {
        lane: LaneKey,
        lease_grant: LeaseGrant,
        reason: String,
    },
    /// An operator accepts what a halted lane has lost.
    Resume {
        lane: LaneKey,
    },
    Mark(PendingMark),
    /// What is known of these lanes, in this order.
    Inspect {
        lanes: Vec<LaneKey>,
        answer: oneshot::Sender<Vec<Inspection>>,
    },
    /// Release every lane; `done` gets those that have work.
    Drain {
        done: oneshot::Sender<Vec<LaneKey>>,
    },
}

/// A request that waits for the commit of its turn.
#[derive(Debug)]
pub(crate) struct PendingCreate {
    pub(crate) request: AdmittedRequest,
    pub(crate) reply: oneshot::Sender<ShardOutcome>,
    pub(crate) arrived_at: MonotonicTime,
    /// How many conflicts its batches have had.
    pub(crate) tries: u32,
    /// Whether its request id may be stored already: it is looked up before the commit.
    pub(crate) is_repeat: bool,
    /// Whether a commit with an unknown outcome may have stored it.
    pub(crate) maybe_stored: bool,
    /// How many queries of the balance it has waited for.
    pub(crate) balance_queries: u32,
    /// Whether a second endpoint's balance is queried before it is refused, or there is no second endpoint.
    pub(crate) is_shortfall_confirmed: bool,
}

impl PendingCreate {
    pub(crate) fn answer(self, outcome: ShardOutcome) {
        self.reply.send(outcome).ok(); // the caller may have gone
    }
}

/// What came of a request that reached its lane's shard.
#[derive(Debug)]
pub(crate) enum ShardOutcome {
    /// Durable.
    Accepted(Box<AcceptedTx>),
    /// A tx with its request id was stored before: the caller compares the two.
    Existing(TxId),
    NotKeeper {
        keeper: NodeName,
        /// Whether a commit with an unknown outcome may have stored the request.
        maybe_stored: bool,
    },
    /// This node has released the lane and does not acquire it again.
    Released,
    Refused(Refusal),
}

/// A lane that was granted and read.
#[derive(Debug)]
pub(crate) struct OpenedLane {
    pub(crate) lane: LaneKey,
    pub(crate) image: LaneImage,
    /// Set when the lane was taken over.
    pub(crate) previous_keeper: Option<NodeName>,
    /// The account's nonces, when the chain answered in time.
    pub(crate) nonces: Option<EndpointNonces>,
    /// Whether commits of the lane may be lost.
    pub(crate) loss: LossSuspicion,
    /// Whether this node was its keeper already, without an ownership change in between.
    pub(crate) is_reload: bool,
}

/// Whether commits of a lane may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossSuspicion {
    /// The lane was reconciled under the store's present history.
    None,
    /// It was not: it finds out what lost commits have sent before it allocates a nonce.
    Possible,
    /// So is this, and an operator has accepted what is lost: it does not halt for it.
    Accepted,
}

/// Why a lane was not opened.
#[derive(Clone, Debug)]
pub(crate) enum OpenError {
    NotKeeper(NodeName),
    Store(String),
    /// Another transaction holds its rows at the moment.
    Busy,
    /// It takes no work until an operator decides.
    Halted(String),
}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}

/// What the keeper knows of a lane beyond the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inspection {
    pub(crate) chain_nonces: Option<AccountNonces>,
    pub(crate) gaps: Vec<Nonce>,
    pub(crate) waiting_for: Option<String>,
    /// Txs in memory that are not mined.
    pub(crate) unmined: usize,
}

pub(crate) struct Shard {
    pub(crate) core: Arc<Core>,
    inbox: mpsc::Receiver<Message>,
    pub(crate) lanes: BTreeMap<LaneKey, LaneCell>,
    pub(crate) stored_headers: BTreeSet<B256>,
    /// How often in a row a lane's batch was not applied.
    pub(crate) failures: BTreeMap<LaneKey, u32>,
    /// Until when request ids are looked up before they are committed.
    pub(crate) find_requests_until: MonotonicTime,
    next_epoch: u64,
    is_draining: bool,
    release_backoff: ReleaseBackoff,
    pending_releases: PendingReleases,
    balance_queries: BalanceQueries,
}

impl Shard {
    pub(crate) fn new(core: Arc<Core>, inbox: mpsc::Receiver<Message>) -> Self {
        Self {
            core,
            inbox,
            lanes: BTreeMap::new(),
            stored_headers: BTreeSet::new(),
            failures: BTreeMap::new(),
            find_requests_until: MonotonicTime(0),
            next_epoch: 1,
            is_draining: false,
            release_backoff: ReleaseBackoff::default(),
            pending_releases: PendingReleases::default(),
            balance_queries: BalanceQueries::default(),
        }
    }

    pub(crate) async fn run(mut self) {
        let mut messages = Vec::with_capacity(TURN_MAX);
        let clock = Arc::clone(&self.core.ports.clock);
        let mut tick = clock.sleep(TICK);
        loop {
            let ticked = tokio::select! {
                biased;
                // First: an inbox that is always ready would delay the tick without bound.
                () = &mut tick => true,
                count = self.inbox.recv_many(&mut messages, TURN_MAX) => {
                    if count == 0 {
                        return;
                    }
                    false
                }
            };
            if ticked {
                tick = clock.sleep(TICK);
                self.run_tick().await;
            } else {
                self.run_turn(messages.drain(..)).await;
            }
        }
    }
}
